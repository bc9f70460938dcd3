"""Random histories of a table, its stream, and a gateway that reads both; is the rebuilt table the
source?

The gateway here does with the classes of gateway/snapshot what the real one does, in one file and
with any delay between two steps: it lags behind the WAL, reads several chunks at once, seals, and
may be killed, which takes back all that was not sealed. `broken` names a rule to leave out: then a
history that goes wrong must be found.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from gateway.snapshot.rules import stale_rows
from gateway.snapshot.rules.keys_to_read_again import KeysToReadAgain
from gateway.snapshot.rules.ranges_to_read import OFFSET_BITS, CtidPlan, Leaf, TidRange, cut
from gateway.snapshot.rules.stale_rows import KeyTrack, StalenessJudge
from gateway.snapshot.rules.table_progress import Chunk, Status, TableProgress
from gateway.snapshot.rules.visibility import Visibility
from tests.snapshot.source import BLOCKS, UNCHANGED, Big, Change, Entry, Source, Unchanged

RULES = (
    "V",
    "T",
    "R",
    "again",
    "in use",
    "floor",
    "boundary",
    "stored floor",
    "received before",
    "suspects",
    "streamed",
    "prepared",
    "renamed",
    "handed on",
    "kept keys",
    "changed keys",
    "filenode",
    "wide ids",
)
CHUNKS_AT_ONCE = 3


@dataclass(slots=True)
class Durable:
    """What a Kafka transaction commits: the topics, as the table that a reader makes of them, the
    position, the states."""

    read: int
    target: dict[int, tuple[int, Big | None]]
    changed: set[int] = field(default_factory=set)
    """Keys with a change since SNAPSHOT_BEGIN: at SNAPSHOT_END a reader takes the others away."""
    prepared: dict[int, tuple[Change, ...]] = field(default_factory=dict)
    status: Status = Status.WAITING
    filenode: int = 0
    untouched: int = 0
    begun: list[TidRange] = field(default_factory=list)
    again: list[bytes] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)
    unseen: set[int] = field(default_factory=set)
    floor: int = 0


@dataclass(slots=True)
class Waiting:
    """A chunk that was read and waits for its commit to come."""

    chunk: Chunk
    xid: int
    rows: dict[int, tuple[int, Big]]
    is_sent: bool = False


class WireIds(Visibility):
    """The defect of comparing the wire's 32 bits with a snapshot's 64."""

    def widen(self, xid: int) -> int:
        return xid


def encode(key: int) -> bytes:
    return b"%d" % key


class World:
    RULES: ClassVar[tuple[str, ...]] = RULES
    SOURCE: ClassVar[type[Source]] = Source
    DURABLE: ClassVar[type[Durable]] = Durable

    def __init__(self, seed: int, broken: str = "") -> None:
        assert broken in ("", *self.RULES)
        self.random = random.Random(seed)
        self.in_few_chunks = seed % 2 == 1
        self.broken = broken
        self.source = self.SOURCE(self.random, is_published=self.random.random() < 0.5)
        for _ in range(self.random.randrange(60)):
            self.random.choice(self._load)()
        surplus: dict[int, tuple[int, Big | None]] = dict.fromkeys(self.random.sample(range(40), 6), (-1, (-1,)))
        floor = self.source.roll_back_new()
        self.durable = self.DURABLE(len(self.source.wal), surplus, floor=0 if broken == "floor" else floor)
        self.incarnation = 0
        self.marks: dict[str, tuple[str, int]] = {}
        self.emitted: dict[str, int] = {}
        self._start()

    # -- the gateway
    # --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """What a start does with what is durable. A transaction that has not ended there is sent
        again, from its beginning: streamed, or whole when it ends."""
        live = self.live = copy.deepcopy(self.durable)
        self.waiting: dict[str, Waiting] = {}
        self.is_published_before = self.source.is_published or self.broken == "boundary"
        self.first_xid = self.source.roll_back_new()
        self.judge = StalenessJudge(self._look(), live.floor, set() if self.broken == "R" else live.unseen)
        self.table = self._new_table()
        if live.status in (Status.READING, Status.ENDING):
            plan = CtidPlan(self.table.plan.leaves, live.untouched, live.begun)
            self.table.resume(plan, KeysToReadAgain({0: live.again}), live.suspects)
        if live.status is Status.DONE:
            self.table.end()
        self.streams: dict[int, list[Change]] = {}
        self.notes: dict[int, list[tuple[bytes, bytes]]] = {}
        self.whole_this_time: set[int] = set()
        past = self.source.wal[: live.read]
        ended = {entry.xid for entry in past if entry.kind != "segment"}
        for entry in past:
            if entry.kind == "segment" and entry.xid not in ended:
                if entry.xid not in self.streams and self.random.random() < 0.3:
                    self.whole_this_time.add(entry.xid)
                self._segment(entry)

    def _new_table(self, *, reselects: bool = False) -> TableProgress:
        leaves = [Leaf(1, self.live.filenode, 0)]
        return TableProgress(self.judge, leaves, 1 << 20, reselects=reselects, in_few_chunks=self.in_few_chunks)

    def _look(self) -> Visibility:
        found = self.source.snapshot()
        return WireIds(found.xmin, found.xmax, found.running) if self.broken == "wide ids" else found

    def seal(self) -> None:
        """Between two transactions: all of it gets durable."""
        live, table = self.live, self.table
        live.status, live.untouched, live.begun = table.status, table.plan.untouched, table.plan.begun
        live.again, live.unseen = list(table.keys_to_read_again), set(self.judge.unseen)
        live.floor = self.judge.floor if self.broken == "stored floor" else self.judge.floor_to_store
        if table.track is not None:
            suspects = table.track.suspects if self.broken == "handed on" else table.track.suspects_to_store
            live.suspects = suspects & {xid & 0xFFFFFFFF for xid in live.prepared}
        self.durable = copy.deepcopy(live)

    def kill(self) -> None:
        self.incarnation += 1
        for each in self.waiting.values():
            if not each.is_sent:
                self.source.give_up(each.xid)
        while self.emitted:
            self.source.give_up(self.emitted.popitem()[1])
        self._start()

    def look(self) -> None:
        """The periodic snapshot."""
        self.judge.observe(self._look())

    def mark(self) -> None:
        """Begin the table once it is published, or end it."""
        wanted = {Status.WAITING: "begin", Status.READING: "end" if self.table.is_complete else ""}.get(
            self.table.status
        )
        if wanted and self.source.is_published and (wanted, self.incarnation) not in self.marks.values():
            if wanted == "end":
                self.table.nothing_left()
            name = f"{wanted} {len(self.source.wal)}"
            self.marks[name] = (wanted, self.incarnation)
            self.emitted[name] = self.source.begin_ours()

    def commit_mark(self) -> None:
        if self.emitted:
            self.source.emit(*self.emitted.popitem())

    # -- readers
    # ------------------------------------------------------------------------------------------------------------

    def read_chunk(self) -> None:
        if len(self.waiting) >= CHUNKS_AT_ONCE:
            return
        chunk = self.table.next_chunk()
        if chunk is None:
            return
        xid = self.source.lock_for_reading()
        if xid is None:
            self.table.give_back(chunk)
            return
        if self.source.filenode != self.live.filenode and self.broken != "filenode":
            self.table.begin_again()
            self.source.give_up(xid)
            return
        if chunk.range is not None:
            self.table.shorten(chunk, *cut(chunk.range, self.random.randrange(1, 4), BLOCKS))
        if not self.table.snapshot_taken(chunk, self._look()):
            self.table.give_back(chunk)
            self.source.give_up(xid)
            return
        if self.broken == "in use":
            self.judge.release(chunk)
        seen = self.source.rows(self.source.snapshot())
        rows = {k: (v.n, v.big) for k, v in seen.items() if encode(k) in chunk.keys or _holds(chunk.range, v.block)}
        self.waiting[f"chunk {xid}"] = Waiting(chunk, xid, rows)

    def commit_chunk(self) -> None:
        pending = [(name, each) for name, each in self.waiting.items() if not each.is_sent]
        if pending:
            name, each = self.random.choice(pending)
            each.is_sent = True
            self.source.emit(name, each.xid)

    # -- the stream
    # ---------------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        if self.live.read < len(self.source.wal):
            entry = self.source.wal[self.live.read]
            self.live.read += 1
            getattr(self, "_" + entry.kind.replace(" ", "_"))(entry)

    def _apply(self, changes: tuple[Change, ...]) -> None:
        """What a reader of the topics does."""
        target, changed = self.live.target, self.live.changed
        for change in changes:
            if change.op == "TRUNCATE":
                target.clear()
                continue
            changed |= {change.old_key, change.key}
            before = target.pop(change.old_key, None)
            if change.op != "DELETE":
                n, big = change.row
                target[change.key] = (n, big if not isinstance(big, Unchanged) else before[1] if before else None)

    def _commit(self, entry: Entry) -> None:
        self._apply(entry.changes)
        track = self.table.track
        if track is not None:
            self._track(track, entry)
        self.judge.committed(entry.wire_xid)

    def _track(self, track: KeyTrack, entry: Entry) -> None:
        if len(track.keys) > stale_rows.MAX_KEYS:
            self.judge.reduce_keys(track)
        if len(entry.changes) > stale_rows.MAX_KEYS_OF_ONE or any(c.op == "TRUNCATE" for c in entry.changes):
            self.judge.committed_without_keys(track, entry.wire_xid)
        else:
            wide = self.judge.visibility.widen(entry.wire_xid)
            track.keys.update((encode(key), wide) for c in entry.changes for key in (c.old_key, c.key))
        for keys in _left_out(entry.changes):
            self._note(*keys)

    def _note(self, key: bytes, old_key: bytes) -> None:
        if self.broken != "T":
            self.table.record_unchanged_toast(key, key if self.broken == "changed keys" else old_key)

    def _segment(self, entry: Entry) -> None:
        self.streams.setdefault(entry.xid, []).extend(entry.changes)
        if self.table.track is not None and entry.xid not in self.whole_this_time:
            self.notes.setdefault(entry.xid, []).extend(_left_out(entry.changes))

    def _stream_commit(self, entry: Entry) -> None:
        changes = tuple(self.streams.pop(entry.xid))
        notes = self.notes.pop(entry.xid, [])
        if entry.xid in self.whole_this_time:
            self._commit(Entry("commit", entry.xid, changes))
            return
        self._apply(changes)
        self.judge.committed(entry.wire_xid)
        if self.broken != "streamed":
            self._committed_whole(entry, notes)

    def _committed_whole(self, entry: Entry, notes: list[tuple[bytes, bytes]]) -> None:
        if self.broken == "suspects" and self.table.track is not None:
            self.table.track.suspects.clear()
        self.table.committed_without_keys(entry.wire_xid, [] if self.broken == "T" else notes)

    def _stream_abort(self, entry: Entry) -> None:
        self.streams.pop(entry.xid)
        self.notes.pop(entry.xid, None)

    def _prepare(self, entry: Entry) -> None:
        self.live.prepared[entry.xid] = (*self.streams.pop(entry.xid, ()), *entry.changes)
        left_out = self.live.prepared[entry.xid] if entry.xid in self.whole_this_time else entry.changes
        notes = [*self.notes.pop(entry.xid, ()), *_left_out(left_out)]
        self.table.prepared(entry.wire_xid, [] if self.broken == "T" else notes)
        if self.broken == "renamed" and self.table.track is not None:
            self.table.track.renamed.clear()

    def _commit_prepared(self, entry: Entry) -> None:
        changes = self.live.prepared.pop(entry.xid, None)
        if changes is None:  # prepared before there was a slot: sent whole
            sent = [e.changes for e in self.source.wal if e.xid == entry.xid and e.kind in ("segment", "prepare")]
            self._commit(Entry("commit", entry.xid, tuple(change for each in sent for change in each)))
            return
        self._apply(changes)
        self.judge.committed(entry.wire_xid)
        if self.broken != "prepared":
            self._committed_whole(entry, [])

    def _rollback_prepared(self, entry: Entry) -> None:
        self.live.prepared.pop(entry.xid, None)
        self.table.rolled_back(entry.wire_xid)

    # -- what comes back of our own
    # -----------------------------------------------------------------------------------------

    def _mark(self, entry: Entry) -> None:
        if entry.mark in self.waiting:
            self._hand_over(self.waiting.pop(entry.mark))
        kind, incarnation = self.marks.get(entry.mark, ("", -1))
        if incarnation != self.incarnation:
            return
        del self.marks[entry.mark]
        if kind == "begin" and self.table.status is Status.WAITING:
            self._begin(entry.wire_xid)
        elif kind == "end" and self.table.status is Status.ENDING:
            self.table.end()
            self.live.target = {k: row for k, row in self.live.target.items() if k in self.live.changed}

    def _begin(self, xid: int) -> None:
        self.live.changed = set()
        self.live.filenode = self.source.filenode
        self.table.begin_again([Leaf(1, self.live.filenode, 0)])
        suspects = {xid & 0xFFFFFFFF for xid in (*self.streams, *self.live.prepared)}
        floor = self.first_xid if self.is_published_before else self.judge.visibility.widen(xid)
        self.table.begin(suspects, 0 if self.broken == "floor" else floor)
        assert self.table.track is not None
        if self.broken == "received before":
            self.table.track.xids_without_keys.clear()

    def _hand_over(self, waiting: Waiting) -> None:
        chunk = waiting.chunk
        if not self.table.admits(chunk):
            self.table.give_back(chunk)
            return
        stale = 0
        for key, row in waiting.rows.items():
            if self.broken != "V" and self.table.is_stale(chunk, encode(key)):
                stale += 1
                if self.broken == "again":
                    self.table.keys_to_read_again.discard(encode(key))
            else:
                self.live.target[key] = row
                self.live.changed.add(key)
        self.table.published(chunk, len(waiting.rows) - stale, stale)
        if self.broken == "kept keys":
            for wanted in chunk.keys:
                self.table.keys_to_read_again.discard(wanted)

    # -- histories
    # ----------------------------------------------------------------------------------------------------------

    @property
    def _load(self) -> list[Callable[[], None]]:
        source = self.source
        often = [source.begin, *[source.change] * 4, source.commit, source.show]
        return [*often, *often, *often, source.stream, source.roll_back]

    def run(self) -> str | None:
        """What is wrong at the end, if anything."""
        gateway = [self.mark, self.commit_mark, self.read_chunk, self.commit_chunk, *[self.receive] * 3, self.look]
        for _ in range(self.random.randrange(60, 240)):
            self.random.choice([*self._load, *gateway, *gateway])()
            if self.random.random() < 0.04:
                self.seal()
            if self.random.random() < 0.015:
                self.random.choice([self.kill, self.source.truncate, self.source.rewrite])()
            if self.random.random() < 0.03:
                self.source.publish()
        self.source.publish()
        ending = [self.source.commit, self.source.show, self.source.show, *gateway]
        for _ in range(6000):  # the load ends; everything is let through, in a random order still
            if self._is_finished:
                return self._difference()
            self.random.choice(ending)()
        return f"never finished: {self.table.status}, {len(self.table.keys_to_read_again)} keys, {self.judge.floor}"

    @property
    def _is_finished(self) -> bool:
        source = self.source
        is_quiet = not source.open and not source.committing and self.live.read == len(source.wal)
        return is_quiet and self.table.status is Status.DONE

    def _difference(self) -> str | None:
        truth, target = self.source.truth(), self.live.target
        wrong = [key for key in truth.keys() | target.keys() if truth.get(key) != target.get(key)]
        return f"{[(key, truth.get(key), target.get(key)) for key in wrong[:3]]}" if wrong else None


def _holds(found: TidRange | None, block: int) -> bool:
    if found is None:
        return False
    place = block << OFFSET_BITS
    return found.first <= place and (found.end is None or place < found.end)


def _left_out(changes: tuple[Change, ...] | list[Change]) -> list[tuple[bytes, bytes]]:
    """New and old keys of UPDATEs that did not send the TOASTed value."""
    return [(encode(c.key), encode(c.old_key)) for c in changes if c.op == "UPDATE" and c.row[1] is UNCHANGED]


def first_wrong(seeds: range, broken: str = "") -> tuple[int, str] | None:
    """A history that goes wrong."""
    for seed in seeds:
        found = World(seed, broken).run()
        if found is not None:
            return seed, found
    return None
