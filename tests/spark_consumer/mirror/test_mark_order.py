"""The signs of a stream, stored in batches that are cut anywhere: read back, they make of a mirror
what the stream says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_consumer.mirror.table_states import (
    FILL,
    REPLACE,
    VERIFY,
    FirstRows,
    SnapshotWindow,
    StoredMark,
    TableStates,
    advance,
    first_cut,
    parse_marks,
    unfinished,
)
from spark_consumer.reader.table_marks import EXCLUDED, GAP, MARKER_OFFSET, SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_END

TABLES = ("public.a", "public.b", "public.c")
OIDS = {name: oid for oid, name in enumerate(TABLES, 1)}
CHANGE = "INSERT"
Row = dict[str, Any]
End = tuple[str, SnapshotWindow]


def row(kind: str, table: str | None, lsn: int, offset: int, **facts: Any) -> Row:
    """As it is stored: frames.RAW, without the columns that only say where a record was in
    Kafka."""
    value = b"" if kind == CHANGE else json.dumps({**facts, MARKER_OFFSET: offset}).encode()
    return {"op": kind, "table": table, "commit_lsn": lsn, "ordinal": 0, "value": value, "commit_time": None}


@dataclass
class Gateway:
    """Writes markers as a gateway does: the tables that begin or end together, and the whole
    snapshot with its first and last ones, in one transaction."""

    rows: list[Row] = field(default_factory=list)
    lsn: int = 100
    snapshot: str | None = None
    number: int = 0
    purposes: dict[str, str] = field(default_factory=dict)  # of tables that have begun

    def commit(self, *rows: tuple[str, str | None, dict[str, Any]]) -> None:
        self.lsn += 10
        offset = len(self.rows)
        self.rows += [
            row(kind, table, self.lsn, offset + place, **more) for place, (kind, table, more) in enumerate(rows)
        ]

    def bound(self, kind: str, tables: Sequence[str | None]) -> None:
        facts = {"snapshot_id": self.snapshot, "row_count": 0}
        own = {name: {"purpose": self.purposes.get(name, FILL), "relation_oid": OIDS[name]} for name in tables if name}
        self.commit(*((kind, name, facts | own.get(name or "", {"purpose": FILL})) for name in tables))

    def begin(self, tables: Sequence[str], purpose: str) -> None:
        tables = [name for name in tables if name not in self.purposes]
        if not tables:
            return
        is_new = self.snapshot is None
        if is_new:
            self.number += 1
            self.snapshot = f"snapshot {self.number}"
        self.purposes |= dict.fromkeys(tables, purpose)
        self.bound(SNAPSHOT_BEGIN, [None, *tables] if is_new else tables)

    def end(self, tables: Sequence[str]) -> None:
        tables = [name for name in tables if name in self.purposes]
        if not tables:
            return
        is_last = len(tables) == len(self.purposes)
        self.bound(SNAPSHOT_END, [*tables, None] if is_last else tables)
        for name in tables:
            del self.purposes[name]
        self.snapshot = None if is_last else self.snapshot

    def cancel(self) -> None:
        if self.snapshot is not None:
            self.purposes.clear()
            self.bound(SNAPSHOT_END, [None])
            self.snapshot = None

    def chunk(self, table: str) -> None:
        if table in self.purposes:
            facts = {"snapshot_id": self.snapshot, "purpose": self.purposes[table], "row_count": 1}
            self.commit((CHANGE, table, {}), (SNAPSHOT_CHUNK, table, facts))


some = st.lists(st.sampled_from(TABLES), min_size=1, max_size=3, unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), some),
        st.tuples(st.just("begin"), some, st.sampled_from([FILL, REPLACE, VERIFY])),
        st.tuples(st.just("chunk"), st.sampled_from(TABLES)),
        st.tuples(st.just("end"), some),
        st.tuples(st.just("cancel")),
        st.tuples(st.just("exclude"), st.sampled_from(TABLES)),
        st.tuples(st.just("gap")),
    ),
    max_size=25,
)


def written(steps: Sequence[tuple[Any, ...]]) -> list[Row]:
    gateway = Gateway()
    for step, *words in steps:
        if step == "change":
            gateway.commit(*((CHANGE, name, {}) for name in words[0]))
        elif step == "exclude":
            gateway.commit((EXCLUDED, words[0], {"reason": "it is poison", "relation_oid": OIDS[words[0]]}))
        elif step == "gap":
            gateway.commit((GAP, None, {"detail": "the slot was lost"}))
        else:
            getattr(gateway, step)(*words)
    return gateway.rows


def read_in_order(rows: Sequence[Row]) -> Iterator[tuple[int, TableStates, list[End], dict[str, SnapshotWindow]]]:
    """The stream, marker by marker: behind each commit, the state, the snapshots of tables that
    ended, and those that are over without an end."""
    states, known = TableStates(), set[str]()
    ended, over = list[End](), dict[str, SnapshotWindow]()
    for place, entry in enumerate(rows):
        name = entry["table"]
        if entry["op"] == CHANGE:
            if name not in known:
                states.note_first_rows(name, OIDS[name])
            known.add(name)
        else:
            mark = StoredMark(entry["op"], name, entry["commit_lsn"], 0, json.loads(entry["value"]))
            ends, before = mark.facts.get("snapshot_id", ""), states.copy()
            states.apply_mark(mark)
            if mark.kind == SNAPSHOT_END and name in before.windows:
                ended.append((name, before.windows[name]))
            elif mark.kind == SNAPSHOT_END and name is None:
                waiting = states.incomplete - before.incomplete  # their read had not begun
                over |= dict.fromkeys(waiting, SnapshotWindow(ends, FILL, mark.commit_lsn))
                over |= {table: window for table, window in before.windows.items() if window.snapshot_id == ends}
        if place + 1 == len(rows) or rows[place + 1]["commit_lsn"] > entry["commit_lsn"]:
            yield entry["commit_lsn"], states.copy(), list(ended), over


@dataclass
class Reader:
    """A mirror without its tables: it keeps what a restart finds."""

    text: str | None = None
    reached: int = -1
    known: set[str] = field(default_factory=set)
    ended: list[End] = field(default_factory=list)
    over: dict[str, SnapshotWindow] = field(default_factory=dict)

    def apply_mark(self, stored: Sequence[Row]) -> None:
        rows = [entry for entry in stored if entry["commit_lsn"] > self.reached]
        states = TableStates.of(self.text)
        marks = parse_marks(entry for entry in rows if entry["op"] != CHANGE)
        lsns = [entry["commit_lsn"] for entry in rows]
        cut = first_cut(states, marks, min(lsns), max(lsns)) if rows else None
        if cut is not None:
            self.apply_mark([entry for entry in rows if entry["commit_lsn"] < cut])
            self.apply_mark([entry for entry in rows if entry["commit_lsn"] >= cut])
            return
        first: dict[str, FirstRows] = {}
        for entry in sorted(rows, key=itemgetter("commit_lsn"), reverse=True):
            if entry["op"] == CHANGE and entry["table"] not in self.known:
                first[entry["table"]] = FirstRows(entry["commit_lsn"], OIDS[entry["table"]])
        self.over |= unfinished(states, marks, first)
        states, ended = advance(states, marks, first)
        self.ended += ended.items()
        self.known |= first.keys()
        self.text, self.reached = states.text(), max(lsns, default=self.reached)


@pytest.mark.parametrize("has_offsets", [True, False], ids=["offsets", "stored by an older release"])
@given(steps=STEPS, data=st.data())
def test_whatever_the_batches_are_the_state_is_that_of_the_stream(
    has_offsets: bool, steps: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    rows = written(steps)
    reader, begin = Reader(), 0
    for lsn, states, ended, over in read_in_order(rows):
        end = sum(entry["commit_lsn"] <= lsn for entry in rows)
        if end < len(rows) and not data.draw(st.booleans(), label=f"a batch ends at {lsn}"):
            continue
        again = data.draw(st.integers(0, begin), label="a restart gives these again, from")
        batch = data.draw(st.permutations(rows[again:end]), label="batch")
        if not has_offsets:
            batch = [without_offset(entry) for entry in batch]
        if data.draw(st.booleans(), label="stored, sorted by table"):
            batch = sorted(batch, key=lambda entry: entry["table"] or "")
        reader.apply_mark(batch)
        assert TableStates.of(reader.text) == states
        assert sorted(reader.ended, key=str) == sorted(ended, key=str)
        assert reader.over == over
        begin = end


def without_offset(entry: Row) -> Row:
    if entry["op"] == CHANGE:
        return entry
    facts = json.loads(entry["value"])
    return {**entry, "value": json.dumps({name: facts[name] for name in facts if name != MARKER_OFFSET}).encode()}
