"""What real servers sent passes through the state machine: every recorded conversation is a legal
one and ends clean."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.pgoutput.decode import PgOutputMessage, decode
from gateway.pgoutput.letters import ROW_MESSAGES
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Relation
from gateway.pgoutput.stream import StreamAbort, StreamCommit
from gateway.pgoutput.transaction import Commit
from gateway.pgoutput.two_phase import CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from gateway.transactions.machine import RolledBackMessages
from gateway.transactions.native_record_writer import EventVersion
from tests.golden.recording import RecordedMessage, Recording, recordings
from tests.transactions.stream import RecordingEncoder, Stream

COMMITS = (Commit, StreamCommit, CommitPrepared)


def replay(recorded: Recording) -> tuple[Stream, list[PgOutputMessage]]:
    stream = Stream()
    messages = [replay_one(stream, raw, recorded.protocol_version) for raw in recorded.messages]
    return stream, messages


def replay_one(stream: Stream, raw: RecordedMessage, protocol_version: int) -> PgOutputMessage:
    assert stream.machine.in_stream == raw.in_stream
    message = decode(raw.payload, in_stream=raw.in_stream, protocol_version=protocol_version)
    if raw.payload[0] in ROW_MESSAGES:
        stream.machine.change(raw.payload, 0, len(raw.payload), raw.change_lsn)
    elif isinstance(message, Relation):
        encoder: Any = RecordingEncoder()
        version = EventVersion(message.name, 7, encoder, stream.rows)
        stream.machine.announce(message.relation_oid, message.xid, version)
    else:
        stream.machine.receive(message, raw.change_lsn)
    return message


def resume_lsn(message: PgOutputMessage) -> int:
    match message:
        case Commit() | StreamCommit() | CommitPrepared() | Prepare() | StreamPrepare():
            return message.end_lsn
        case RollbackPrepared():
            return message.rollback_end_lsn
        case Message(transactional=False):
            return message.message_lsn
        case _:
            return 0


def is_in_doubt(recorded: Recording) -> bool:
    """A subtransaction was rolled back after messages of its transaction had been streamed."""
    with_messages: set[int | None] = set()
    for raw in recorded.messages:
        message = decode(raw.payload, in_stream=raw.in_stream, protocol_version=recorded.protocol_version)
        match message:
            case Message(transactional=True) if raw.in_stream:
                with_messages.add(message.xid)
            case StreamAbort() if message.subxid != message.xid and message.xid in with_messages:
                return True
            case _:
                pass
    return False


@pytest.mark.parametrize("recorded", [one for one in recordings() if not is_in_doubt(one)], ids=lambda one: one.name)
def test_a_recorded_stream_ends_at_a_boundary_with_nothing_open(recorded: Recording) -> None:
    stream, messages = replay(recorded)
    machine = stream.machine
    assert machine.at_boundary and not machine.open_streams and not machine.prepared
    assert machine.transaction_count == sum(isinstance(message, COMMITS) for message in messages)
    assert machine.resume_lsn == max(map(resume_lsn, messages))


@pytest.mark.parametrize("recorded", [one for one in recordings() if is_in_doubt(one)], ids=lambda one: one.name)
def test_a_recorded_stream_whose_messages_are_in_doubt_is_read_again(recorded: Recording) -> None:
    with pytest.raises(RolledBackMessages, match="received again, with the streaming"):
        replay(recorded)
