"""What the tables of a mirror are worth: which are still being filled, compared or replaced, and
which stand still and why.

    FILL       the table is in no version of the mirror before its SNAPSHOT_END
    REPLACE    at SNAPSHOT_END the keys without a change since SNAPSHOT_BEGIN go
    VERIFY     its rows are compared with what the table holds, and written nowhere but into the report
    excluded   the table stands still at its last state, until a FILL or REPLACE has ended
    gap        changes were lost: every table is stale until it was filled or replaced

A pure fold of signs (reader/signs.py) in the order of their markers; it is kept as JSON in the
manifest of the mirror.

The gateway ends the last table and the snapshot as a whole in one transaction, so a commit LSN does
not order signs. `changes` is stored sorted by table, and files are read in any order: `marks_of`
puts signs back into the order of the marker topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from spark_consumer.reader.table_marks import (
    EXCLUDED,
    GAP,
    MARKER_OFFSET,
    SKIP,
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_END,
)

FILL, REPLACE, VERIFY = "FILL", "REPLACE", "VERIFY"


_NOTHING: Mapping[str, int] = MappingProxyType({})
# The order in which the gateway writes the markers of one transaction: (kind, whether it is that of
# a table).
_WRITTEN = (
    *((GAP, False), (SKIP, False), (SNAPSHOT_BEGIN, False), (SNAPSHOT_BEGIN, True), (SNAPSHOT_CHUNK, True)),
    *((EXCLUDED, True), (SNAPSHOT_END, True), (SNAPSHOT_END, False)),
)
_RANK = {place: rank for rank, place in enumerate(_WRITTEN)}


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign as the mirror reads it: `table` None: all."""

    kind: str
    table: str | None
    commit_lsn: int
    ordinal: int
    facts: dict[str, Any]
    commit_time: datetime | None = None

    @property
    def place(self) -> tuple[int, int, int, int, str]:
        """Sorts marks as their markers lie in the topic. Releases that stored no offset are
        followed by kind: the markers of one transaction come in the same order each time."""
        offset = self.facts.get(MARKER_OFFSET, -1)
        return (
            self.commit_lsn,
            offset,
            self.ordinal,
            _RANK.get((self.kind, self.table is not None), len(_RANK)),
            self.table or "",
        )


def marks_of(rows: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """Signs as they are stored (columns of frames.RAW), in any order -> marks in the order of their
    markers."""
    marks = [
        Mark(row["op"], row["table"], row["commit_lsn"], row["ordinal"], json.loads(row["value"]), row["commit_time"])
        for row in rows
    ]
    return sorted(marks, key=lambda mark: mark.place)


@dataclass(frozen=True, slots=True)
class Window:
    """A snapshot of one table: its changes from behind `begin_lsn` on tell which keys the source
    has.

        `key`: of the table in its first rows that came (attnums, or names where those are not known);
        `has_two_keys`: it changed.
    """

    snapshot_id: str
    purpose: str
    begin_lsn: int
    key: list[Any] | None = None
    has_two_keys: bool = False

    def met(self, key: list[Any]) -> Window:
        """Rows with this key came."""
        if self.key is None:
            return replace(self, key=key)
        return self if key == self.key else replace(self, has_two_keys=True)


@dataclass
class TableStates:
    """`open`: snapshots of tables. `whole`: snapshots of all tables, id -> purpose, and `done`:
    tables that ended in one of them.

        `excludes`: patterns of tables that were left out so far. `filling`: tables that were not
        complete yet. `frozen`: table -> reason. `gap`: why every table but `repaired` is stale, and
        `gap_lsn`: a snapshot that began before does not repair it. `former`: oids of other relations
        that had a table's name before.
    """

    open: dict[str, Window] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    filling: set[str] = field(default_factory=set)
    frozen: dict[str, str] = field(default_factory=dict)
    gap: str | None = None
    gap_lsn: int = 0
    repaired: set[str] = field(default_factory=set)
    excludes: list[str] = field(default_factory=list)
    former: dict[str, list[int]] = field(default_factory=dict)

    def take(self, mark: Mark) -> None:
        name = mark.table
        match mark.kind:
            case "SNAPSHOT_BEGIN":
                self._begin(name, mark)
            case "SNAPSHOT_END":
                self._end(name, mark.facts)
            case "EXCLUDED" if name is not None:
                self.frozen.setdefault(name, mark.facts["reason"])
            case "GAP":
                self.gap, self.gap_lsn = mark.facts.get("detail") or "changes were lost", mark.commit_lsn
                self.repaired.clear()

    def _begin(self, name: str | None, mark: Mark) -> None:
        purpose = mark.facts["purpose"]
        if name is None:
            for former in set(self.whole) - {mark.facts["snapshot_id"]}:  # it was cancelled: there is one at a time
                self._end(None, {"snapshot_id": former})
            self.whole[mark.facts["snapshot_id"]] = purpose
            return
        self.open[name] = Window(mark.facts["snapshot_id"], purpose, mark.commit_lsn)
        if purpose == FILL:
            self.filling.add(name)

    def _end(self, name: str | None, facts: dict[str, Any]) -> None:
        if name is None:
            self.whole.pop(facts["snapshot_id"], None)
            if FILL not in self.whole.values():
                self.done.clear()
                self.filling = {table for table in self.filling if table in self.open}
            self._close(facts["snapshot_id"])
            return
        window = self.open.pop(name, None)
        if facts["purpose"] == VERIFY:
            return
        self.filling.discard(name)
        if window is not None:  # else nobody knows which keys came, and rows that are no longer in the source stayed
            self.frozen.pop(name, None)
            if self.gap is not None and window.begin_lsn > self.gap_lsn:
                self.repaired.add(name)
        if self.whole:
            self.done.add(name)

    def _close(self, snapshot_id: str) -> None:
        """Of tables whose own end did not come, since the snapshot was cancelled or they are no
        longer published. A FILL leaves them incomplete."""
        self.open = {
            name: window
            for name, window in self.open.items()
            if window.snapshot_id != snapshot_id or window.purpose == FILL
        }

    def meet(self, name: str) -> None:
        """The first rows of a table come: behind the beginning of a FILL of all tables it is not
        complete."""
        if FILL in self.whole.values() and name not in self.done:
            self.filling.add(name)

    def stale(self, tables: Iterable[str]) -> dict[str, str]:
        """Of these tables, those that are not what the source has, and why."""
        gap = {} if self.gap is None else {name: self.gap for name in tables if name not in self.repaired}
        return gap | self.frozen

    def text(self) -> str:
        facts = {**asdict(self), "open": {name: asdict(window) for name, window in self.open.items()}}
        return json.dumps({name: sorted(value) if isinstance(value, set) else value for name, value in facts.items()})

    @classmethod
    def of(cls, text: str | None) -> TableStates:
        """From `text`; None: of a mirror that knows of no such things."""
        if not text:
            return cls()
        facts = json.loads(text)
        sets = {name: set(facts[name]) for name in ("done", "filling", "repaired")}
        windows = {name: Window(**window) for name, window in facts["open"].items()}
        return cls(
            open=windows,
            whole=facts["whole"],
            frozen=facts["frozen"],
            gap=facts["gap"],
            gap_lsn=facts.get("gap_lsn", 0),
            excludes=facts.get("excludes", []),
            former=facts.get("former", {}),
            **sets,
        )

    def copy(self) -> TableStates:
        return TableStates.of(self.text())


def advance(
    standing: TableStates, marks: Sequence[Mark], first_lsns: Mapping[str, int] = _NOTHING
) -> tuple[TableStates, dict[str, Window]]:
    """What is so behind these marks, and the snapshots of tables that ended among them.
    `first_lsns`: of tables that are new, the commit LSN of their first rows."""
    made, ended = standing.copy(), {}
    new = sorted(first_lsns.items(), key=itemgetter(1), reverse=True)
    for mark in marks:
        while new and new[-1][1] <= mark.commit_lsn:
            made.meet(new.pop()[0])
        if mark.kind == SNAPSHOT_END and mark.table in made.open:
            ended[mark.table] = made.open[mark.table]
        made.take(mark)
    for name, _ in new:
        made.meet(name)
    return made, ended


def unfinished(standing: TableStates, marks: Sequence[Mark]) -> dict[str, Window]:
    """Snapshots of tables that are over without an end of their own, since the snapshot as a whole
    ended among these marks."""
    made, over = standing.copy(), dict[str, Window]()
    for mark in marks:
        if mark.kind in (SNAPSHOT_BEGIN, SNAPSHOT_END) and mark.table is None:
            snapshot_id = mark.facts["snapshot_id"]
            ends = {snapshot_id} if mark.kind == SNAPSHOT_END else made.whole.keys() - {snapshot_id}
            over |= {name: window for name, window in made.open.items() if window.snapshot_id in ends}
        made.take(mark)
    return over


def verified_chunks(marks: Iterable[Mark]) -> list[Mark]:
    """Chunks whose rows are compared, and not written."""
    return [mark for mark in marks if mark.kind == "SNAPSHOT_CHUNK" and mark.facts["purpose"] == VERIFY]


def first_unreadable(standing: TableStates, marks: Sequence[Mark]) -> int | None:
    """Commit LSN from which on only a merge knows the tables.

    There a snapshot ends that replaces rows, whose keys are not kept with the changes, or a copy of
    a table that stood still, whose rows meanwhile are in no version.
    """
    made = standing.copy()
    for mark in marks:
        ends = mark.kind == "SNAPSHOT_END" and mark.table is not None and mark.facts["purpose"] != VERIFY
        if ends and (mark.facts["purpose"] == REPLACE or mark.table in made.frozen):
            return mark.commit_lsn
        made.take(mark)
    return None


def first_cut(standing: TableStates, marks: Sequence[Mark], first_lsn: int, last_lsn: int) -> int | None:
    """Where a batch with these marks, whose commit LSNs are these, has to be cut: what is below is
    applied by itself first.

        Before a table is excluded, since its last state before is kept; and where a snapshot of a table
        begins of which one has ended in this batch. A VERIFY has cuts of its own: see
        verify.first_later_change.
    """
    frozen, ended, cuts = set(standing.frozen), set[str | None](), []
    for mark in marks:
        if mark.kind == "EXCLUDED" and mark.table is not None and mark.table not in frozen:
            cuts.append(mark.commit_lsn)
            frozen.add(mark.table)
        elif mark.kind == "SNAPSHOT_BEGIN" and mark.table in ended:
            cuts.append(mark.commit_lsn)
        elif mark.kind == "SNAPSHOT_END" and mark.table is not None:
            ended.add(mark.table)
            frozen.discard(mark.table)
    return min((cut for cut in cuts if first_lsn < cut <= last_lsn), default=None)
