"""Recorded messages, mutated: the decoder answers with a message or PgOutputError, and the reference decoder agrees.

WALGATE_FUZZ_INPUTS sets the number of inputs, WALGATE_FUZZ_SEED repeats a run; the seed is in every failure.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.fuzz.mutation import Mutator
from tests.golden.recording import recordings
from tests.pgoutput.test_reference_decoder import check_agreement
from tests.pgoutput.writer import write

SHORT_INPUTS = 20_000
LONG_INPUTS = int(os.environ.get("WALGATE_FUZZ_INPUTS", "2000000"))
SEED = int(os.environ.get("WALGATE_FUZZ_SEED", random.randrange(1 << 32)))
# A message of a few kilobytes is read in microseconds; a count that is believed would take far longer than this.
SLOW_S = 1.0


def fuzz(input_count: int, seed: int) -> int:
    """Returns how many mutated inputs were still messages."""
    corpus = sorted(
        {message.payload for one in recordings() for message in one.messages if len(message.payload) < 2000}
    )
    mutator = Mutator(corpus, seed)
    accepted = 0
    for number in range(input_count):
        payload = mutator.next()
        started = time.process_time()
        try:
            message = check_agreement(payload, in_stream=number % 2 == 1, protocol_version=1 + number % 4)
            accepted += message is not None
            assert message is None or write(message) == payload or b"pg_catalog" in payload
            assert time.process_time() - started < SLOW_S
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}: {payload.hex()}") from error
    return accepted


def test_mutated_messages_are_refused_or_read_as_the_manual_says() -> None:
    accepted = fuzz(SHORT_INPUTS, SEED)
    assert SHORT_INPUTS // 50 < accepted < SHORT_INPUTS // 2, "the mutations are too wild or too tame to be of use"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_millions_of_mutated_messages_are_refused_or_read_as_the_manual_says() -> None:
    assert fuzz(LONG_INPUTS, SEED)
