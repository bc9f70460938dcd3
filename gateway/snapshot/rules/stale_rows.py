"""Decides which rows of a chunk equal the source's rows where the chunk commits, by three rules:

    V (visibility)   a row is stale, and read again, if its key was changed by a transaction that
                     was received and that the chunk's PostgreSQL snapshot does not see
    T (TOAST)        while blocks are read, the key of an UPDATE that left TOASTed columns out is
                     read again
    R (no keys)      a chunk is read again if its PostgreSQL snapshot does not see a transaction
                     whose keys were not recorded, such as one that an earlier process received
                     (only transaction ids are stored), a streamed one, or a TRUNCATE

Theory
======

A chunk reads with a PostgreSQL snapshot S and commits at H, an LSN of the stream. A transaction T
that changed one of its rows is one of three:

    seen by S                   its commit is before S, so before H: its events were published, and
                                the row contains them
    not seen by S, received     its events were published, and the row is older: the row is *stale*
    before H                    (rule V)
    received after H            its events come after the row and win

A transaction that was received need not be visible: a commit is sent while it still waits for a
synchronous standby. Each change that is received therefore leaves its transaction's id at its key
until every snapshot that is in use, and the latest one, sees that transaction. A later snapshot
sees what an earlier one saw, on one server and after a failover.

A stale row is discarded, and its key is read again. The same applies, while blocks are read, to the
key of an UPDATE that left TOASTed columns out (rule T): it moved the row, perhaps to a block that
was read before, so that no chunk might ever find it.

The keys of some transactions were not recorded: those received before the table was begun, those
that an earlier process received (`unseen`, the ids of what was published and not yet seen, is
stored with the rows), streamed and prepared ones, large ones, and TRUNCATE; of a table that is
read in one chunk, no keys are recorded at all. For these transactions the table keeps only the id
(`xids_without_keys`), and a chunk whose S does not see one of them is read again (rule R).

Recording begins before any table does: the ids of all transactions are recorded from the moment
when the coordinator starts the judge, keys of a table from its SNAPSHOT_BEGIN on. The transactions
in between are the table's first `xids_without_keys`. Transactions received before the judge was
started have no id here at all. `floor` stands for them: the next transaction id at that moment. A
chunk waits until every transaction below it has ended, as the creation of a slot does.

A table has a floor of its own. A transaction that is open may have changed its rows before it was
published, or under another row filter, so that no event of that comes. It has a lower id than one
that is assigned after the table was found in the catalog as it is published now. For a table that
was found so before this process began to record, `floor` is the first id of that moment; for any
other, the id of its boundary, the transaction that brings its SNAPSHOT_BEGIN.

Why it is right: after H, every row of a chunk is what the source had at H. tests/snapshot/world.py
tests this with random histories; with any of the rules removed, it finds a history that goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.snapshot.rules.visibility import Visibility

MAX_KEYS = 100_000
"""Maximum number of keys kept for a table; beyond it, only the ids of their transactions
are kept."""

MAX_KEYS_OF_ONE = 20_000
"""Maximum number of keys kept of one transaction."""

MAX_UNSEEN = 50_000
"""Maximum number of ids of unseen transactions; beyond it, `floor` is raised, so that everything up
to the newest must be seen."""


@dataclass(slots=True, eq=False)
class KeyTrack:
    """The recorded changes to one relation since it was begun. Tracks compare by identity.

    `keys`: key -> the transaction that changed it last. (The one before it had ended by then,
    because of row locks.) `xids_without_keys`: transactions whose keys were not recorded.
    `suspects`: 32-bit ids of transactions that were streamed or prepared, and open, when the
    relation was begun; which of their updates left columns out was not recorded either. `renamed`:
    new and old keys of prepared transactions, by 32-bit id, where an update changed the key and
    left columns out. `floor`: that of the judge, for the chunks of this relation.
    """

    xids_without_keys: set[int]
    suspects: set[int] = field(default_factory=set)
    keys: dict[bytes, int] = field(default_factory=dict)
    renamed: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    floor: int = 0

    @property
    def suspects_to_store(self) -> set[int]:
        """Return the suspects to be stored for the next process, in which `renamed` is lost."""
        return self.suspects | self.renamed.keys()

    def record_renamed(self, xid: int, keys: list[tuple[bytes, bytes]]) -> None:
        """Record the new and old keys of a prepared transaction."""
        self.renamed[xid] = keys

    def is_stale(self, key: bytes, visibility: Visibility) -> bool:
        xid = self.keys.get(key)
        return xid is not None and not visibility.sees(xid)


class StalenessJudge:
    """Compares the transactions of one stream with the PostgreSQL snapshots of its chunks.

    `visibility`: the latest PostgreSQL snapshot, of a chunk or of the coordinator. `floor`: a chunk
    counts only if every transaction with a lower 64-bit id had ended when its snapshot was taken.
    `unseen`: 64-bit ids of transactions that were received, and that the latest snapshot or one in
    use did not see when the latest one was taken.
    """

    def __init__(self, visibility: Visibility, floor: int, unseen: Iterable[int] = ()) -> None:
        self.visibility = visibility
        self.floor = floor
        self.unseen = set(unseen)
        self._in_use: dict[object, Visibility] = {}
        self._tracks: list[KeyTrack] = []

    def wait_for_all_below(self, xid: int) -> None:
        """Set `floor` to the 64-bit id of a transaction that was assigned when recording began."""
        self.floor = xid

    @property
    def floor_to_store(self) -> int:
        """Return the floor for the next process, in which all relations have the same."""
        return max([self.floor, *(track.floor for track in self._tracks)])

    # -- what comes in the stream

    def begin(self, suspects: Iterable[int] = (), floor: int = 0) -> KeyTrack:
        """Record the changes to a relation that is read from here on. Of changes before that, only
        the ids of their transactions were recorded (`unseen`). `floor`: see KeyTrack; 0 if an
        earlier process has begun the relation, or only rows of it are read."""
        track = KeyTrack(set(self.unseen), set(suspects), floor=floor)
        self._tracks.append(track)
        return track

    def end(self, track: KeyTrack) -> None:
        self._tracks.remove(track)

    def committed(self, xid: int) -> int:
        """Record that a transaction was received, by its 32-bit id, and return its 64-bit id. Call
        this for every transaction."""
        wide = self.visibility.widen(xid)
        self.unseen.add(wide)
        if len(self.unseen) > MAX_UNSEEN:
            self.observe(self.visibility)
        if len(self.unseen) > MAX_UNSEEN:
            self.floor = max(self.floor, max(self.unseen) + 1)
            self.unseen.clear()
        return wide

    def committed_without_keys(self, track: KeyTrack, xid: int) -> None:
        """Record that a transaction has changed the relation, with keys that were not recorded."""
        track.xids_without_keys.add(self.visibility.widen(xid))

    def reduce_keys(self, track: KeyTrack) -> None:
        """Reduce the number of keys: forget those whose transaction every snapshot sees and, if
        many are left, keep only the ids of their transactions. All of them were received
        completely."""
        seen_by_all = self._seen_by_all
        track.keys = {key: xid for key, xid in track.keys.items() if not seen_by_all(xid)}
        if len(track.keys) > MAX_KEYS // 2:
            track.xids_without_keys.update(track.keys.values())
            track.keys.clear()

    # -- chunks

    def snapshot_requested(self, chunk: object) -> None:
        """Register a chunk whose snapshot is about to be taken. It will see at least what the
        latest one sees; what else, `snapshot_taken` tells."""
        self._in_use[chunk] = self.visibility

    def snapshot_taken(self, chunk: object, visibility: Visibility) -> None:
        """Register the snapshot that a chunk reads with, until `release`."""
        self._in_use[chunk] = visibility
        self.observe(visibility)

    def release(self, chunk: object) -> None:
        self._in_use.pop(chunk, None)

    def observe(self, visibility: Visibility) -> None:
        """Register a snapshot that was taken later than those before, and forget the transactions
        that all snapshots in use see."""
        self.visibility = visibility
        seen_by_all = self._seen_by_all
        self.unseen = {xid for xid in self.unseen if not seen_by_all(xid)}
        for track in self._tracks:
            if track.xids_without_keys:
                track.xids_without_keys = {xid for xid in track.xids_without_keys if not seen_by_all(xid)}

    def admits(self, track: KeyTrack, visibility: Visibility) -> bool:
        """Return whether the recorded keys suffice to tell which rows of a chunk with this snapshot
        are stale. If not, the chunk must be read again later."""
        has_ended = max(self.floor, track.floor) <= visibility.xmin
        return has_ended and all(map(visibility.sees, track.xids_without_keys))

    def _seen_by_all(self, xid: int) -> bool:
        return self.visibility.sees(xid) and all(each.sees(xid) for each in self._in_use.values())
