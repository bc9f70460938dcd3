"""The changes of a key are folded in this process or by Spark's workers: both give the same states,
and the right ones."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from schemas.change_schema import change_schema
from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.mirror.fold.fold_arrow import Key, key_tuples
from spark_consumer.mirror.fold.fold_spark import STATE
from spark_consumer.mirror.fold.start_fold import arrow_fold, spark_fold, table_schema
from spark_consumer.mirror.tables.table_schema import TableSchema
from tests.spark_consumer.feeder import FLOAT8, INT8, relation
from tests.spark_consumer.mirror.test_fold_arrow import COLUMNS, Row, histories

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SHAPE = TableSchema.of(change_schema(relation("r", {"h": INT8, "x": FLOAT8, "a": INT8, "b": INT8}, ("h", "x")), "cdc"))
NAN = float("nan")
KEYS = (0.0, NAN, -1.5, float("inf"), 1.5, 7.0)
"""Of `x`, by the number that a history has; 0 also comes as -0."""
History = tuple[dict[Key, Row], list[dict[str, Any]], dict[Key, Row]]


def key_of(history: int, key: Key, rnd: random.Random) -> dict[str, Any]:
    x = KEYS[key[0]]
    return {"h": history, "x": -0.0 if x == 0 and rnd.random() < 0.5 else x}


def events_of(found: list[History], rnd: random.Random) -> pa.Table:
    """All of them in one table, a change of key and the removal of the old one at one position, in
    any order."""
    rows: list[dict[str, Any]] = []
    for number, (_, events, _) in enumerate(found):
        place = 0
        for event in events:
            is_removal = (
                bool(rows) and event["deleted"] and rows[-1]["origin"] is not None and rows[-1]["key"]["h"] == number
            )
            place += not is_removal
            key = key_of(number, event["key"], rnd)
            row = event["row"] and {**key, **event["row"]}
            origin = event["origin"] and key_of(number, event["origin"], rnd)
            special = [
                (name, f"text {place}") for name in COLUMNS if row and row[name] is not None and row[name] % 7 == 0
            ]
            rows.append(
                {
                    "key": key, "origin": origin, "deleted": event["deleted"], "row": row, "special": special,
                    "unchanged": event["unchanged"], "commit_lsn": place // 3, "ordinal": place % 3,
                }
            )  # fmt: skip
    rnd.shuffle(rows)
    return pa.Table.from_pylist(rows, schema=SHAPE.events)


def base_of(spark: SparkSession, found: list[History]) -> Any:
    rows = [
        (number, KEYS[key[0]], row["a"], row["b"], None)
        for number, (before, _, _) in enumerate(found)
        for key, row in before.items()
    ]
    return spark.createDataFrame(rows, table_schema(SHAPE))


def states_of(states: pa.Table) -> dict[str, Any]:
    """By key; of a column that no event sent, the fold gives no value."""
    made = {}
    for key, state in zip(key_tuples(states["key"]), states.to_pylist(), strict=True):
        unsent = sorted(state["unchanged"]) if not state["deleted"] else []
        row = None if state["deleted"] else {name: state["row"][name] for name in COLUMNS if name not in unsent}
        special = None if state["deleted"] else sorted(entry for entry in state["special"] if entry[0] not in unsent)
        made[repr((key[0], key[1] + 0.0))] = (state["deleted"], row, unsent, special)
    return made


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(found=st.lists(histories(), min_size=30, max_size=60), seed=st.integers(0, 1 << 30), has_base=st.booleans())
def test_both_folds_give_the_same_last_states(
    spark: SparkSession, found: list[History], seed: int, has_base: bool
) -> None:
    rnd = random.Random(seed)
    events = events_of(found, rnd)
    base = base_of(spark, found) if has_base else None
    here = states_of(arrow_fold(spark, lambda: base, events, SHAPE))
    frame, _ = spark_fold(spark, lambda: base, to_frame(spark, events, spark_schema(SHAPE.events)), SHAPE)
    beside = states_of(frame.select(*STATE).toArrow())
    assert beside == here
    if base is None:
        return
    for number, (before, _, after) in enumerate(found):  # and they are the rows that there are
        for key in before.keys() | after.keys():
            state = here.get(repr((number, KEYS[key[0]])))
            row = before.get(key) if state is None else None
            if state is not None and not state[0]:
                row = {**before.get(key, {}), **state[1]}
            assert row == after.get(key), (number, key)
