"""How many inputs, of which seed, and what a failure says.

WALGATE_FUZZ_INPUTS sets the number of inputs of the long runs, WALGATE_FUZZ_SEED repeats a run; the
seed is in every failure.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from tests.fuzz.mutation import Mutator

LONG_INPUTS = int(os.environ.get("WALGATE_FUZZ_INPUTS", "2000000"))
SEED = int(os.environ.get("WALGATE_FUZZ_SEED", random.randrange(1 << 32)))
SLOW_S = 1.0
"""An input of a few kilobytes is read in microseconds; a count that is believed would take far
longer than this."""


def campaign(corpus: list[bytes], accepts: Callable[[int, bytes], bool], input_count: int) -> int:
    """Give mutations of `corpus` to `accepts(number, input)`; returns how many it said yes to. What
    it raises is a failure."""
    mutator = Mutator(corpus, SEED)
    accepted = 0
    for number in range(input_count):
        mutated = mutator.next()
        started = time.process_time()
        try:
            accepted += accepts(number, mutated)
            assert time.process_time() - started < SLOW_S
        except Exception as error:
            raise AssertionError(f"input {number} of seed {SEED}: {mutated.hex()}") from error
    print(f"{input_count} mutated inputs of seed {SEED}: {accepted} accepted")
    return accepted
