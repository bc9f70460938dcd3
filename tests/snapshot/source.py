"""A table of PostgreSQL as far as a snapshot of it is concerned: versions in blocks, visibility,
locks, and the WAL.

* Versions of rows lie in blocks. An UPDATE may move a row to any of them.
* A commit is in the WAL, and so in the stream, before it is visible: `commit`, then at some time
  `show`. Row locks, the locks of TRUNCATE and those of readers are held until then.
* `big` is TOASTed: an UPDATE that does not touch it sends UNCHANGED.
* Transactions may be streamed while open, prepared, rolled back. Ids have 64 bits and begin just
  below 2^32; the wire has 32.
* A table may be published only later: changes from before that are not sent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gateway.snapshot.rules.visibility import Visibility

FIRST_XID = (1 << 32) - 12
BLOCKS = 8
KEYS = 14
MOVED = 20
"""Added to a key by a change of key."""


class Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()
Big = tuple[int, ...]
Row = tuple[int, Big | Unchanged | None]


@dataclass(frozen=True, slots=True)
class Change:
    op: str
    """INSERT, UPDATE, DELETE or TRUNCATE."""
    old_key: int = 0
    key: int = 0
    row: Row = (0, None)


@dataclass(frozen=True, slots=True)
class Entry:
    """Of the WAL. `kind`: commit, segment, stream commit, stream abort, prepare, commit prepared,
    rollback prepared, mark."""

    kind: str
    xid: int
    changes: tuple[Change, ...] = ()
    mark: str = ""

    @property
    def wire_xid(self) -> int:
        return self.xid & 0xFFFFFFFF


@dataclass(slots=True)
class Version:
    made: int
    gone: int | None
    n: int
    big: Big
    block: int
    filenode: int


@dataclass(slots=True)
class Open:
    """A transaction that has not ended."""

    changes: list[Change] = field(default_factory=list)
    streamed: list[Change] | None = None
    prepared: bool = False
    has_changed: bool = False
    """It has changed the table, whether or not that is sent."""
    is_ours: bool = False
    """It is the gateway's: it reads a chunk, or emits a mark."""


class Source:
    def __init__(self, generator: random.Random, *, is_published: bool = True) -> None:
        self.random = generator
        self.is_published = is_published
        self.wal: list[Entry] = []
        self.next_xid = FIRST_XID
        self.ended: set[int] = {FIRST_XID - 1}
        self.open: dict[int, Open] = {}
        self.committing: list[int] = []
        self.row_locks: dict[int, int] = {}
        self.table_locks: dict[int, str] = {}
        self.filenode = 1
        self.versions: dict[int, list[Version]] = {}
        for key in range(KEYS - 2):
            version = Version(FIRST_XID - 1, None, key, (key, 0), self._block(), 1)
            self.versions[key] = [version]

    def _block(self) -> int:
        return self.random.randrange(BLOCKS)

    def new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1

    def roll_back_new(self) -> int:
        """A transaction id of now: those that began before have lower ones."""
        xid = self.new_xid()
        self.ended.add(xid)
        return xid

    def snapshot(self) -> Visibility:
        """As GetSnapshotData: xmax is behind the newest that has ended, not behind the newest there
        is."""
        xmax = max(self.ended) + 1
        running = {xid for xid in (*self.open, *self.committing) if xid < xmax}
        return Visibility(min(running, default=xmax), xmax, frozenset(running))

    def rows(self, visibility: Visibility, own: int | None = None) -> dict[int, Version]:
        """What a snapshot sees, by key."""

        def seen(xid: int) -> bool:
            return xid == own or (visibility.sees(xid) and xid in self.ended)

        return {
            key: version
            for key, versions in self.versions.items()
            for version in versions
            if version.filenode == self.filenode and seen(version.made)
            if not (version.gone is not None and seen(version.gone))
        }

    def truth(self) -> dict[int, tuple[int, Big]]:
        everything = Visibility(self.next_xid, self.next_xid)
        return {key: (version.n, version.big) for key, version in self.rows(everything).items()}

    # -- transactions
    # -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.open[self.new_xid()] = Open()

    def _some_open(self) -> int | None:
        found = [xid for xid, each in self.open.items() if not each.prepared and not each.is_ours]
        return self.random.choice(found) if found else None

    def change(self) -> None:
        """One row of one transaction, where no lock is in the way."""
        xid = self._some_open()
        key = self.random.randrange(KEYS)
        if xid is None or self.row_locks.get(key, xid) != xid or self._is_locked_by_others(xid):
            return
        latest = self.snapshot_of(xid)
        now = latest.get(key)
        self.row_locks[key] = xid
        moved = key + MOVED
        if now is None:
            self._insert(xid, key, self.random.randrange(1000), (key, xid))
        elif self.random.random() < 0.2:
            now.gone = xid
            self._log(xid, Change("DELETE", key, key))
        elif self.random.random() < 0.25 and self.row_locks.get(moved, xid) == xid and moved not in latest:
            self.row_locks[moved] = xid
            self._update(xid, now, key, moved)
        else:
            self._update(xid, now, key, key)

    def snapshot_of(self, xid: int) -> dict[int, Version]:
        """What a statement of this transaction sees: READ COMMITTED."""
        return self.rows(self.snapshot(), xid)

    def _insert(self, xid: int, key: int, n: int, big: Big) -> None:
        self.versions.setdefault(key, []).append(Version(xid, None, n, big, self._block(), self.filenode))
        self._log(xid, Change("INSERT", key, key, (n, big)))

    def _update(self, xid: int, now: Version, old_key: int, key: int) -> None:
        n = self.random.randrange(1000)
        touches = self.random.random() < 0.3
        big = (key, xid, self.random.randrange(9)) if touches else now.big
        now.gone = xid
        block = now.block if self.random.random() < 0.3 else self._block()
        self.versions.setdefault(key, []).append(Version(xid, None, n, big, block, self.filenode))
        self._log(xid, Change("UPDATE", old_key, key, (n, big if touches else UNCHANGED)))

    def _log(self, xid: int, change: Change) -> None:
        self.open[xid].has_changed = True
        if self.is_published:
            self.open[xid].changes.append(change)

    def stream(self) -> None:
        """Send what an open transaction has done so far; from then on it is a streamed one."""
        xid = self._some_open()
        if xid is not None and self.open[xid].changes:
            found = self.open[xid]
            self.wal.append(Entry("segment", xid, tuple(found.changes)))
            found.streamed = [*(found.streamed or ()), *found.changes]
            found.changes = []

    def commit(self) -> None:
        if not self.open:
            return
        xid = self.random.choice([x for x, each in self.open.items() if not each.is_ours] or [0])
        if not xid:
            return
        found = self.open[xid]
        if found.prepared:
            self._end(xid, "commit prepared")
        elif self.random.random() < 0.15 and not self.table_locks.get(xid):
            found.prepared = True
            self._send_rest(xid, found)
            self.wal.append(Entry("prepare", xid, () if found.streamed is not None else tuple(found.changes)))
        elif found.streamed is not None:
            self._send_rest(xid, found)
            self._end(xid, "stream commit")
        else:
            self._end(xid, "commit", tuple(found.changes))

    def _send_rest(self, xid: int, found: Open) -> None:
        if found.streamed is not None and found.changes:
            self.wal.append(Entry("segment", xid, tuple(found.changes)))

    def _end(self, xid: int, kind: str, changes: tuple[Change, ...] = (), mark: str = "") -> None:
        self.wal.append(Entry(kind, xid, changes, mark))
        del self.open[xid]
        self.committing.append(xid)

    def roll_back(self) -> None:
        xid = next((x for x, each in self.open.items() if not each.is_ours), None)
        if xid is None or self.table_locks.get(xid):
            return
        found = self.open.pop(xid)
        for versions in self.versions.values():
            versions[:] = [version for version in versions if version.made != xid]
            for version in versions:
                version.gone = None if version.gone == xid else version.gone
        if found.prepared:
            self.wal.append(Entry("rollback prepared", xid))
        elif found.streamed is not None:
            self.wal.append(Entry("stream abort", xid))
        self._release(xid)

    def show(self) -> None:
        """A commit gets visible, in no order."""
        if self.committing:
            self._release(self.committing.pop(self.random.randrange(len(self.committing))))

    def _release(self, xid: int) -> None:
        self.ended.add(xid)
        self.row_locks = {key: owner for key, owner in self.row_locks.items() if owner != xid}
        self.table_locks.pop(xid, None)

    # -- locks on the table
    # ------------------------------------------------------------------------------------------------

    def _is_locked_by_others(self, xid: int) -> bool:
        return any(mode == "exclusive" and owner != xid for owner, mode in self.table_locks.items())

    def _lock_exclusively(self) -> int | None:
        """ACCESS EXCLUSIVE: nobody reads or has changed the table."""
        if self.table_locks or any(each.has_changed for each in self.open.values()) or self.committing:
            return None
        xid = self.new_xid()
        self.open[xid] = Open()
        self.table_locks[xid] = "exclusive"
        return xid

    def truncate(self) -> None:
        xid = self._lock_exclusively()
        if xid is not None:
            self.filenode += 1
            self._end(xid, "commit", (Change("TRUNCATE"),) if self.is_published else ())

    def publish(self) -> None:
        """ALTER PUBLICATION ... ADD TABLE: transactions that have changed the table may be open."""
        self.is_published = True

    def rewrite(self) -> None:
        """VACUUM FULL: rows get other places, and no event tells of it."""
        xid = self._lock_exclusively()
        if xid is not None:
            kept = self.rows(self.snapshot())
            self.filenode += 1
            for version in kept.values():
                version.filenode, version.block = self.filenode, self._block()
            del self.open[xid]
            self.committing.append(xid)

    # -- readers
    # -------------------------------------------------------------------------------------------------------------

    def lock_for_reading(self) -> int | None:
        """A transaction with ACCESS SHARE; its snapshot is taken after it has the lock."""
        if any(mode == "exclusive" for mode in self.table_locks.values()):
            return None
        xid = self.begin_ours()
        self.table_locks[xid] = "reader"
        return xid

    def begin_ours(self) -> int:
        """A transaction of the gateway that has its id."""
        xid = self.new_xid()
        self.open[xid] = Open(is_ours=True)
        return xid

    def emit(self, mark: str, xid: int) -> None:
        """A logical message, and the commit."""
        self._end(xid, "mark", (), mark)

    def give_up(self, xid: int) -> None:
        del self.open[xid]
        self._release(xid)
