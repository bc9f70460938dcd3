"""Which rows of a chunk are what the source has where the chunk commits: rules V, T and R.

Theory
======

A chunk reads with a snapshot S and commits at H, its place in the stream. What a transaction T did
to a row of it:

    seen by S                           its commit is before S, so before H: its events were published, and the row contains them
    not seen by S, received before H    its events were published, the row is older: the row is *stale* (rule V)
    received after H                    its events come after the row and win

Received is not seen: a commit is sent while it still waits for a synchronous standby. So each
change that is received leaves its transaction's id at its key until every snapshot that is in use,
and the latest one, sees that transaction. A later snapshot sees what an earlier one saw, on one
server and after a failover.

A stale row is left out and its key read again. The same holds for the key of an UPDATE that left
TOASTed columns out, while blocks are read (rule T): it moved the row, perhaps to a block that was
read before, so that no chunk may ever find it.

The keys of some transactions are not known: those that were received before the table was begun,
those of the epoch before (rule R: the ids of what was published and not yet seen are durable),
those that are streamed or prepared, large ones, and TRUNCATE. Of these the table keeps the id alone
(`whole`), and a chunk whose S does not see one of them is read again.

What was received before any of this was noted has no id here at all. `floor` stands for it: the
next transaction id at the moment when the noting began. A chunk waits until every transaction below
it has ended, as the making of a slot does.

Why it is right: behind H every row of a chunk is what the source had behind H.
tests/snapshot/world.py plays random histories against it, and with each rule taken out finds one
that goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.snapshot.rules.visibility import Visibility

MAX_KEYS = 100_000
"""So many keys of changes are kept for a table; beyond, the ids of their transactions alone."""

MAX_KEYS_OF_ONE = 20_000
"""And so many of one transaction."""

MAX_UNSEEN = 50_000
"""So many ids of unseen transactions; beyond, only that everything below the newest must be
seen."""


@dataclass(slots=True, eq=False)
class Track:
    """What is known of the changes to one relation since it was begun. Of two relations it may be
    the same, and is two things.

        `keys`: key -> transaction that changed it last. (One that changed it before had ended when that
        one could: row locks.) `whole`: transactions of which no keys are known. `suspects`:
        transactions that were open as streams or prepared when the relation was begun, by their ids on
        the wire: which of their updates left columns out is not known either. `renamed`: new and old
        keys of prepared transactions, by the same ids, where an update changed the key and left columns
        out.
    """

    whole: set[int]
    suspects: set[int] = field(default_factory=set)
    keys: dict[bytes, int] = field(default_factory=dict)
    renamed: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)

    @property
    def handed_on(self) -> set[int]:
        """Suspects of the process after this one: it does not know `renamed`."""
        return self.suspects | self.renamed.keys()

    def is_stale(self, key: bytes, visibility: Visibility) -> bool:
        xid = self.keys.get(key)
        return xid is not None and not visibility.sees(xid)


class StalenessJudge:
    """The transactions of one stream against the snapshots of its chunks. `visibility` is the
    latest snapshot taken."""

    def __init__(self, visibility: Visibility, floor: int, unseen: Iterable[int] = ()) -> None:
        self.visibility = visibility
        self.floor = floor
        self.unseen = set(unseen)
        self._in_use: dict[object, Visibility] = {}
        self._tracks: list[Track] = []

    # -- what comes in the stream

    def begin(self, suspects: Iterable[int] = ()) -> Track:
        """A relation is read, and its changes are noted from here on: of earlier ones only the
        transactions are known."""
        track = Track(set(self.unseen), set(suspects))
        self._tracks.append(track)
        return track

    def end(self, track: Track) -> None:
        self._tracks.remove(track)

    def committed(self, xid: int) -> int:
        """Every transaction that was received, by its id on the wire. Gives its 64-bit id."""
        wide = self.visibility.widen(xid)
        self.unseen.add(wide)
        if len(self.unseen) > MAX_UNSEEN:
            self.observe(self.visibility)
        if len(self.unseen) > MAX_UNSEEN:
            self.floor = max(self.floor, max(self.unseen) + 1)
            self.unseen.clear()
        return wide

    def committed_whole(self, track: Track, xid: int) -> None:
        """A transaction that has changed the relation, and nobody knows which keys."""
        track.whole.add(self.visibility.widen(xid))

    def relieve(self, track: Track) -> None:
        """When there are many keys, all of transactions that were received whole: forget those that
        need not be known, or else their names."""
        seen_by_all = self._seen_by_all
        track.keys = {key: xid for key, xid in track.keys.items() if not seen_by_all(xid)}
        if len(track.keys) > MAX_KEYS // 2:
            track.whole.update(track.keys.values())
            track.keys.clear()

    # -- chunks

    def expect(self, chunk: object) -> None:
        """The chunk's snapshot is about to be taken: it will see at least what the latest one sees,
        and until `take` nobody knows what more."""
        self._in_use[chunk] = self.visibility

    def take(self, chunk: object, visibility: Visibility) -> None:
        """A chunk is read with this snapshot, until `drop`."""
        self._in_use[chunk] = visibility
        self.observe(visibility)

    def drop(self, chunk: object) -> None:
        self._in_use.pop(chunk, None)

    def observe(self, visibility: Visibility) -> None:
        """A snapshot that was taken later than the ones before: forget what all that are in use
        see."""
        self.visibility = visibility
        seen_by_all = self._seen_by_all
        self.unseen = {xid for xid in self.unseen if not seen_by_all(xid)}
        for track in self._tracks:
            if track.whole:
                track.whole = {xid for xid in track.whole if not seen_by_all(xid)}

    def admits(self, track: Track, visibility: Visibility) -> bool:
        """Whether the keys tell everything about the chunk of this snapshot; if not, it must be
        read again, later."""
        return self.floor <= visibility.xmin and all(map(visibility.sees, track.whole))

    def _seen_by_all(self, xid: int) -> bool:
        return self.visibility.sees(xid) and all(each.sees(xid) for each in self._in_use.values())
