"""Begin, Commit, Origin: the bounds of a transaction that is sent when it has committed."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.lsn import Lsn
from gateway.pgoutput.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Begin:
    """'B': "Identifies the message as a begin message." """

    commit_lsn: Lsn
    """ "The final LSN of the transaction." It is the LSN of its Commit (`proto.c`: final_lsn), not the end LSN."""
    commit_time: int
    """ "Commit timestamp of the transaction." Here in microseconds since the Unix epoch."""
    xid: int
    """ "Xid of the transaction." """


@dataclass(frozen=True, slots=True)
class Commit:
    """'C': "Identifies the message as a commit message." """

    flags: int
    """ "Flags; currently unused." Always 0."""
    commit_lsn: Lsn
    """ "The LSN of the commit." """
    end_lsn: Lsn
    """ "The end LSN of the transaction." The one to acknowledge."""
    commit_time: int
    """ "Commit timestamp of the transaction." Here in microseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Origin:
    """'O': "Identifies the message as an origin message."

    "Note that there can be multiple Origin messages inside a single transaction."
    """

    origin_lsn: Lsn
    """ "The LSN of the commit on the origin server." 0/0 while the transaction is in progress."""
    name: str
    """ "Name of the origin." """


def read_begin(cursor: Cursor) -> Begin:
    return Begin(
        commit_lsn=cursor.read_set_lsn("commit_lsn"),
        commit_time=cursor.read_time("commit_time"),
        xid=cursor.read_uint32("xid"),
    )


def read_commit(cursor: Cursor) -> Commit:
    return Commit(
        flags=cursor.read_unused_flags(),
        commit_lsn=cursor.read_lsn("commit_lsn"),
        end_lsn=cursor.read_lsn("end_lsn"),
        commit_time=cursor.read_time("commit_time"),
    )


def read_origin(cursor: Cursor) -> Origin:
    return Origin(origin_lsn=cursor.read_lsn("origin_lsn"), name=cursor.read_string("name"))
