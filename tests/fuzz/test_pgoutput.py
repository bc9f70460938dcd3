"""Recorded messages, mutated: the decoder answers with a message or PgOutputError, and the
reference decoder agrees."""

from __future__ import annotations

import pytest

from tests.fuzz.campaign import LONG_INPUTS, campaign
from tests.golden.recording import recordings
from tests.pgoutput.test_reference_decoder import check_agreement
from tests.pgoutput.writer import write

SHORT_INPUTS = 20_000


def fuzz(input_count: int) -> int:
    corpus = sorted(
        {message.payload for one in recordings() for message in one.messages if len(message.payload) < 2000}
    )
    return campaign(corpus, _is_message, input_count)


def _is_message(number: int, payload: bytes) -> bool:
    message = check_agreement(payload, in_stream=number % 2 == 1, protocol_version=1 + number % 4)
    assert message is None or write(message) == payload or b"pg_catalog" in payload
    return message is not None


def test_mutated_messages_are_refused_or_read_as_the_manual_says() -> None:
    accepted = fuzz(SHORT_INPUTS)
    assert SHORT_INPUTS // 50 < accepted < SHORT_INPUTS // 2, "the mutations are too wild or too tame to be of use"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_millions_of_mutated_messages_are_refused_or_read_as_the_manual_says() -> None:
    assert fuzz(LONG_INPUTS)
