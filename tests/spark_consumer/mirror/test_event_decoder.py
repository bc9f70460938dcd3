"""Records as keyed events, without Spark: whether a change has moved its row to another key."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest

from schemas.relation import RelationDescription, ReplicaIdentity
from schemas.topic_names import avro_name
from spark_consumer.mirror.fold.event_decoder import decode_events
from spark_consumer.mirror.fold.fold_arrow import replay_events, states, whole_states
from spark_consumer.mirror.tables.table_schema import TableSchema
from tests.spark_consumer.feeder import FLOAT8, INT8, TEXT, relation
from tests.spark_consumer.mirror.test_columns import record, schema, shape

NAN = math.nan
FLOATS = relation("floats", {"x": FLOAT8, "n": INT8, "note": TEXT}, ("x", "n"), ReplicaIdentity.FULL)
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
