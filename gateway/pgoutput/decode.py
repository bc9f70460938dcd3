"""Decode the bytes of one pgoutput message into its dataclass, without state or I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.pgoutput import letters
from gateway.pgoutput.cursor import Cursor
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.logical_message import Message, read_message
from gateway.pgoutput.relation import Relation, Type, read_relation, read_type
from gateway.pgoutput.row import Delete, Insert, Truncate, Update, read_delete, read_insert, read_truncate, read_update
from gateway.pgoutput.stream import (
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    read_stream_abort,
    read_stream_commit,
    read_stream_start,
    read_stream_stop,
)
from gateway.pgoutput.transaction import Begin, Commit, Origin, read_begin, read_commit, read_origin
from gateway.pgoutput.two_phase import (
    BeginPrepare,
    CommitPrepared,
    Prepare,
    RollbackPrepared,
    StreamPrepare,
    read_begin_prepare,
    read_commit_prepared,
    read_prepare,
    read_rollback_prepared,
    read_stream_prepare,
)

PgOutputMessage = (
    Begin
    | Message
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)

# The name in the manual and the reader of each type of message that has the same layout inside and
# outside a stream segment.
_FIXED: Final[dict[int, tuple[str, Callable[[Cursor], PgOutputMessage]]]] = {
    letters.BEGIN: ("Begin", read_begin),
    letters.COMMIT: ("Commit", read_commit),
    letters.ORIGIN: ("Origin", read_origin),
    letters.STREAM_START: ("Stream Start", read_stream_start),
    letters.STREAM_STOP: ("Stream Stop", read_stream_stop),
    letters.STREAM_COMMIT: ("Stream Commit", read_stream_commit),
    letters.BEGIN_PREPARE: ("Begin Prepare", read_begin_prepare),
    letters.PREPARE: ("Prepare", read_prepare),
    letters.COMMIT_PREPARED: ("Commit Prepared", read_commit_prepared),
    letters.ROLLBACK_PREPARED: ("Rollback Prepared", read_rollback_prepared),
    letters.STREAM_PREPARE: ("Stream Prepare", read_stream_prepare),
}
# The messages that begin with the xid of the (sub)transaction inside a stream segment, and only
# there.
_WITH_STREAM_XID: Final[dict[int, tuple[str, Callable[[Cursor, bool], PgOutputMessage]]]] = {
    letters.MESSAGE: ("Message", read_message),
    letters.RELATION: ("Relation", read_relation),
    letters.TYPE: ("Type", read_type),
    letters.INSERT: ("Insert", read_insert),
    letters.UPDATE: ("Update", read_update),
    letters.DELETE: ("Delete", read_delete),
    letters.TRUNCATE: ("Truncate", read_truncate),
}
MESSAGE_NAMES: Final[dict[int, str]] = {
    letter: name for letter, (name, _) in (*_FIXED.items(), *_WITH_STREAM_XID.items())
} | {letters.STREAM_ABORT: "Stream Abort"}
"""Names of the messages in the manual."""

# The lowest proto_version whose stream can contain the message; 1 if it is not listed.
_SINCE_VERSION: Final[dict[int, int]] = dict.fromkeys(
    (letters.STREAM_START, letters.STREAM_STOP, letters.STREAM_COMMIT, letters.STREAM_PREPARE), 2
)


def decode(payload: bytes, *, in_stream: bool, protocol_version: int) -> PgOutputMessage:
    """Decode one whole message, the payload of an XLogData. Raises PgOutputError and nothing else.

    `in_stream` tells whether the message is between Stream Start and Stream Stop, where seven types
    of messages have an additional xid field. `protocol_version` is the `proto_version` of
    START_REPLICATION, 1 to 4. Stream Start, Stop, Commit and Prepare are rejected below version 2,
    and the LSN and time of a Stream Abort below version 4. Other versions that the manual states
    are not enforced, because servers do send

    * two-phase messages in version 1, if the slot was created with two_phase, whatever the options
      are (`pgoutput_startup`: "It remains enabled if the previous start-up has done so"; seen on 15
      and 18);
    * Stream Abort in version 1, without streaming: PostgreSQL 18 drops a transaction that it sees
      rolled back, and in doing so marks its subtransactions as streamed (seen on 18.6;
      tests/golden, stream_abort_alone).

    Source: PostgreSQL manual, 55.9 Logical Replication Message Formats.
    """
    if not payload:
        raise PgOutputError("message", "type", 0, "1 byte", "an empty message")
    letter = payload[0]
    if protocol_version < _SINCE_VERSION.get(letter, 1):
        raise PgOutputError(
            f"message {chr(letter)}", "type", 0, f"a message of protocol version {protocol_version}",
            f"one of version {_SINCE_VERSION[letter]}",
        )  # fmt: skip
    message: PgOutputMessage
    if letter in _FIXED:
        name, read_fixed = _FIXED[letter]
        cursor = Cursor(payload, 1, name)
        message = read_fixed(cursor)
    elif letter in _WITH_STREAM_XID:
        name, read_with_xid = _WITH_STREAM_XID[letter]
        cursor = Cursor(payload, 1, name)
        message = read_with_xid(cursor, in_stream)
    elif letter == letters.STREAM_ABORT:
        cursor = Cursor(payload, 1, MESSAGE_NAMES[letter])
        message = read_stream_abort(cursor, protocol_version)
    else:
        raise PgOutputError("message", "type", 0, "a known message type", f"0x{letter:02x}")
    cursor.finish()
    return message
