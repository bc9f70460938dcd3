"""Logical messages that are too large or not wanted: what the rest of their transaction looks
like."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from gateway.errors import StopForOperator
from gateway.names import HEARTBEAT_PREFIX
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare
from gateway.transactions.machine import RolledBackMessages
from gateway.transactions.transaction import CHUNK_PREFIX, COMMAND_PREFIX, ExcludedMessage, MessageSelection
from schemas.lsn import Lsn
from schemas.markers import ExcludedRelation
from tests.transactions.stream import RELATION_OID, Stream

TIME = 1_700_000_000_000_000
LARGE = 900_000_000
REASON = "larger than kafka.max_record_bytes"


def head(prefix: str = "p", *, transactional: bool = True, xid: int | None = None) -> bytes:
    """The first bytes of a Message."""
    stream_xid = b"" if xid is None else struct.pack("!I", xid)
    return b"M" + stream_xid + struct.pack("!BQ", transactional, 77) + prefix.encode() + b"\0" + bytes(50)


def message(prefix: str = "p", *, transactional: bool = True, content: bytes = b"c") -> Message:
    return Message(None, transactional, Lsn(77), prefix, content)


def excluded(event_count: int = 1, prefix: str = "p") -> list[ExcludedRelation]:
    return [ExcludedRelation(0, "", prefix, "cdc.message", REASON, event_count)]


@pytest.mark.parametrize("drained", [True, False])
def test_a_message_that_is_too_large_is_marked_and_takes_no_ordinal(drained: bool) -> None:
    stream = Stream()
    stream.messages.is_full = True
    stream.receive(Begin(Lsn(1000), TIME, 5))
    for _ in range(2):
        if drained:
            stream.drained(head(), LARGE)
        else:
            stream.receive(message())
    stream.row()
    stream.receive(Commit(0, Lsn(1000), Lsn(1040), TIME))
    begin, commit = stream.machine.take_markers()
    assert (begin.kind, commit.kind) == ("BEGIN", "COMMIT")
    assert commit.manifest is not None
    assert (commit.manifest.event_count, commit.manifest.schema_ids) == (1, [7])
    assert commit.manifest.excluded == excluded(2)
    assert [event.ordinal for event in stream.rows.events] == [0]
    assert stream.messages.events == []
    assert stream.left_out == [ExcludedMessage(5, 77, "p", LARGE if drained else 1)] * 2


def test_a_transaction_of_nothing_but_a_large_message_leaves_a_trace() -> None:
    stream = Stream()
    stream.receive(Begin(Lsn(1000), TIME, 5))
    stream.drained(head(), LARGE)
    stream.receive(Commit(0, Lsn(1000), Lsn(1040), TIME))
    commit = stream.machine.take_markers()[-1]
    assert commit.manifest is not None
    assert (commit.manifest.event_count, commit.manifest.ranges, commit.manifest.excluded) == (0, {}, excluded())
    assert stream.machine.resume_lsn == 1040


def test_a_prepared_transaction_keeps_the_trace_up_to_its_end() -> None:
    stream = Stream()
    stream.receive(BeginPrepare(Lsn(1000), Lsn(1040), TIME, 4, "gid"))
    stream.drained(head(), LARGE)
    stream.receive(Prepare(0, Lsn(1000), Lsn(1040), TIME, 4, "gid"))
    stream.receive(CommitPrepared(0, Lsn(2000), Lsn(2040), TIME, 4, "gid"))
    markers = stream.machine.take_markers()
    assert [marker.kind for marker in markers] == ["BEGIN_PREPARE", "PREPARE", "COMMIT_PREPARED"]
    assert all(marker.manifest is not None and marker.manifest.excluded == excluded() for marker in markers[1:])


@pytest.mark.parametrize("drained", [True, False])
def test_a_large_message_of_no_transaction_is_told_and_passed(drained: bool) -> None:
    stream = Stream()
    stream.messages.is_full = True
    if drained:
        stream.drained(head(transactional=False), LARGE)
    else:
        stream.receive(message(transactional=False))
    assert stream.left_out == [ExcludedMessage(0, 77, "p", LARGE if drained else 1)]
    assert stream.machine.resume_lsn == 77
    assert stream.kinds() == [] and stream.messages.events == []


def test_in_a_stream_the_head_has_an_xid_more() -> None:
    stream = Stream()
    stream.receive(StreamStart(10, True))
    stream.drained(head(xid=10), LARGE)
    stream.receive(StreamStop())
    stream.receive(StreamCommit(10, 0, Lsn(1000), Lsn(1040), TIME))
    markers = stream.machine.take_markers()
    assert [marker.kind for marker in markers] == ["STREAM_START", "STREAM_STOP", "STREAM_COMMIT"]
    assert markers[-1].manifest is not None and markers[-1].manifest.excluded == excluded()


def test_a_large_message_of_a_savepoint_that_is_rolled_back_is_in_doubt_like_a_small_one() -> None:
    stream = Stream()
    stream.receive(StreamStart(10, True))
    stream.drained(head(xid=10), LARGE)
    stream.receive(StreamStop())
    with pytest.raises(RolledBackMessages):
        stream.receive(StreamAbort(10, 11, None, None))


def test_only_messages_with_a_prefix_of_the_list_are_published() -> None:
    stream = Stream(message_prefixes=("mine",))
    stream.receive(Begin(Lsn(1000), TIME, 5))
    stream.receive(message("other"))
    stream.drained(head("other"), LARGE)
    stream.receive(Commit(0, Lsn(1000), Lsn(1040), TIME))
    stream.receive(message("other", transactional=False))
    assert stream.kinds() == [] and stream.left_out == [] and stream.messages.events == []
    assert stream.machine.resume_lsn == 1040
    stream.receive(Begin(Lsn(2000), TIME, 6))
    stream.receive(message("mine"))
    stream.receive(Commit(0, Lsn(2000), Lsn(2040), TIME))
    assert [event.ordinal for event in stream.messages.events] == [0]
    assert stream.kinds() == ["BEGIN", "COMMIT"]


@pytest.mark.parametrize(
    ("prefixes", "heartbeats_only", "taken"),
    [
        ((), False, {"any"}),
        (("any", HEARTBEAT_PREFIX), False, {"any", HEARTBEAT_PREFIX}),
        ((CHUNK_PREFIX,), False, set()),
        (("any",), True, set()),
    ],
)
def test_what_gateways_tell_each_other_is_never_published(
    prefixes: tuple[str, ...], heartbeats_only: bool, taken: set[str]
) -> None:
    never: Any = None
    topic = MessageSelection(never, frozenset(prefixes), heartbeats_only)
    assert {name for name in ("any", HEARTBEAT_PREFIX, CHUNK_PREFIX, COMMAND_PREFIX) if topic.takes(name)} == taken


def test_messages_that_are_not_published_are_in_no_doubt() -> None:
    stream = Stream(message_prefixes=("mine",))
    stream.receive(StreamStart(10, True))
    stream.receive(Message(10, True, Lsn(77), "other", b""))
    stream.receive(StreamStop())
    stream.receive(StreamAbort(10, 11, None, None))


def test_a_prefix_as_large_as_a_message_is_cut() -> None:
    stream = Stream()
    stream.receive(Begin(Lsn(1000), TIME, 5))
    stream.drained(head("x" * 4000)[:3000], LARGE)
    stream.messages.is_full = True
    stream.receive(message("x" * 5000))
    stream.receive(Commit(0, Lsn(1000), Lsn(1040), TIME))
    commit = stream.machine.take_markers()[-1]
    assert commit.manifest is not None and commit.manifest.excluded == excluded(2, "x" * 100)


@pytest.mark.parametrize("subxid", [None, 11])
def test_a_row_that_is_too_large_to_be_held_names_its_table(subxid: int | None) -> None:
    stream = Stream()
    if subxid is None:
        stream.receive(Begin(Lsn(1000), TIME, 5))
        payload = b"U" + struct.pack("!I", RELATION_OID)
    else:
        stream.receive(StreamStart(10, True))
        payload = b"U" + struct.pack("!II", subxid, RELATION_OID)
    with pytest.raises(StopForOperator, match=r"cdc\.public\.t .* 900000000 bytes"):
        stream.drained(payload + b"N" + bytes(4000), LARGE)
