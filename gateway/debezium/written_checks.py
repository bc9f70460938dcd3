"""Compute how far a connector's topics are ahead of its stored offset. A connector stores its
offset only after it has written the records, and may be killed in between.

Events are written in commit order, so the topics contain the first of the changes that the slot
still has. If the connector was killed, a partition may lack an event although another partition has
later ones. Only the changes before the first missing one count as written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from gateway.pgoutput import letters
from gateway.pgoutput.cursor import Cursor
from gateway.pgoutput.logical_message import read_message_head
from gateway.pgoutput.transaction import read_begin, read_commit
from gateway.startup.connect_offset import DebeziumOffset
from gateway.transactions.transaction import is_published
from schemas.lsn import Lsn

INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = "I", "U", "D", "T", "M"
CREATED, UPDATED, DELETED, TRUNCATED, TOMBSTONE, READ = "c", "u", "d", "t", "tombstone", "r"
_ROWS: Final = {ord(kind): kind for kind in (INSERT, UPDATE, DELETE)}

Place = tuple[int, int]
"""xid and LSN of a change. Rows of one COPY may share an LSN."""
Written = Mapping[Place, Counter[str]]
"""The number of records of each change, by operation, for the changes that do not precede the
offset."""


@dataclass(frozen=True, slots=True)
class Change:
    lsn: int
    kind: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that the slot still has. `changes` are the changes to published tables and the
    published logical messages, in their order. A TRUNCATE is one change for each table. A
    non-transactional message is a transaction of its own, with xid 0."""

    xid: int
    end_lsn: int
    changes: tuple[Change, ...]


def committed(
    rows: Iterable[tuple[int, bytes]], prefixes: Collection[str], *, skips_truncates: bool
) -> Iterator[Committed]:
    """Yield the transactions in `rows`. Each row is the LSN and the first bytes of a pgoutput
    message. `prefixes` are the values of source.message_prefixes."""
    xid, changes = 0, list[Change]()
    for lsn, head in rows:
        kind = head[0]
        if kind == letters.BEGIN:
            xid, changes = read_begin(Cursor(head, 1, "Begin")).xid, []
        elif kind == letters.COMMIT:
            yield Committed(xid, read_commit(Cursor(head, 1, "Commit")).end_lsn, tuple(changes))
        elif kind in _ROWS:
            changes.append(Change(lsn, _ROWS[kind]))
        elif kind == letters.TRUNCATE and not skips_truncates:
            changes += [Change(lsn, TRUNCATE)] * Cursor(head, 1, "Truncate").read_int32("number of relations")
        elif kind == letters.MESSAGE:
            message = read_message_head(head, False)
            if not is_published(message.prefix, prefixes):
                continue
            if message.transactional:
                changes.append(Change(lsn, MESSAGE))
            else:
                yield Committed(0, lsn, (Change(lsn, MESSAGE),))


def is_before(offset: DebeziumOffset, commit_lsn: int, lsn: int) -> bool:
    """Return whether an event precedes the offset. `commit_lsn` and `lsn` are the two parts of its
    `source.sequence`: the end LSN of the last commit before the event (0 if null), and the event's
    own LSN. If the offset is that of a commit, every transaction that commits later follows it,
    even if some of its changes have LSNs before that commit."""
    if not offset.written_xid:
        return commit_lsn < offset.commit_lsn
    return (commit_lsn, lsn) < (offset.commit_lsn, offset.lsn)


def is_read_before(offset: DebeziumOffset, commit_lsn: int, lsn: int) -> bool:
    """Return whether a row that a snapshot has read was written before the offset was stored. Its
    `source.sequence` says how far the connector had streamed, or at which LSN the snapshot was
    taken."""
    return is_before(offset, commit_lsn, lsn) or (offset.of_snapshot and lsn <= offset.lsn)


def advanced(
    offset: DebeziumOffset, transactions: Iterable[Committed], written: Written, *, tombstones: bool
) -> tuple[DebeziumOffset, int]:
    """Return the offset after the last change up to which all records were written, and the number
    of records between `offset` and the returned offset."""
    found, commit_lsn, count = offset, offset.commit_lsn, 0
    for transaction in transactions:
        if transaction.end_lsn <= offset.commit_lsn:
            continue
        for place, kinds in _places(transaction):
            records = written.get(place, Counter())
            is_whole = _is_whole(kinds, records, tombstones=tombstones)
            if 0 != transaction.xid == offset.written_xid and place[1] <= offset.lsn:
                if place[1] == offset.lsn and not is_whole:  # some rows of a COPY, or tables of a TRUNCATE
                    return offset, 0
                continue
            if not is_whole:
                return found, count
            count += records.total()
            # All rows at this LSN were written, and the next change has a greater LSN.
            found = DebeziumOffset(Lsn(place[1] + 1), commit_lsn, transaction.xid)
        commit_lsn = Lsn(transaction.end_lsn)
    return found, count


def _places(transaction: Committed) -> Iterator[tuple[Place, Counter[str]]]:
    for lsn, changes in groupby(transaction.changes, key=lambda change: change.lsn):
        yield (transaction.xid, lsn), Counter(change.kind for change in changes)


def _is_whole(kinds: Counter[str], records: Counter[str], *, tombstones: bool) -> bool:
    """Return whether all records of a change were written. An UPDATE that changes the key is
    written as a delete and a create. Logical messages never count as written, so they are written
    again."""
    moved = kinds[UPDATE] - records[UPDATED]
    return (
        not kinds[MESSAGE]
        and moved >= 0
        and records[CREATED] == kinds[INSERT] + moved
        and records[DELETED] == kinds[DELETE] + moved
        and records[TRUNCATED] == kinds[TRUNCATE]
        and (not tombstones or records[TOMBSTONE] == records[DELETED])
    )
