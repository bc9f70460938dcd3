"""State of each table of a mirror: which snapshot of it is in progress, and whether it is complete
and up to date.

A snapshot in progress (`SnapshotWindow`) has one of three purposes:

FILL       until SNAPSHOT_END the table is filling: versions of the mirror list it, but not as
           complete
REPLACE    at SNAPSHOT_END, rows whose keys had no change since SNAPSHOT_BEGIN are deleted
VERIFY     rows read are compared with those in the table, which stays as it is

A table may be

filling    not complete, since its FILL has not ended: it cannot be read. During a FILL of all
           tables, a new table is filling from its first rows to its own end or that of the whole
incomplete filling, and only the end of its own FILL or REPLACE makes it complete: its FILL has
           begun, and may have been cancelled since; or it had rows during a FILL of all tables that
           was cancelled
frozen     in quarantine (EXCLUDED): versions of the mirror keep the table's last version until a
           FILL or REPLACE whose beginning was read has ended, or another relation has the name.
           Rows that arrive meanwhile are written to the table, but no version has them, and
           unmerged_overlay.py leaves them out. A table that is in no version yet is added to one
           with its first rows, as incomplete. During a FILL the table is filling, too
stale      frozen, or not filled or replaced since a gap, in which changes were lost

The state follows from the first rows of new tables, and from table marks: what a marker says about
a table (reader/table_marks.py), in the order of the markers. It is stored as JSON in the mirror's
manifest.

The gateway ends the last table and the snapshot as a whole in one transaction, so commit LSNs do
not order table marks. If the whole ends in another transaction, the snapshot was cancelled, or has
left out tables which cannot be read. Rows of `changes` are read in any order: `parse_marks`
restores the order of the marker topic.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from spark_consumer.reader.table_marks import (
    ENDS_WITH_TABLE,
    EXCLUDED,
    GAP,
    MARKER_OFFSET,
    SKIP,
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_END,
)

FILL, REPLACE, VERIFY = "FILL", "REPLACE", "VERIFY"


class FirstRows(NamedTuple):
    """The first rows of a table that is new to the mirror, at `commit_lsn`. `relation_oid`: oid of
    the newest relation with the table's name."""

    commit_lsn: int
    relation_oid: int


_NO_ROWS: Mapping[str, FirstRows] = MappingProxyType({})
# The order in which the gateway writes the markers of one transaction: (kind, whether the marker is
# for one table).
_WRITTEN = (
    *((GAP, False), (SKIP, False), (SNAPSHOT_BEGIN, False), (SNAPSHOT_BEGIN, True), (SNAPSHOT_CHUNK, True)),
    *((EXCLUDED, True), (SNAPSHOT_END, True), (SNAPSHOT_END, False)),
)
_RANK = {place: rank for rank, place in enumerate(_WRITTEN)}


@dataclass(frozen=True, slots=True)
class StoredMark:
    """A table mark as the mirror reads it. `table` None: all tables."""

    kind: str
    table: str | None
    commit_lsn: int
    ordinal: int
    facts: dict[str, Any]
    commit_time: datetime | None = None

    @property
    def place(self) -> tuple[int, int, int, int, str]:
        """Sort key for the order of the markers in the topic. Marks of releases that stored no
        offset are sorted by ordinal, then by kind: the markers of one transaction always come in
        the same order."""
        offset = self.facts.get(MARKER_OFFSET, -1)
        return (
            self.commit_lsn,
            offset,
            self.ordinal,
            _RANK.get((self.kind, self.table is not None), len(_RANK)),
            self.table or "",
        )


def parse_marks(rows: Iterable[Mapping[str, Any]]) -> list[StoredMark]:
    """Return the table marks in stored rows (columns of frames.RAW, in any order), in the order of
    their markers."""
    marks = [
        StoredMark(
            row["op"], row["table"], row["commit_lsn"], row["ordinal"], json.loads(row["value"]), row["commit_time"]
        )
        for row in rows
    ]
    return sorted(marks, key=lambda mark: mark.place)


@dataclass(frozen=True, slots=True)
class SnapshotWindow:
    """A snapshot of one table in progress: the changes after `begin_lsn` show which keys the source
    has.

    `key`: the table's key in the first rows that arrived (attnums, or names if those are not
    known); `has_two_keys`: whether it, or the type of one of its columns, changed since;
    `schema_id`: schema id of the newest rows that a VERIFY has read, which are not written to the
    table.
    """

    snapshot_id: str
    purpose: str
    begin_lsn: int
    key: list[Any] | None = None
    has_two_keys: bool = False
    schema_id: int | None = None

    def with_key(self, key: list[Any]) -> SnapshotWindow:
        """Return the window after rows with this key have arrived."""
        if self.key is None:
            return replace(self, key=key)
        return self if key == self.key else replace(self, has_two_keys=True)


@dataclass
class TableStates:
    """States of all tables of a mirror. `windows`: snapshots of single tables in progress. `whole`:
    snapshots of all tables in progress, id -> purpose; `done`: tables that one of these has
    completed.

    `filling`: tables whose FILL is not complete. `incomplete`: those of them that stay so until a
    snapshot of their own ends; the others had rows during a FILL of all tables, and are complete
    when it ends with its last table. `frozen`: tables in quarantine, name -> reason; `frozen_oids`:
    their relations, as far as known, since another one may get the name.
    `gap`: reason why every table except those in `repaired` is stale; `gap_lsn`: LSN of the gap,
    which only a snapshot that began after it repairs. `excludes`: patterns of the tables left out
    by --exclude. `former`: for a table's name, the oids of other relations that had this name
    before. `empty`: oids of relations that are complete although the mirror has no table of them:
    their FILL or REPLACE found no row. `filling_oids`: relations of tables that are filling.
    `renamed`: tables whose relation got another name before its FILL ended, in the marks applied
    since the states were read. It is read again by its new name, and its rows here stay incomplete.
    """

    windows: dict[str, SnapshotWindow] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    filling: set[str] = field(default_factory=set)
    incomplete: set[str] = field(default_factory=set)
    frozen: dict[str, str] = field(default_factory=dict)
    gap: str | None = None
    gap_lsn: int = 0
    repaired: set[str] = field(default_factory=set)
    excludes: list[str] = field(default_factory=list)
    former: dict[str, list[int]] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    filling_oids: dict[str, int] = field(default_factory=dict)
    frozen_oids: dict[str, int] = field(default_factory=dict)
    renamed: set[str] = field(default_factory=set, init=False, repr=False, compare=False)  # not stored
    # Snapshot id and commit LSN of the last SNAPSHOT_END of a table, for marks that an earlier
    # release stored without ENDS_WITH_TABLE. It is not stored: the end of the snapshot as a whole
    # comes with it or is a cancellation.
    _last_end: tuple[str, int] | None = field(default=None, init=False, repr=False, compare=False)
    # Commit LSN of the last EXCLUDED of a table among the marks applied since the states were read.
    _excluded_lsns: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def apply_mark(self, mark: StoredMark) -> None:
        name = mark.table
        match mark.kind:
            case "SNAPSHOT_BEGIN":
                self._begin(name, mark)
            case "SNAPSHOT_END":
                self._end(name, mark)
            case "EXCLUDED" if name is not None:
                self._freeze(name, mark)
            case "GAP":
                self.gap, self.gap_lsn = mark.facts.get("detail") or "changes were lost", mark.commit_lsn
                self.repaired.clear()

    def _freeze(self, name: str, mark: StoredMark) -> None:
        oid = mark.facts.get("relation_oid")
        if oid is not None:
            self.thaw_former(name, oid, mark.commit_lsn)
            self.frozen_oids.pop(name, None)
            self.frozen_oids[name] = oid  # the last one of a relation is its present name
        self.frozen.setdefault(name, mark.facts["reason"])
        self._excluded_lsns[name] = mark.commit_lsn

    def thaw_former(self, name: str, oid: int, last_lsn: int) -> None:
        """Thaw a table that has changes of this relation up to `last_lsn`, if another relation in
        quarantine had its name before."""
        if self.frozen_oids.get(name, oid) != oid and last_lsn >= self._excluded_lsns.get(name, 0):
            self._thaw(name, oid)

    def forget_renamed(self, tables: Container[str]) -> None:
        """Forget names that a relation in quarantine no longer has, unless the mirror has a table
        of that name. `tables`: those of the mirror."""
        present = {oid: name for name, oid in self.frozen_oids.items()}
        for name, oid in list(self.frozen_oids.items()):
            if present[oid] != name and name not in tables:
                self._thaw(name, oid)

    def _thaw(self, name: str, oid: int | None) -> None:
        self.frozen.pop(name, None)
        former = self.frozen_oids.pop(name, oid)
        if former is not None and former != oid:
            self.note_former(name, former)

    def note_former(self, name: str, oid: int) -> None:
        """Note that a table's name is no longer that of this relation."""
        if oid not in self.former.setdefault(name, []):
            self.former[name].append(oid)

    def _begin(self, name: str | None, mark: StoredMark) -> None:
        purpose = mark.facts["purpose"]
        if name is None:
            for former in set(self.whole) - {mark.facts["snapshot_id"]}:  # it was cancelled: only one runs at a time
                self._end_whole(former, is_cancelled=True)
            self.whole[mark.facts["snapshot_id"]] = purpose
            return
        self.windows[name] = SnapshotWindow(mark.facts["snapshot_id"], purpose, mark.commit_lsn)
        oid = mark.facts.get("relation_oid", 0)
        if purpose != VERIFY:
            self.empty.discard(oid)
        is_renamed = purpose != VERIFY and self._leave_former_names(name, oid)
        # A FILL may begin again as a REPLACE.
        if purpose == FILL or (purpose == REPLACE and (is_renamed or name in self.filling or name in self.renamed)):
            self.note_incomplete(name)
            self.filling_oids[name] = oid
            self.renamed.discard(name)

    def _leave_former_names(self, name: str, oid: int) -> bool:
        """Forget tables that were to be filled from this relation before it was renamed to `name`.
        Return whether there are any."""
        former = {each for each in self.filling - {name} if oid and self.filling_oids.get(each) == oid}
        for each in former:
            self.windows.pop(each, None)
        self.filling -= former
        self.incomplete -= former
        self.renamed |= former
        return bool(former)

    def _end_whole(self, snapshot_id: str, *, is_cancelled: bool) -> None:
        """End a snapshot of all tables. If it was cancelled, tables that had rows during it may not
        have been read yet, and stay incomplete."""
        self.whole.pop(snapshot_id, None)
        if FILL not in self.whole.values():
            self.done.clear()
            if is_cancelled:
                self.incomplete |= self.filling
            self.filling &= self.incomplete
            self.filling_oids = {name: oid for name, oid in self.filling_oids.items() if name in self.filling}
        self._close(snapshot_id)

    def _end(self, name: str | None, mark: StoredMark) -> None:
        facts = mark.facts
        last = (facts["snapshot_id"], mark.commit_lsn)
        if name is None:
            is_cancelled = not facts.get(ENDS_WITH_TABLE) and self._last_end != last
            self._end_whole(facts["snapshot_id"], is_cancelled=is_cancelled)
            return
        self._last_end = last
        window = self.windows.pop(name, None)
        if facts["purpose"] == VERIFY:
            return
        self.filling.discard(name)
        self.incomplete.discard(name)
        self.filling_oids.pop(name, None)
        if window is not None:  # otherwise the keys are not known, and rows that are no longer in the source stayed
            self._thaw(name, facts.get("relation_oid"))
            if facts.get("row_count") == 0:
                self.empty.add(facts.get("relation_oid", 0))
            if self.gap is not None and window.begin_lsn > self.gap_lsn:
                self.repaired.add(name)
        if self.whole:
            self.done.add(name)

    def _close(self, snapshot_id: str) -> None:
        """Close the windows of tables that had no end of their own, since the snapshot was
        cancelled or they are no longer published. Windows of a FILL stay open: the tables are
        incomplete."""
        self.windows = {
            name: window
            for name, window in self.windows.items()
            if window.snapshot_id != snapshot_id or window.purpose == FILL
        }

    def note_first_rows(self, name: str, relation_oid: int) -> None:
        """Note the first rows of a table: during a FILL of all tables, the table is incomplete,
        unless its relation was complete before, without rows."""
        if FILL in self.whole.values() and name not in self.done and relation_oid not in self.empty:
            self.filling.add(name)
            self.filling_oids[name] = relation_oid
            if name in self.windows and self.windows[name].purpose != VERIFY:
                self.incomplete.add(name)

    def after_first_rows(
        self, marks: Iterable[StoredMark], first_rows: Mapping[str, FirstRows]
    ) -> Iterator[StoredMark]:
        """Yield marks, each after the first rows of new tables before it are noted. `first_rows`:
        as for `advance`."""
        new = sorted(first_rows.items(), key=itemgetter(1), reverse=True)
        for mark in marks:
            while new and new[-1][1].commit_lsn <= mark.commit_lsn:
                name, first = new.pop()
                self.note_first_rows(name, first.relation_oid)
            yield mark
        for name, first in new:
            self.note_first_rows(name, first.relation_oid)

    def note_incomplete(self, name: str) -> None:
        """Record that a table has only a part of its rows until a snapshot of the table ends."""
        self.filling.add(name)
        self.incomplete.add(name)

    def lacking_rows(self, tables: Iterable[str]) -> set[str]:
        """Return the tables that may lack rows until a snapshot of them ends: those being read, and
        those of `tables` that wait to be read since a gap."""
        replaced = {name for name, window in self.windows.items() if window.purpose != VERIFY}
        return replaced | self.filling | self.stale(tables).keys()

    def stale(self, tables: Iterable[str]) -> dict[str, str]:
        """Return those of these tables that differ from the source, and why."""
        gap = {} if self.gap is None else {name: self.gap for name in tables if name not in self.repaired}
        return gap | self.frozen

    def text(self) -> str:
        facts = asdict(self)
        del facts["_last_end"], facts["_excluded_lsns"], facts["renamed"]
        for window in facts["windows"].values():
            if window["schema_id"] is None:  # earlier releases do not know it
                del window["schema_id"]
        facts = {"open": facts.pop("windows"), **facts}  # `open`: the stored name
        return json.dumps({name: sorted(value) if isinstance(value, set) else value for name, value in facts.items()})

    @classmethod
    def of(cls, text: str | None) -> TableStates:
        """Parse `text`; None or "": the mirror is of a release without states."""
        if not text:
            return cls()
        facts = json.loads(text)
        sets = {name: set(facts[name]) for name in ("done", "filling", "repaired")}
        windows = {name: SnapshotWindow(**window) for name, window in facts["open"].items()}
        return cls(
            windows=windows,
            whole=facts["whole"],
            frozen=facts["frozen"],
            gap=facts["gap"],
            gap_lsn=facts.get("gap_lsn", 0),
            excludes=facts.get("excludes", []),
            former=facts.get("former", {}),
            empty=set(facts.get("empty", ())),
            filling_oids=facts.get("filling_oids", {}),
            frozen_oids=facts.get("frozen_oids", {}),
            incomplete=set(facts["incomplete"]) if "incomplete" in facts else _incomplete(facts, windows),
            **sets,
        )

    def copy(self) -> TableStates:
        return TableStates.of(self.text())


def _incomplete(facts: Mapping[str, Any], windows: Mapping[str, SnapshotWindow]) -> set[str]:
    """Return the incomplete tables of a state that an earlier release stored without distinguishing
    them. These are the tables that are filling, except those that may be so only because a FILL of
    all tables is in progress."""
    of_their_own = {name for name, window in windows.items() if window.purpose != VERIFY} | facts["frozen"].keys()
    filling = set(facts["filling"])
    return filling & of_their_own if FILL in facts["whole"].values() else filling


def advance(
    states: TableStates, marks: Sequence[StoredMark], first_rows: Mapping[str, FirstRows] = _NO_ROWS
) -> tuple[TableStates, dict[str, SnapshotWindow]]:
    """Return the states after these marks, and the snapshots of tables that ended among them.
    `first_rows`: those of each table that is new."""
    made, ended = states.copy(), {}
    for mark in made.after_first_rows(marks, first_rows):
        if mark.kind == SNAPSHOT_END and mark.table in made.windows:
            ended[mark.table] = made.windows[mark.table]
        made.apply_mark(mark)
    return made, ended


def unfinished(
    states: TableStates, marks: Sequence[StoredMark], first_rows: Mapping[str, FirstRows] = _NO_ROWS
) -> dict[str, SnapshotWindow]:
    """Return the snapshots of tables that are over without an end of their own, since the snapshot
    as a whole ended or was replaced by another one among these marks. If a table's read had not
    begun, its window begins where the whole ended. `first_rows`: as for `advance`."""
    made, over = states.copy(), dict[str, SnapshotWindow]()
    for mark in made.after_first_rows(marks, first_rows):
        incomplete, ends = set(made.incomplete), set[str]()
        if mark.kind in (SNAPSHOT_BEGIN, SNAPSHOT_END) and mark.table is None:
            snapshot_id = mark.facts["snapshot_id"]
            ends = {snapshot_id} if mark.kind == SNAPSHOT_END else made.whole.keys() - {snapshot_id}
            over |= {name: window for name, window in made.windows.items() if window.snapshot_id in ends}
        made.apply_mark(mark)
        for name in made.incomplete - incomplete if ends else ():
            over.setdefault(name, SnapshotWindow(min(ends), FILL, mark.commit_lsn))
    return over


def verified_chunks(marks: Iterable[StoredMark]) -> list[StoredMark]:
    """Return the chunks whose rows are only compared, and not written."""
    return [mark for mark in marks if mark.kind == "SNAPSHOT_CHUNK" and mark.facts["purpose"] == VERIFY]


def first_unreadable(states: TableStates, marks: Sequence[StoredMark]) -> int | None:
    """Return the commit LSN of the first of these marks that only a merge can apply, or None.

    Such a mark ends the snapshot of a table, in one of two cases. After a REPLACE, rows are deleted
    according to keys that only a merge stores (snapshot_keys.py). After a FILL of a frozen table, a
    version gets rows that earlier merges have written to the table without a version.
    """
    made = states.copy()
    for mark in marks:
        ends = mark.kind == "SNAPSHOT_END" and mark.table is not None and mark.facts["purpose"] != VERIFY
        if ends and (mark.facts["purpose"] == REPLACE or mark.table in made.frozen):
            return mark.commit_lsn
        made.apply_mark(mark)
    return None


def first_cut(states: TableStates, marks: Sequence[StoredMark], first_lsn: int, last_lsn: int) -> int | None:
    """Return the commit LSN at which changes have to be cut, so that those before that LSN are
    applied first, or None. The changes have these marks, and commit LSNs from `first_lsn` to
    `last_lsn`.

    They are cut before a table is excluded, so that the table's last state is kept. They are also
    cut where a second snapshot of a table begins after one has ended among them. VERIFY needs
    further cuts: see verify/comparison.first_later_change.
    """
    frozen, ended, cuts = {name: states.frozen_oids.get(name) for name in states.frozen}, set[str | None](), []
    for mark in marks:
        oid = mark.facts.get("relation_oid")
        if mark.kind == "EXCLUDED" and mark.table is not None:
            if frozen.get(mark.table, -1) not in (None, oid):
                cuts.append(mark.commit_lsn)
                frozen[mark.table] = oid
        elif mark.kind == "SNAPSHOT_BEGIN" and mark.table in ended:
            cuts.append(mark.commit_lsn)
        elif mark.kind == "SNAPSHOT_END" and mark.table is not None:
            ended.add(mark.table)
            frozen.pop(mark.table, None)
    return min((cut for cut in cuts if first_lsn < cut <= last_lsn), default=None)
