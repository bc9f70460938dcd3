"""Folding of keyed events: changes of key that were not sent whole, deletions and new rows, against
a plain model of a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.change_schema import change_schema
from spark_consumer.mirror.fold.fold_arrow import (
    FoldResult,
    Key,
    key_tuples,
    replay,
    replay_events,
    states,
    whole_states,
)
from spark_consumer.mirror.tables.table_schema import TableSchema
from tests.spark_consumer.feeder import FLOAT8, INT8, TEXT, relation

COLUMNS = ("a", "b")
Row = dict[str, int]


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[Key, Row], list[dict[str, Any]], dict[Key, Row]]:
    """A table, events over it, and the table behind them."""
    rows = {(key,): dict.fromkeys(COLUMNS, key * 10) for key in draw(st.sets(st.integers(0, 4)))}
    before = {key: dict(row) for key, row in rows.items()}
    events: list[dict[str, Any]] = []
    for value in range(100, 100 + draw(st.integers(0, 15))):
        key = (draw(st.integers(0, 5)),)
        if key not in rows:
            rows[key] = dict.fromkeys(COLUMNS, value)
            events.append({"key": key, "origin": None, "deleted": False, "row": dict(rows[key]), "unchanged": []})
            continue
        what = draw(st.sampled_from(["update", "move", "delete"]))
        if what == "delete":
            del rows[key]
            events.append({"key": key, "origin": None, "deleted": True, "row": None, "unchanged": []})
            continue
        unsent = sorted(draw(st.sets(st.sampled_from(COLUMNS))))
        new = {name: rows[key][name] if name in unsent else value for name in COLUMNS}
        sent = {name: None if name in unsent else value for name in COLUMNS}
        free = [(other,) for other in range(6) if (other,) not in rows]
        if what == "move" and free:
            to = draw(st.sampled_from(free))
            del rows[key]
            rows[to] = new
            events.append({"key": to, "origin": key, "deleted": False, "row": sent, "unchanged": unsent})
            events.append({"key": key, "origin": None, "deleted": True, "row": None, "unchanged": []})
        else:
            rows[key] = new
            events.append({"key": key, "origin": None, "deleted": False, "row": sent, "unchanged": unsent})
    return before, events, rows


def applied(before: dict[Key, Row], events: list[dict[str, Any]], outcomes: dict[Key, FoldResult]) -> dict[Key, Row]:
    """What a MERGE of the outcomes makes of the table."""
    after = dict(before)
    for key, outcome in outcomes.items():
        after.pop(key, None)
        if outcome.deleted:
            continue
        row = dict(events[outcome.last]["row"])
        row |= {name: events[place]["row"][name] for name, place in outcome.sent_at.items()}
        row |= {name: before[key][name] for name in outcome.kept}
        row |= {name: before[other][name] for name, other in outcome.borrowed.items()}
        after[key] = row
    return after


@settings(max_examples=500, deadline=None)
@given(histories())
def test_outcomes_make_of_the_table_what_the_events_did(
    history: tuple[dict[Key, Row], list[dict[str, Any]], dict[Key, Row]],
) -> None:
    before, events, after = history
    columns = [[event[name] for event in events] for name in ("key", "origin", "deleted", "unchanged")]
    assert applied(before, events, replay(*columns)) == after


def test_a_row_without_unsent_columns_needs_nothing_from_the_target() -> None:
    (outcome,) = replay([(1,)], [None], [False], [[]]).values()
    assert (outcome.sent_at, outcome.kept, outcome.borrowed) == ({}, set(), {})


SHAPE = TableSchema.of(change_schema(relation("r", {"x": FLOAT8, "n": INT8, "note": TEXT}, ("x", "n")), "cdc"))


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, -0.0, float("nan"), -float("nan"), 1.5]), st.integers(0, 1), st.booleans())
    )
)
def test_whole_rows_are_folded_by_columns_to_what_one_by_one_gives(keys: list[tuple[float, int, bool]]) -> None:
    events = pa.Table.from_pylist(
        [
            {
                "key": {"x": x, "n": n}, "deleted": deleted, "unchanged": [], "special": [], "commit_lsn": place // 3,
                "row": None if deleted else {"x": x, "n": n, "note": str(place)}, "ordinal": place % 3,
            }
            for place, (x, n, deleted) in enumerate(keys)
        ],
        schema=SHAPE.events,
    )  # fmt: skip
    ordered, outcomes = replay_events(events)
    one_by_one = states(ordered, outcomes, None, SHAPE)
    at_once = whole_states(events)
    assert by_key(at_once) == by_key(one_by_one)
    assert len(at_once) == len(one_by_one) == len({(repr(x + 0.0), n) for x, n, _ in keys})


def by_key(found: pa.Table) -> list[Any]:
    """NaN is not equal to itself: texts are."""
    rows = found.select(["deleted", "row", "unchanged", "special"]).to_pylist()
    return sorted(zip(map(repr, key_tuples(found["key"])), map(repr, rows), strict=True))
