"""Begin Prepare, Prepare, Commit Prepared, Rollback Prepared, Stream Prepare ("available since
protocol version 3")."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pgoutput.cursor import Cursor
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """'b': "Identifies the message as the beginning of a prepared transaction message." """

    prepare_lsn: Lsn
    """ "The LSN of the prepare." """
    end_lsn: Lsn
    """ "The end LSN of the prepared transaction." """
    prepare_time: int
    """ "Prepare timestamp of the transaction." Here, like all times below, it is in microseconds
    since the Unix epoch."""
    xid: int
    """ "Xid of the transaction." """
    gid: str
    """ "The user defined GID of the prepared transaction." It may be reused after the transaction
    has ended."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """'P': "Identifies the message as a prepared transaction message." """

    flags: int
    """ "Flags; currently unused." They are always 0."""
    prepare_lsn: Lsn
    """ "The LSN of the prepare." """
    end_lsn: Lsn
    """ "The end LSN of the prepared transaction." This is the LSN to acknowledge."""
    prepare_time: int
    """ "Prepare timestamp of the transaction." """
    xid: int
    """ "Xid of the transaction." """
    gid: str
    """ "The user defined GID of the prepared transaction." """


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """'K': "Identifies the message as the commit of a prepared transaction message." """

    flags: int
    """ "Flags; currently unused." They are always 0."""
    commit_lsn: Lsn
    """ "The LSN of the commit of the prepared transaction." """
    end_lsn: Lsn
    """ "The end LSN of the commit of the prepared transaction." This is the LSN to acknowledge."""
    commit_time: int
    """ "Commit timestamp of the transaction." """
    xid: int
    """ "Xid of the transaction." """
    gid: str
    """ "The user defined GID of the prepared transaction." """


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """'r': "Identifies the message as the rollback of a prepared transaction message." """

    flags: int
    """ "Flags; currently unused." They are always 0."""
    prepare_end_lsn: Lsn
    """ "The end LSN of the prepared transaction." """
    rollback_end_lsn: Lsn
    """ "The end LSN of the rollback of the prepared transaction." This is the LSN to
    acknowledge."""
    prepare_time: int
    """ "Prepare timestamp of the transaction." """
    rollback_time: int
    """ "Rollback timestamp of the transaction." """
    xid: int
    """ "Xid of the transaction." """
    gid: str
    """ "The user defined GID of the prepared transaction." """


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """'p': "Identifies the message as a stream prepared transaction message." """

    flags: int
    """ "Flags; currently unused." They are always 0."""
    prepare_lsn: Lsn
    """ "The LSN of the prepare." """
    end_lsn: Lsn
    """ "The end LSN of the prepared transaction." This is the LSN to acknowledge."""
    prepare_time: int
    """ "Prepare timestamp of the transaction." """
    xid: int
    """ "Xid of the transaction." """
    gid: str
    """ "The user defined GID of the prepared transaction." """


def _read_prepared(cursor: Cursor) -> tuple[Lsn, Lsn, int, int, str]:
    """Read the fields that a prepared transaction has in all messages: prepare_lsn, end_lsn,
    prepare_time, xid and gid."""
    return (
        cursor.read_set_lsn("prepare_lsn"),
        cursor.read_set_lsn("end_lsn"),
        cursor.read_time("prepare_time"),
        cursor.read_uint32("xid"),
        cursor.read_string("gid"),
    )


def read_begin_prepare(cursor: Cursor) -> BeginPrepare:
    return BeginPrepare(*_read_prepared(cursor))


def read_prepare(cursor: Cursor) -> Prepare:
    return Prepare(cursor.read_unused_flags(), *_read_prepared(cursor))


def read_commit_prepared(cursor: Cursor) -> CommitPrepared:
    return CommitPrepared(
        flags=cursor.read_unused_flags(),
        commit_lsn=cursor.read_set_lsn("commit_lsn"),
        end_lsn=cursor.read_set_lsn("end_lsn"),
        commit_time=cursor.read_time("commit_time"),
        xid=cursor.read_uint32("xid"),
        gid=cursor.read_string("gid"),
    )


def read_rollback_prepared(cursor: Cursor) -> RollbackPrepared:
    return RollbackPrepared(
        flags=cursor.read_unused_flags(),
        prepare_end_lsn=cursor.read_set_lsn("prepare_end_lsn"),
        rollback_end_lsn=cursor.read_set_lsn("rollback_end_lsn"),
        prepare_time=cursor.read_time("prepare_time"),
        rollback_time=cursor.read_time("rollback_time"),
        xid=cursor.read_uint32("xid"),
        gid=cursor.read_string("gid"),
    )


def read_stream_prepare(cursor: Cursor) -> StreamPrepare:
    return StreamPrepare(cursor.read_unused_flags(), *_read_prepared(cursor))
