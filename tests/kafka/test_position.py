"""Position records: what was written comes back; anything else stops the start, whatever it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.transactions.position import FailedPlace, Gap, Position, decode_position, encode_position
from gateway.transactions.transaction import Prepared, Quarantined
from schemas.lsn import Lsn
from schemas.markers import ExcludedRelation
from schemas.records import POSITION
from schemas.used_schemas import UsedSchema
from schemas.wire_format import FRAME_BYTES, frame

MANY = 1_000_000
LONGS = st.integers(0, 2**63 - 1)
TEXTS = st.text(max_size=20)
RANGES = st.tuples(LONGS, LONGS, LONGS)
MANIFESTS = st.builds(
    Manifest,
    LONGS,
    LONGS,
    st.lists(LONGS, max_size=4),
    st.lists(st.integers(0, 2**31 - 1), max_size=4),
    st.dictionaries(st.tuples(TEXTS, st.integers(0, 100)), st.lists(RANGES, min_size=1, max_size=3), max_size=3),
    excluded=st.lists(st.builds(ExcludedRelation, LONGS, TEXTS, TEXTS, TEXTS, TEXTS, LONGS), max_size=2),
)
LSNS = LONGS.map(Lsn)
PREPARED = st.builds(Prepared, TEXTS, LONGS, LSNS, st.none() | TEXTS, MANIFESTS)
POSITIONS = st.builds(
    Position,
    system_identifier=TEXTS,
    timeline=LONGS,
    database=TEXTS,
    slot=TEXTS,
    prefix=TEXTS,
    publications=st.lists(TEXTS, max_size=3).map(tuple),
    version=TEXTS,
    state=st.sampled_from(["INTENT", "ACTIVE"]),
    epoch=LONGS,
    resume_lsn=LSNS,
    last_commit_lsn=LSNS,
    prepared=st.lists(PREPARED, max_size=3).map(tuple),
    skip_lsn=LSNS,
    quarantined=st.lists(st.builds(Quarantined, LONGS, TEXTS, TEXTS, TEXTS, TEXTS, LSNS), max_size=2).map(tuple),
    gap=st.none() | st.builds(Gap, LSNS, LSNS, TEXTS),
    written_xid=LONGS,
    written_lsn=LSNS,
    content_lsn=LSNS,
    failed_place=st.none() | st.builds(FailedPlace, TEXTS, LSNS, st.integers(0, 2**31 - 1), TEXTS),
    set_back_lsn=LSNS,
    marked_lsn=LSNS,
    newest_schema=st.none() | st.builds(UsedSchema, st.integers(0, 2**31 - 1), TEXTS, TEXTS),
)


def decoded(value: bytes) -> Position:
    return decode_position(b"", value, POSITION)


@given(POSITIONS)
def test_a_position_comes_back_as_it_was_written(position: Position) -> None:
    assert decoded(encode_position(frame(7), position)) == position


@given(POSITIONS, st.data())
def test_a_position_cut_anywhere_or_with_bytes_behind_it_is_refused(position: Position, data: st.DataObject) -> None:
    value = encode_position(frame(7), position)
    with pytest.raises(StopForOperator):
        decoded(value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(StopForOperator):
        decoded(value + data.draw(st.binary(min_size=1, max_size=5)))


def _refused_or_read(value: bytes) -> None:
    try:
        decoded(value)
    except StopForOperator:
        return


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_stop(value: bytes) -> None:
    _refused_or_read(value)
    _refused_or_read(frame(1) + value)


@given(POSITIONS, st.data())
def test_a_changed_byte_raises_nothing_but_stop(position: Position, data: st.DataObject) -> None:
    value = bytearray(encode_position(frame(7), position))
    place = data.draw(st.integers(FRAME_BYTES, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    _refused_or_read(bytes(value))


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=MANY, deadline=None)
@given(st.binary(max_size=400))
def test_a_million_arbitrary_positions_raise_nothing_but_stop(value: bytes) -> None:
    _refused_or_read(frame(1) + value)


def test_a_slot_keeps_its_position_when_its_database_gets_another_name() -> None:
    position = Position("42", 1, "shop", "a", "cdc", ("p",), "v")
    own = [b"42/shop/a", b"42/former/a", b"42/with/slash/a"]
    others = [b"42/shop/b", b"42/shop/ba", b"43/shop/a", b"420/shop/a"]
    assert [key for key in own + others if position.is_of_slot(key)] == own
