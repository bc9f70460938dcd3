"""The decoder against the writer: every legal message, everything cut from it, everything added to
it, and rubbish."""

from __future__ import annotations

import struct
from typing import get_args

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gateway.errors import StopForOperator
from gateway.pgoutput.cursor import FIRST_TIME, LAST_TIME, PG_EPOCH
from gateway.pgoutput.decode import PgOutputMessage, decode
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Relation, Type
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.stream import StreamAbort
from gateway.pgoutput.transaction import Begin, Commit, begin_at, commit_at
from gateway.pgoutput.tuple_data import Text
from gateway.pgoutput.two_phase import BeginPrepare
from schemas.lsn import Lsn
from schemas.relation import ReplicaIdentity
from tests.pgoutput.strategies import KINDS, messages, messages_of
from tests.pgoutput.writer import write

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
in_and_out_of_stream = pytest.mark.parametrize("in_stream", [False, True], ids=["", "in stream"])
SECRET = b"the value of a row"
FEWER = settings(max_examples=settings().max_examples // 3)
"""For what differs little between messages."""


def test_the_strategies_cover_all_19_messages() -> None:
    assert set(KINDS) == set(get_args(PgOutputMessage))
    assert len(KINDS) == 19


@each_kind
@in_and_out_of_stream
@given(data=st.data())
def test_what_is_written_is_read_back(kind: type, in_stream: bool, data: st.DataObject) -> None:
    message = data.draw(messages_of(kind, in_stream))
    assert decode(write(message), in_stream=in_stream, protocol_version=4) == message


@each_kind
@in_and_out_of_stream
@FEWER
@given(data=st.data())
def test_every_strict_prefix_is_refused(kind: type, in_stream: bool, data: st.DataObject) -> None:
    payload = write(data.draw(messages_of(kind, in_stream)))
    for size in range(len(payload)):
        if payload[:1] == b"A" and size == 9:
            continue  # a whole Stream Abort without LSN and time
        with pytest.raises(PgOutputError):
            decode(payload[:size], in_stream=in_stream, protocol_version=4)


@each_kind
@in_and_out_of_stream
@FEWER
@given(data=st.data(), rubbish=st.binary(min_size=1, max_size=40))
def test_every_suffix_is_refused(kind: type, in_stream: bool, data: st.DataObject, rubbish: bytes) -> None:
    message = data.draw(messages_of(kind, in_stream))
    if isinstance(message, StreamAbort) and message.abort_lsn is None and len(rubbish) == 16:
        rubbish += b"\0"  # 16 bytes may be an LSN and a time
    with pytest.raises(PgOutputError):
        decode(write(message) + rubbish, in_stream=in_stream, protocol_version=4)


@given(payload=st.binary(max_size=200), in_stream=st.booleans(), protocol_version=st.integers(1, 4))
def test_arbitrary_bytes_raise_nothing_but_pgoutputerror(
    payload: bytes, in_stream: bool, protocol_version: int
) -> None:
    try:
        message = decode(payload, in_stream=in_stream, protocol_version=protocol_version)
    except PgOutputError:
        return
    assert write(message) == payload


@given(data=st.data(), in_stream=st.booleans())
def test_a_changed_byte_is_refused_or_read_as_what_it_now_says(data: st.DataObject, in_stream: bool) -> None:
    payload = bytearray(write(data.draw(messages(in_stream))))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode(bytes(payload), in_stream=in_stream, protocol_version=4)
    except PgOutputError:
        return
    # An explicit "pg_catalog" is the one thing with two spellings.
    assert write(message) == payload or b"pg_catalog" in payload


@given(message=messages(in_stream=False), protocol_version=st.integers(1, 4))
def test_messages_of_a_later_protocol_version_are_refused(message: PgOutputMessage, protocol_version: int) -> None:
    payload = write(message)
    refused = protocol_version < 2 and payload[:1] in (b"S", b"E", b"c", b"p")
    refused |= protocol_version < 4 and isinstance(message, StreamAbort) and message.abort_lsn is not None
    if not refused:
        assert decode(payload, in_stream=False, protocol_version=protocol_version) == message
    else:
        with pytest.raises(PgOutputError):
            decode(payload, in_stream=False, protocol_version=protocol_version)


def test_two_phase_messages_come_in_any_version() -> None:
    """A slot made with two_phase sends them to a reader of proto_version 1; seen on 15 and 18."""
    payload = b"b" + struct.pack("!QQqI", 1, 2, 3, 4) + b"gid\0"
    expected = BeginPrepare(Lsn(1), Lsn(2), 3 + PG_EPOCH, 4, "gid")
    assert decode(payload, in_stream=False, protocol_version=1) == expected


# One wrong field each: bytes, whether in a stream, and what the error must name.
TUPLE = b"N\0\1t\0\0\0\1x"
REFUSED: dict[str, tuple[bytes, bool, str, str, int]] = {
    "empty": (b"", False, "message", "type", 0),
    "unknown type": (b"z", False, "message", "type", 0),
    "begin without an LSN": (b"B" + bytes(20), False, "Begin", "commit_lsn", 1),
    "begin short": (b"B\0\0\0\1", False, "Begin", "commit_lsn", 1),
    "commit with flags": (b"C\1" + bytes(24), False, "Commit", "flags", 1),
    "commit time out of the calendar": (
        b"C\0" + bytes(16) + struct.pack("!q", (1 << 63) - 2), False, "Commit", "commit_time", 18
    ),
    "commit time before the calendar": (
        b"C\0" + bytes(16) + struct.pack("!q", -(1 << 62)), False, "Commit", "commit_time", 18
    ),
    "origin without NUL": (b"O" + bytes(8) + b"name", False, "Origin", "name", 9),
    "origin not UTF-8": (b"O" + bytes(8) + b"na\xffme\0", False, "Origin", "name", 11),
    "message with flags 2": (b"M\2" + bytes(8) + b"p\0" + bytes(4), False, "Message", "flags", 1),
    "message with a negative length": (
        b"M\1" + bytes(8) + b"p\0\xff\xff\xff\xff", False, "Message", "length of content", 12
    ),
    "message with a length beyond its end": (
        b"M\1" + bytes(8) + b"p\0\x7f\xff\xff\xff", False, "Message", "content", 16
    ),
    "message in a stream without xid": (b"M" + bytes(20), True, "Message", "xid", 1),
    "relation with an unknown identity": (b"R\0\0\0\1s\0t\0x\0\0", False, "Relation", "replica_identity", 9),
    "relation with a negative count": (b"R\0\0\0\1s\0t\0d\xff\xff", False, "Relation", "number of columns", 10),
    "relation with column flags 2": (
        b"R\0\0\0\1s\0t\0d\0\1\2c\0" + bytes(8), False, "Relation", "flags of column 0", 12
    ),
    "relation with fewer columns than counted": (
        b"R\0\0\0\1s\0t\0d\x7f\xff\0c\0" + bytes(8), False, "Relation", "flags of column 1", 23
    ),
    "insert without a new tuple": (b"I\0\0\0\1K\0\0", False, "Insert", "tuple part", 5),
    "insert with an unknown kind": (b"I\0\0\0\1N\0\1x", False, "Insert", "kind of column 0 of the new tuple", 8),
    "insert with a negative count": (
        b"I\0\0\0\1N\xff\xff", False, "Insert", "number of columns of the new tuple", 6
    ),
    "insert with a negative length": (
        b"I\0\0\0\1N\0\1t\xff\xff\xff\xff", False, "Insert", "length of column 0 of the new tuple", 9
    ),
    "insert in a stream with xid 0": (b"I\0\0\0\0\0\0\0\1" + TUPLE, True, "Insert", "xid", 1),
    "update with a key and an old tuple": (
        b"U\0\0\0\1K\0\0O\0\0N\0\0", False, "Update", "tuple part", 8
    ),
    "update with an unknown part": (b"U\0\0\0\1X\0\0", False, "Update", "tuple part", 5),
    "delete with a new tuple": (b"D\0\0\0\1" + TUPLE, False, "Delete", "tuple part", 5),
    "delete with a key and an old tuple": (b"D\0\0\0\1K\0\0O\0\0", False, "Delete", "end", 8),
    "truncate of nothing": (b"T\0\0\0\0\0", False, "Truncate", "number of relations", 1),
    "truncate of a negative number": (b"T\xff\xff\xff\xff\0", False, "Truncate", "number of relations", 1),
    "truncate with unknown options": (b"T\0\0\0\1\4" + bytes(4), False, "Truncate", "option bits", 5),
    "truncate of fewer than counted": (b"T\x7f\xff\xff\xff\0" + bytes(4), False, "Truncate", "relation_oids", 6),
    "truncate of more than counted": (b"T\0\0\0\1\0" + bytes(8), False, "Truncate", "relation_oids", 6),
    "stream start of xid 0": (b"S" + bytes(5), False, "Stream Start", "xid", 1),
    "stream start with flag 2": (b"S\0\0\0\1\2", False, "Stream Start", "first_segment", 5),
    "stream stop with a field": (b"E\0", False, "Stream Stop", "end", 1),
    "stream commit with flags": (b"c\0\0\0\1\1" + bytes(24), False, "Stream Commit", "flags", 5),
    "stream abort with an LSN alone": (b"A" + b"\0\0\0\1" * 2 + bytes(8), False, "Stream Abort", "abort_time", 17),
    "begin prepare without an end": (
        b"b" + struct.pack("!QQqI", 1, 0, 0, 1) + b"\0", False, "Begin Prepare", "end_lsn", 9
    ),
    "prepare with flags": (b"P\1" + struct.pack("!QQqI", 1, 1, 0, 1) + b"\0", False, "Prepare", "flags", 1),
    "commit prepared without gid": (
        b"K\0" + struct.pack("!QQqI", 1, 1, 0, 1), False, "Commit Prepared", "gid", 30
    ),
    "rollback prepared with a second gid": (
        b"r\0" + struct.pack("!QQqqI", 1, 1, 0, 0, 1) + b"a\0b\0", False, "Rollback Prepared", "end", 40
    ),
    "stream prepare without an LSN": (
        b"p\0" + struct.pack("!QQqI", 0, 1, 0, 1) + b"\0", False, "Stream Prepare", "prepare_lsn", 2
    ),
}  # fmt: skip


@pytest.mark.parametrize(("payload", "in_stream", "name", "field", "offset"), REFUSED.values(), ids=list(REFUSED))
def test_the_error_names_message_field_and_offset(
    payload: bytes, in_stream: bool, name: str, field: str, offset: int
) -> None:
    with pytest.raises(PgOutputError) as caught:
        decode(payload, in_stream=in_stream, protocol_version=4)
    error = caught.value
    assert (error.message_name, error.field, error.offset) == (name, field, offset)
    assert error.expected in str(error) and error.actual in str(error)
    assert error.hint
    assert issubclass(PgOutputError, StopForOperator)


def test_neither_errors_nor_reprs_hold_row_values() -> None:
    row = write(Insert(None, 1, (Text(SECRET), Text(SECRET))))
    message = write(Message(None, True, Lsn(1), "prefix", SECRET))
    for payload in (row, message):
        assert SECRET.decode() not in repr(decode(payload, in_stream=False, protocol_version=1))
        for size in range(len(payload)):
            with pytest.raises(PgOutputError) as caught:
                decode(payload[:size], in_stream=False, protocol_version=1)
            assert SECRET.decode() not in str(caught.value)
    with pytest.raises(PgOutputError) as caught:
        decode(row[:7] + b"\2" + row[8:] + SECRET, in_stream=False, protocol_version=1)
    assert SECRET.decode() not in str(caught.value)


def test_an_empty_namespace_is_pg_catalog() -> None:
    relation = decode(b"R\0\0\0\7\0pg_class\0n\0\0", in_stream=False, protocol_version=1)
    assert relation == Relation(None, 7, "pg_catalog", "pg_class", ReplicaIdentity.NOTHING, ())
    assert decode(b"Y\0\0\0\7\0int4\0", in_stream=False, protocol_version=1) == Type(None, 7, "pg_catalog", "int4")


def test_times_count_from_1970() -> None:
    payload = b"B" + struct.pack("!QqI", 5, 1, 9)
    assert decode(payload, in_stream=False, protocol_version=1) == Begin(Lsn(5), 946_684_800_000_001, 9)


@pytest.mark.parametrize("time", [-(1 << 63), (1 << 63) - 1], ids=["-infinity", "infinity"])
def test_infinite_times_stay_infinite(time: int) -> None:
    payload = b"B" + struct.pack("!QqI", 5, time, 9)
    assert decode(payload, in_stream=False, protocol_version=1) == Begin(Lsn(5), time, 9)


@pytest.mark.parametrize("edge", [-211_813_488_000_000_000, (1 << 63) - 2 - PG_EPOCH], ids=["first", "last"])
def test_the_calendar_ends_where_it_ends(edge: int) -> None:
    """Julian day 0, and the last microsecond that is not infinity when counted from 1970."""
    payload = b"B" + struct.pack("!QqI", 5, edge, 9)
    assert decode(payload, in_stream=False, protocol_version=1) == Begin(Lsn(5), edge + PG_EPOCH, 9)
    beyond = edge + 1 if edge > 0 else edge - 1
    with pytest.raises(PgOutputError):
        decode(b"B" + struct.pack("!QqI", 5, beyond, 9), in_stream=False, protocol_version=1)


@given(data=st.data(), before=st.binary(max_size=9), behind=st.binary(max_size=9))
def test_the_short_way_reads_bounds_as_decode_does(data: st.DataObject, before: bytes, behind: bytes) -> None:
    """Or leaves them to it: whole, cut, lengthened, and with a byte that was changed."""
    payload = bytearray(write(data.draw(messages_of(Begin, False) | messages_of(Commit, False))))
    if data.draw(st.booleans()):
        payload[data.draw(st.integers(1, len(payload) - 1))] = data.draw(st.integers(0, 255))
    whole = before + payload + behind
    end = len(before) + len(payload) + data.draw(st.integers(-1, 1))
    assume(len(before) < end <= len(whole))
    read = begin_at if payload[0] == ord("B") else commit_at
    found = read(whole, len(before), end)
    try:
        message = decode(whole[len(before) : end], in_stream=False, protocol_version=4)
    except PgOutputError:
        assert found is None
        return
    assert isinstance(message, Begin | Commit)
    if isinstance(message, Begin):
        expected = (message.commit_lsn, message.commit_time, message.xid)
    else:
        expected = (message.commit_lsn, message.end_lsn, message.commit_time)
    lsns = (expected[0],) if isinstance(message, Begin) else expected[:2]
    if max(lsns) < 1 << 63 and FIRST_TIME <= message.commit_time - PG_EPOCH <= LAST_TIME:
        assert found == expected
    else:
        assert found is None


def test_an_update_may_carry_no_identity_a_key_or_an_old_tuple() -> None:
    new = (Text(b"x"),)
    head = b"U\0\0\0\1"
    assert decode(head + TUPLE, in_stream=False, protocol_version=1) == Update(None, 1, None, None, new)
    assert decode(head + b"K\0\1n" + TUPLE, in_stream=False, protocol_version=1) == Update(None, 1, (None,), None, new)
    assert decode(head + b"O\0\1n" + TUPLE, in_stream=False, protocol_version=1) == Update(None, 1, None, (None,), new)
    assert decode(b"D\0\0\0\1O\0\1n", in_stream=False, protocol_version=1) == Delete(None, 1, None, (None,))


@pytest.mark.parametrize(("options", "cascade", "restart"), [(0, False, False), (1, True, False), (2, False, True)])
def test_truncate_options_are_cascade_and_restart_identity(options: int, cascade: bool, restart: bool) -> None:
    payload = b"T\0\0\0\1" + bytes([options]) + b"\0\0\0\7"
    assert decode(payload, in_stream=False, protocol_version=1) == Truncate(None, (7,), cascade, restart)


@given(count=st.integers(1, (1 << 31) - 1))
@example((1 << 31) - 1)
def test_a_count_that_lies_costs_no_memory(count: int) -> None:
    """Would be 16 GB for the largest one if it were believed."""
    with pytest.raises(PgOutputError):
        decode(b"T" + struct.pack("!i", count) + b"\0\0\0", in_stream=False, protocol_version=1)
