"""The world of world.py where readers keep no old values: a row of which an UPDATE left its value
out is read again.

Only committed transactions are sent, as in Debezium's dialect. `seen` is the table of a reader by
key that writes LEFT_OUT where no value was sent; `target` that of one who keeps the value from
before. A row that is read must be what `target` has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gateway.snapshot.rules.keys_to_read_again import KeysToReadAgain
from gateway.snapshot.rules.ranges_to_read import CtidPlan
from gateway.snapshot.rules.table_progress import Status, TableProgress
from tests.snapshot.source import UNCHANGED, Big, Change, Entry, Source
from tests.snapshot.world import Durable, Waiting, World, encode

LEFT_OUT: Final[Big] = (-1, -1)
RULES: Final = ("received before", "late keys", "durable keys", "noted keys")


class Committed(Source):
    """Without streamed and prepared transactions."""

    def commit(self) -> None:
        open_ = [xid for xid, each in self.open.items() if not each.is_ours]
        if open_:
            xid = self.random.choice(open_)
            self._end(xid, "commit", tuple(self.open[xid].changes))


@dataclass(slots=True)
class Kept(Durable):
    seen: dict[int, tuple[int, Big | None]] = field(default_factory=dict)
    is_reselect: bool = False


class Reselecting(World):
    RULES: ClassVar[tuple[str, ...]] = RULES
    SOURCE: ClassVar[type[Source]] = Committed
    DURABLE: ClassVar[type[Durable]] = Kept
    live: Kept

    def _new_table(self, *, reselects: bool = True) -> TableProgress:
        if not self.live.is_reselect:
            return super()._new_table(reselects=reselects)
        if self.broken == "durable keys":
            self.live.again = []
        return TableProgress(self.judge, (), 1 << 20)

    def _reselect(self, keys: KeysToReadAgain) -> None:
        self.live.is_reselect = True
        self.table = self._new_table()
        self.table.resume(CtidPlan(()), keys, ())
        if self.broken == "received before" and self.table.track is not None:
            self.table.track.xids_without_keys.clear()

    def _begin(self, xid: int) -> None:
        broken, self.broken = self.broken, ""
        super()._begin(xid)
        self.broken = broken

    def mark(self) -> None:
        if self.live.is_reselect and self.table.status is Status.WAITING:  # too many keys
            self.live.is_reselect = False
            self.table = self._new_table()
        if not self.live.is_reselect:
            super().mark()
        elif self.table.is_complete:
            self.table.end()
            self.live.is_reselect = False

    def read_chunk(self) -> None:
        if self.live.is_reselect:  # what is asked for is the same in other files
            self.live.filenode = self.source.filenode
        super().read_chunk()

    def _commit(self, entry: Entry) -> None:
        for change in entry.changes:
            self._write(change)
            if change.op == "UPDATE" and change.row[1] is UNCHANGED and self.table.status is Status.DONE:
                self._reselect(KeysToReadAgain())
            if self.table.track is not None:
                self._track(self.table.track, Entry("commit", entry.xid, (change,)))
        self.judge.committed(entry.wire_xid)

    def _note(self, key: bytes, old_key: bytes) -> None:
        if self.broken != "noted keys":
            super()._note(key, old_key)

    def _write(self, change: Change) -> None:
        self._apply((change,))
        seen = self.live.seen
        if change.op == "TRUNCATE":
            seen.clear()
            return
        seen.pop(change.old_key, None)
        if change.op != "DELETE":
            n, big = change.row
            seen[change.key] = (n, LEFT_OUT if big is UNCHANGED else self.live.target[change.key][1])

    def _mark(self, entry: Entry) -> None:
        before = self.table.status
        super()._mark(entry)
        if before is Status.ENDING and self.table.status is Status.DONE:
            self.live.seen = {key: row for key, row in self.live.seen.items() if key in self.live.changed}
            if self.table.keys_to_read_again and self.broken != "late keys":
                self._reselect(KeysToReadAgain({0: list(self.table.keys_to_read_again)}))

    def _hand_over(self, waiting: Waiting) -> None:
        chunk, live = waiting.chunk, self.live
        is_admitted = self.table is chunk.progress and self.table.admits(chunk)
        fresh = {
            key: row for key, row in waiting.rows.items() if is_admitted and not self.table.is_stale(chunk, encode(key))
        }
        if live.is_reselect:
            wrong = {key: (row, live.target.get(key)) for key, row in fresh.items() if row != live.target.get(key)}
            assert not wrong, f"not the row that is there: {wrong}"
        waiting.rows = fresh if is_admitted else waiting.rows
        super()._hand_over(waiting) if self.table is chunk.progress else None
        live.seen |= fresh

    @property
    def _load(self) -> list[Callable[[], None]]:
        source = self.source
        often = [source.begin, *[source.change] * 4, source.commit, source.show]
        return [*often, *often, *often, source.roll_back]

    @property
    def _is_finished(self) -> bool:
        return super()._is_finished and not self.live.is_reselect

    def _difference(self) -> str | None:
        self.live.target = self.live.seen
        return super()._difference()


def first_wrong(seeds: range, broken: str = "") -> tuple[int, str] | None:
    """A history that goes wrong."""
    for seed in seeds:
        try:
            found = Reselecting(seed, broken).run()
        except AssertionError as error:
            found = str(error)
        if found is not None:
            return seed, found
    return None
