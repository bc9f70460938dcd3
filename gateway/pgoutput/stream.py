"""Stream Start, Stop, Commit, Abort: transactions in progress ("available since protocol version
2")."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pgoutput.cursor import Cursor
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class StreamStart:
    """'S': "Identifies the message as a stream start message." Until Stream Stop, rows contain an
    xid."""

    xid: int
    """ "Xid of the transaction." It is the xid of the top-level transaction."""
    first_segment: bool
    """ "A value of 1 indicates this is the first stream segment for this XID, 0 for any other
    stream segment." """


@dataclass(frozen=True, slots=True)
class StreamStop:
    """'E': "Identifies the message as a stream stop message." It has no fields."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """'c': "Identifies the message as a stream commit message." """

    xid: int
    """ "Xid of the transaction." """
    flags: int
    """ "Flags; currently unused." They are always 0."""
    commit_lsn: Lsn
    """ "The LSN of the commit." """
    end_lsn: Lsn
    """ "The end LSN of the transaction." This is the LSN to acknowledge."""
    commit_time: int
    """ "Commit timestamp of the transaction." Here it is in microseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """'A': "Identifies the message as a stream abort message." """

    xid: int
    """ "Xid of the transaction." """
    subxid: int
    """ "Xid of the subtransaction (will be same as xid of the transaction for top-level
    transactions)." """
    abort_lsn: Lsn | None
    """ "The LSN of the abort. This field is available since protocol version 4." It is only sent
    with streaming=parallel."""
    abort_time: int | None
    """ "Abort timestamp of the transaction. This field is available since protocol version 4." It
    is present if `abort_lsn` is; here it is in microseconds since the Unix epoch."""


def read_stream_start(cursor: Cursor) -> StreamStart:
    return StreamStart(xid=cursor.read_stream_xid(), first_segment=cursor.read_flag("first_segment"))


def read_stream_stop(cursor: Cursor) -> StreamStop:
    return StreamStop()


def read_stream_commit(cursor: Cursor) -> StreamCommit:
    return StreamCommit(
        xid=cursor.read_stream_xid(),
        flags=cursor.read_unused_flags(),
        commit_lsn=cursor.read_lsn("commit_lsn"),
        end_lsn=cursor.read_lsn("end_lsn"),
        commit_time=cursor.read_time("commit_time"),
    )


def read_stream_abort(cursor: Cursor, protocol_version: int) -> StreamAbort:
    """Read a Stream Abort. Only the length of the message shows whether it contains the LSN and the
    time."""
    xid = cursor.read_stream_xid()
    subxid = cursor.read_uint32("subxid")
    if protocol_version < 4 or not cursor.remaining():
        return StreamAbort(xid, subxid, abort_lsn=None, abort_time=None)
    return StreamAbort(xid, subxid, abort_lsn=cursor.read_lsn("abort_lsn"), abort_time=cursor.read_time("abort_time"))
