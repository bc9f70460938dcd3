"""Records as keyed events, without Spark: whether a change has moved its row to another key."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest

from schemas.relation import RelationDescription, ReplicaIdentity, TypeFacts
from schemas.topic_names import avro_name
from spark_consumer.mirror.fold.event_decoder import decode_events
from spark_consumer.mirror.fold.fold_arrow import replay_events, states, whole_states
from spark_consumer.mirror.fold.keyless_log import small_log
from spark_consumer.mirror.fold.start_fold import arrow_fold
from spark_consumer.mirror.tables.table_schema import TableSchema
from spark_consumer.source.frames import RAW
from tests.spark_consumer.feeder import FLOAT8, INT8, NUMERIC, NUMERIC_12_2, TEXT, relation
from tests.spark_consumer.mirror.test_columns import record, schema, shape

NAN = math.nan
FLOATS = relation("floats", {"x": FLOAT8, "n": INT8, "note": TEXT}, ("x", "n"), ReplicaIdentity.FULL)
PAGES = relation("pages", {"url": TEXT, "seq": INT8, "note": TEXT}, ("url", "seq"))
PRICES = relation("prices", {"x": (NUMERIC, NUMERIC_12_2), "n": INT8, "note": TEXT}, ("x", "n"))
DOTS = relation("dots", {"id": INT8, ".id": INT8, ".": TEXT, "id.id": TEXT}, (".id",), ReplicaIdentity.FULL)


def events(description: RelationDescription, *changes: dict[str, Any]) -> tuple[TableSchema, pa.Table]:
    """Each change in a transaction of its own."""
    written = shape(description)
    raw = pa.RecordBatch.from_pydict(
        {
            "op": pa.array([change["op"] for change in changes]),
            "commit_lsn": pa.array(range(len(changes)), pa.int64()),
            "ordinal": pa.array([0] * len(changes), pa.int64()),
            "schema_id": pa.array([1] * len(changes), pa.int32()),
            "value": pa.array([record(description, **change) for change in changes], pa.binary()),
        }
    )
    made = list(decode_events(iter([raw]), written, {1: json.dumps(schema(description))}))
    return written, pa.Table.from_batches(made, written.events)


def floats(x: float, n: int, note: str) -> dict[str, Any]:
    return {"x": x, "n": n, "note": note}


@pytest.mark.parametrize(
    ("old", "new", "moves"),
    [
        ((NAN, 1), (NAN, 1), False),
        ((-NAN, 1), (NAN, 1), False),
        ((0.0, 1), (-0.0, 1), False),
        ((math.inf, 1), (math.inf, 1), False),
        ((NAN, 1), (NAN, 2), True),
        ((NAN, 1), (1.5, 1), True),
        ((1.5, 1), (NAN, 1), True),
        ((math.inf, 1), (-math.inf, 1), True),
    ],
)
def test_a_float_key_moves_only_to_what_is_not_equal_in_postgresql(
    old: tuple[float, int], new: tuple[float, int], moves: bool
) -> None:
    _, found = events(FLOATS, {"op": "UPDATE", "before": floats(*old, "a"), "after": floats(*new, "b")})
    assert found["deleted"].to_pylist() == [False, True][: 1 + moves]
    assert found["origin"].is_valid().to_pylist()[0] is moves
    living = [row["row"]["note"] for row in whole_states(found).to_pylist() if not row["deleted"]]
    assert living == ["b"]


def test_a_name_that_begins_with_a_dot_is_no_path() -> None:
    """Both where all columns were sent, and where one was not."""
    first = {avro_name(name): value for name, value in {"id": 1, ".id": 10, ".": "a", "id.id": "b"}.items()}
    second, moved = {**first, avro_name(".id"): 20}, {**first, avro_name(".id"): 30, avro_name("."): None}
    facts = {"op": "UPDATE", "before": None, "old_key": {avro_name(".id"): 20}, "unchanged": [avro_name(".")]}
    inserts = [{"op": "INSERT", "after": row} for row in (first, second)]
    _, found = events(DOTS, *inserts)
    assert [(row["key"], row["row"]["."]) for row in whole_states(found).to_pylist()] == [
        ({".id": 10}, "a"),
        ({".id": 20}, "a"),
    ]
    made, found = events(DOTS, *inserts, {**facts, "after": moved})
    ordered, outcomes = replay_events(found)
    rows = [row["row"] for row in states(ordered, outcomes, None, made).to_pylist() if not row["deleted"]]
    assert rows == [{"id": 1, ".id": key, ".": "a", "id.id": "b"} for key in (10, 30)]


PRICE = (NUMERIC, NUMERIC_12_2)
NAMED_BEFORE: dict[str, TypeFacts | tuple[TypeFacts, int]] = {
    "id": INT8, "x": PRICE, "before.x": PRICE, "before.note": TEXT,
}  # fmt: skip


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_column_may_have_the_name_that_marks_a_value_of_the_old_row(*, is_whole: bool) -> None:
    """Of the old row, x is special; of the new one, before.x is, and before.note was not sent."""
    named = relation("named", NAMED_BEFORE, ("id",), ReplicaIdentity.FULL if is_whole else ReplicaIdentity.DEFAULT)
    special_name, unsent_name = avro_name("before.x"), avro_name("before.note")
    new = {"id": 1, "x": None, special_name: None, unsent_name: None}
    change = {
        "op": "UPDATE",
        "before": {**new, unsent_name: "n1"} if is_whole else None,
        "after": new,
        "unchanged": [unsent_name],
        "special": {special_name: "NaN", **({"before.x": "Infinity"} if is_whole else {})},
    }
    (event,) = events(named, change)[1].to_pylist()
    assert event["row"]["before.note"] == ("n1" if is_whole else None)
    assert event["unchanged"] == ([] if is_whole else ["before.note"])
    assert event["special"] == [("before.x", "NaN")]


def test_a_log_has_the_special_values_of_each_row_under_its_own_column() -> None:
    named = relation("named", NAMED_BEFORE, (), ReplicaIdentity.FULL)
    special_name = avro_name("before.x")
    row = {"id": 1, "x": None, special_name: None, avro_name("before.note"): None}
    change = {"op": "UPDATE", "before": row, "after": row, "special": {special_name: "NaN", "before.x": "Infinity"}}
    raw = {
        **dict.fromkeys(RAW.names), "op": "UPDATE", "commit_lsn": 1, "ordinal": 0, "schema_id": 1,
        "value": record(named, **change),
    }  # fmt: skip
    records = pa.Table.from_pylist([raw], RAW)
    log = small_log(records, shape(named), {1: json.dumps(schema(named))}, None)
    assert [(row["_op"], row["_special"]) for row in log.to_pylist()] == [
        ("UPDATE_BEFORE", [("x", "Infinity")]),
        ("UPDATE", [("before.x", "NaN")]),
    ]


def page(seq: int, note: str | None, url: str | None = "U") -> dict[str, Any]:
    return {"url": url, "seq": seq, "note": note}


def update(old: int, new: int, note: str | None) -> dict[str, Any]:
    """An update whose url is stored out of line and was not sent; PostgreSQL then sends the old key
    in any case. `note` None: it was not sent either."""
    unsent = ["url"] if note else ["url", "note"]
    facts = {"op": "UPDATE", "before": None, "old_key": {"url": "U", "seq": old}}
    return {**facts, "after": page(new, note, None), "unchanged": unsent}


INSERT, DELETE = (
    {"op": "INSERT", "after": page(1, "n1")},
    {"op": "DELETE", "before": None, "old_key": {"url": "U", "seq": 2}, "after": None},
)
MOVE, CHANGE = update(1, 2, "n2"), update(2, 2, "n3")


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ([INSERT, MOVE], {1: None, 2: "n2"}),
        ([MOVE], {1: None, 2: "n2"}),
        ([INSERT, MOVE, CHANGE], {1: None, 2: "n3"}),
        ([MOVE, CHANGE], {1: None, 2: "n3"}),
        ([INSERT, MOVE, DELETE], {1: None, 2: None}),
        ([MOVE, DELETE], {1: None, 2: None}),
        ([INSERT, update(1, 2, None)], {1: None, 2: "n1"}),
        ([CHANGE], {2: "n3"}),
    ],
)
def test_only_the_key_column_that_was_not_sent_is_that_of_the_old_key(
    changes: list[dict[str, Any]], rows: dict[int, str | None]
) -> None:
    """The row has it too, since the target may not have the row yet."""
    made, found = events(PAGES, *changes)
    states_found = arrow_fold(cast("Any", None), lambda: None, found, made).to_pylist()
    assert {(state["key"]["url"], state["key"]["seq"]): state["row"] for state in states_found} == {
        ("U", seq): note and page(seq, note) for seq, note in rows.items()
    }
    assert not any(state["unchanged"] for state in states_found)


def test_a_special_value_of_the_old_key_stays_in_the_target() -> None:
    """As the others do whose columns are not part of the key."""

    def change(x: str) -> dict[str, Any]:
        facts = {"op": "UPDATE", "before": None, "old_key": {"x": x, "n": 1}}
        return {**facts, "after": {"x": None, "n": 2, "note": None}, "unchanged": ["note", "x"]}

    _, found = events(PRICES, change("NaN"), change("1.50"))
    assert [(event["key"], event["row"], event["unchanged"]) for event in found.to_pylist()[:2]] == [
        ({"x": None, "n": 2, "special of x": "NaN"}, {"x": None, "n": 2, "note": None}, ["note", "x"]),
        (
            {"x": Decimal("1.50"), "n": 2, "special of x": None},
            {"x": Decimal("1.50"), "n": 2, "note": None},
            ["note"],
        ),
    ]
    assert found["deleted"].to_pylist() == [False, False, True, True]
    assert [event["key"]["n"] for event in found.to_pylist()[2:]] == [1, 1]
