"""Wrong messages made from right ones: flips, cuts, splices, lies in counts and lengths."""

from __future__ import annotations

import random

# What a count, a length, a flag or an LSN may turn into.
NUMBERS = tuple(
    number.to_bytes(size, "big", signed=True)
    for size in (1, 2, 4, 8)
    for number in (0, 1, 2, -1, -2, (1 << (8 * size - 1)) - 1, -(1 << (8 * size - 1)))
)
LETTERS = b"BMCORYIUDTSEcAbPKrpNnutbdfi\x00\x01\x02\xff"


class Mutator:
    """Endless and repeatable: the same seed and corpus give the same inputs."""

    def __init__(self, corpus: list[bytes], seed: int) -> None:
        self._corpus = corpus
        self._random = random.Random(seed)

    def next(self) -> bytes:
        choose = self._random
        payload = bytearray(choose.choice(self._corpus))
        for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
            self._mutate(payload)
        return bytes(payload)

    def _mutate(self, payload: bytearray) -> None:
        choose = self._random
        position = choose.randrange(len(payload) + 1)
        match choose.randrange(8):
            case 0 if position < len(payload):
                payload[position] ^= 1 << choose.randrange(8)
            case 1 if position < len(payload):
                payload[position] = choose.choice(LETTERS)
            case 2:
                del payload[position:]
            case 3:
                del payload[position : position + choose.randrange(1, 9)]
            case 4:
                payload[position:position] = choose.randbytes(choose.randrange(1, 9))
            case 5:
                number = choose.choice(NUMBERS)
                payload[position : position + len(number)] = number
            case 6:  # the head of this one, the tail of another
                other = choose.choice(self._corpus)
                payload[position:] = other[choose.randrange(len(other)) :]
            case 7:  # a piece twice
                payload[position:position] = payload[position : position + choose.randrange(1, 40)]
            case _:
                payload.append(choose.randrange(256))
