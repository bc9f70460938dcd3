"""Begin, Commit, Origin: the bounds of a transaction that is sent after its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from librt.strings import read_i32_be, read_i64_be

from gateway.pgoutput.cursor import FIRST_TIME, LAST_TIME, PG_EPOCH, Cursor
from schemas.lsn import Lsn

_BEGIN_LENGTH: Final = 1 + 8 + 8 + 4
_COMMIT_LENGTH: Final = 1 + 1 + 8 + 8 + 8
_UNSIGNED: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Begin:
    """'B': "Identifies the message as a begin message." """

    commit_lsn: Lsn
    """ "The final LSN of the transaction." This is the LSN of its Commit (`proto.c`: final_lsn),
    not the end LSN."""
    commit_time: int
    """ "Commit timestamp of the transaction." Here it is in microseconds since the Unix epoch."""
    xid: int
    """ "Xid of the transaction." """


@dataclass(frozen=True, slots=True)
class Commit:
    """'C': "Identifies the message as a commit message." """

    flags: int
    """ "Flags; currently unused." They are always 0."""
    commit_lsn: Lsn
    """ "The LSN of the commit." """
    end_lsn: Lsn
    """ "The end LSN of the transaction." This is the LSN to acknowledge."""
    commit_time: int
    """ "Commit timestamp of the transaction." Here it is in microseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Origin:
    """'O': "Identifies the message as an origin message."

    "Note that there can be multiple Origin messages inside a single transaction."
    """

    origin_lsn: Lsn
    """ "The LSN of the commit on the origin server." It is 0/0 while the transaction is in
    progress."""
    name: str
    """ "Name of the origin." """


def begin_at(data: bytes, position: int, end: int) -> tuple[int, int, int] | None:
    """Return commit_lsn, commit_time and xid of the Begin at data[position:end]. Return None for an
    unusual or invalid message, which is left to `decode`.

    This function creates no message object and takes 0.5 us, while `decode` takes 3 us. The
    difference counts because a small transaction consists mostly of its Begin and Commit.
    """
    if end - position != _BEGIN_LENGTH:
        return None
    commit_lsn: int = read_i64_be(data, position + 1)
    commit_time: int = read_i64_be(data, position + 9)
    xid: int = read_i32_be(data, position + 17)
    if commit_lsn <= 0 or not FIRST_TIME <= commit_time <= LAST_TIME:
        return None
    return commit_lsn, commit_time + PG_EPOCH, xid & _UNSIGNED


def commit_at(data: bytes, position: int, end: int) -> tuple[int, int, int] | None:
    """Return commit_lsn, end_lsn and commit_time of the Commit at data[position:end]. Return None
    for an unusual or invalid message, as `begin_at` does."""
    if end - position != _COMMIT_LENGTH or data[position + 1]:
        return None
    commit_lsn: int = read_i64_be(data, position + 2)
    end_lsn: int = read_i64_be(data, position + 10)
    commit_time: int = read_i64_be(data, position + 18)
    if commit_lsn < 0 or end_lsn < 0 or not FIRST_TIME <= commit_time <= LAST_TIME:
        return None
    return commit_lsn, end_lsn, commit_time + PG_EPOCH


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
