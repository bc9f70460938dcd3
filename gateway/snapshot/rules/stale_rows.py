"""Decide which rows of a chunk equal the source's rows where the chunk commits, by three rules:

    V (visibility)   a row is stale, and read again, if its key was changed by a transaction that
                     was received, but that the chunk's PostgreSQL snapshot does not see
    T (TOAST)        while blocks are read, the key of an UPDATE that left TOASTed columns out is
                     read again
    R (no keys)      a chunk is read again if its PostgreSQL snapshot does not see a transaction
                     whose keys were not recorded, such as one that an earlier session received
                     (only transaction ids are stored), a streamed one, or a TRUNCATE

Theory
======

A chunk reads with a PostgreSQL snapshot S and commits at H, an LSN of the stream. For a transaction
T that changed one of its rows, there are three cases:

    seen by S                   its commit is before S, so before H: its events were published, and
                                the row contains them
    not seen by S, received     its events were published, and the row is older: the row is *stale*
    before H                    (rule V)
    received after H            its events come after the row and win

A transaction that was received need not be visible: a commit is sent while it still waits for a
synchronous standby. Each change that is received therefore leaves its transaction's id at its key
until every snapshot that is in use, and the latest one, sees that transaction. A later snapshot
sees every transaction that an earlier one saw, on the same server and after a failover.

A stale row is discarded, and its key is read again. The same applies, while blocks are read, to the
key of an UPDATE that left TOASTed columns out (rule T). The UPDATE has moved the row, perhaps to a
block that was read before, so that no chunk might ever find it.

The keys of some transactions were not recorded. These are streamed, prepared and large
transactions, those with a TRUNCATE, and those that were received before the table was begun,
perhaps by an earlier session. `unseen`, the ids of transactions that were published and not yet
seen, is stored with the rows. If a table is read in one chunk, no keys are recorded at all. For
these transactions the table keeps only the id (`xids_without_keys`), and a chunk whose S does not
see one of them is read again (rule R). Rule T nevertheless gets the keys of streamed, prepared and
large transactions, apart from those of `suspects`.

Recording begins before any table does. The ids of all transactions are recorded from the moment
when the coordinator starts the judge, and the keys of a table from its SNAPSHOT_BEGIN on. The
transactions between these two moments are the table's first `xids_without_keys`. The ids of
transactions that were received before the judge was started are not recorded. `floor`, the next
transaction id at that moment, stands for them. A chunk waits until every transaction below the
floor has ended, as the creation of a slot does.

A table has a floor of its own. An open transaction may have changed rows of the table before the
table was published, or under another row filter, so that no event for these changes arrives. The id
of such a transaction is lower than any id that is assigned after the table was found in the catalog
as it is published now. If that was before this session began to record, `floor` is an id that was
assigned when recording began. Otherwise, it is the id of the boundary transaction, which brings the
SNAPSHOT_BEGIN of the table.

The result: after H, every row of a chunk equals the row that the source had at H.
tests/snapshot/world.py tests this with random histories. If any of the rules is removed, it finds a
history that ends with a wrong row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.snapshot.rules.visibility import Visibility

MAX_KEYS = 100_000
"""The number of keys of a table above which `reduce_keys` is called. It keeps at most half of
them; if more are needed, it keeps only the ids of their transactions."""

MAX_KEYS_OF_ONE = 20_000
"""Maximum number of keys of one relation that are kept of one transaction. A key counts each time
that the transaction changes it."""

MAX_UNSEEN = 50_000
"""Maximum number of ids of unseen transactions. If there are more, `floor` is raised, so that every
transaction up to the newest one must be seen."""


@dataclass(slots=True, eq=False)
class KeyTrack:
    """The recorded changes to one relation since it was begun. Tracks compare by identity.

    `keys`: key -> the transaction that changed it last. (Because of row locks, the transaction that
    changed it before had ended by then.) `xids_without_keys`: transactions whose keys were not
    recorded. `suspects`: 32-bit ids of streamed or prepared transactions of which not all keys for
    rule T are known. Either they were in progress when the relation was begun, or they have too
    many such keys. `renamed`: by the 32-bit id of a prepared transaction, the new and old keys of
    its updates that changed a key and left columns out. `floor`: the floor of this relation, like
    that of the judge.
    """

    xids_without_keys: set[int]
    suspects: set[int] = field(default_factory=set)
    keys: dict[bytes, int] = field(default_factory=dict)
    renamed: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    floor: int = 0

    @property
    def suspects_to_store(self) -> set[int]:
        """The suspects to be stored for the next session, in which `renamed` is lost."""
        return self.suspects | self.renamed.keys()

    def record_renamed(self, xid: int, keys: list[tuple[bytes, bytes]]) -> None:
        """Record the new and old keys of a prepared transaction."""
        self.renamed[xid] = keys

    def is_stale(self, key: bytes, visibility: Visibility) -> bool:
        xid = self.keys.get(key)
        return xid is not None and not visibility.sees(xid)


class StalenessJudge:
    """Compare the transactions of one stream with the PostgreSQL snapshots of its chunks.

    `visibility`: the latest PostgreSQL snapshot, of a chunk or of the coordinator. `floor`: a chunk
    counts only if every transaction with a lower 64-bit id had ended when its snapshot was taken.
    `unseen`: 64-bit ids of received transactions that were not seen, when the latest snapshot was
    taken, by that snapshot or one in use.
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
        """The floor to be stored for the next session, in which all relations have the same
        floor."""
        return max([self.floor, *(track.floor for track in self._tracks)])

    # -- what comes in the stream

    def begin(self, suspects: Iterable[int] = (), floor: int = 0) -> KeyTrack:
        """Record the changes to a relation that is read from here on. For earlier changes, only the
        ids of their transactions were recorded (`unseen`). `floor`: see KeyTrack; 0 if an earlier
        session has begun the relation, or only rows of it are read."""
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
        """Record that a transaction has changed the relation, and that its keys were not
        recorded."""
        track.xids_without_keys.add(self.visibility.widen(xid))

    def reduce_keys(self, track: KeyTrack) -> None:
        """Reduce the number of keys. Forget the keys whose transactions every snapshot sees; if
        many keys are left, keep only the ids of their transactions, all of which were received
        completely."""
        seen_by_all = self._seen_by_all
        track.keys = {key: xid for key, xid in track.keys.items() if not seen_by_all(xid)}
        if len(track.keys) > MAX_KEYS // 2:
            track.xids_without_keys.update(track.keys.values())
            track.keys.clear()

    # -- chunks

    def snapshot_requested(self, chunk: object) -> None:
        """Register a chunk whose snapshot is about to be taken. Until `snapshot_taken` is called,
        the latest snapshot stands for it: the chunk's snapshot will see at least as much."""
        self._in_use[chunk] = self.visibility

    def snapshot_taken(self, chunk: object, visibility: Visibility) -> None:
        """Register the snapshot that a chunk reads with. It is in use until `release` is called."""
        self._in_use[chunk] = visibility
        self.observe(visibility)

    def release(self, chunk: object) -> None:
        self._in_use.pop(chunk, None)

    def observe(self, visibility: Visibility) -> None:
        """Register a snapshot that was taken after all earlier ones, and forget the transactions
        that it and all snapshots in use see."""
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
