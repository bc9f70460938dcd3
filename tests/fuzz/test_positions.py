"""Position records, mutated: read as a position that can be written again, or StopForOperator."""

from __future__ import annotations

import pytest

from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.transactions.position import Position, decode_position, encode_position
from gateway.transactions.transaction import Prepared
from schemas.lsn import Lsn
from schemas.records import POSITION
from schemas.wire_format import frame
from tests.fuzz.campaign import LONG_INPUTS, campaign

SHORT_INPUTS = 5_000
FRAME = frame(7)


def corpus() -> list[bytes]:
    manifest = Manifest(3, 1_000, [7, 8, 9], [1, 2], {("cdc.public.t", 0): [(5, 9, 4), (100, 2**40, 50)]})
    empty = Position("7345", 1, "shop", "walgate", "cdc", ("walgate",), "1.0")
    busy = Position(
        "7345", 2, "größe", "slot_1", "cdc", ("a", "b"), "1.0", "ACTIVE", 12, Lsn(2**63 - 1), Lsn(77),
        (Prepared("gid", 4711, 99, None, manifest), Prepared("", 1, 2, "origin", Manifest(12))),
    )  # fmt: skip
    return [encode_position(FRAME, position) for position in (empty, busy)]


def _is_position(_: int, value: bytes) -> bool:
    try:
        position = decode_position(b"", value, POSITION)
    except StopForOperator:
        return False
    assert decode_position(b"", encode_position(FRAME, position), POSITION) == position
    return True


def test_mutated_positions_are_refused_or_positions() -> None:
    accepted = campaign(corpus(), _is_position, SHORT_INPUTS)
    assert SHORT_INPUTS // 50 < accepted < SHORT_INPUTS * 3 // 4, "the mutations are too wild or too tame to be of use"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_millions_of_mutated_positions_are_refused_or_positions() -> None:
    assert campaign(corpus(), _is_position, LONG_INPUTS // 2)
