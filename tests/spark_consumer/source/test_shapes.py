"""Which schemas and tables the tasks of a read get on the driver."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.change_schema import change_schema
from spark_consumer.columnar.head import OPERATIONS
from spark_consumer.reader import topics
from spark_consumer.reader.markers import CommittedTransaction, Range
from spark_consumer.reader.read_planning import Read
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.source import shapes
from spark_consumer.source.frames import TableFrame
from spark_consumer.source.options import Options, parse_options
from spark_consumer.source.reading import Chunk
from spark_consumer.source.shapes import ChangeShape, ReadTask, TransactionShape
from tests.spark_consumer.feeder import INT8, relation

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:1", "registry.url": "http://127.0.0.1:1"}
ITEMS, OTHER = (change_schema(relation(name, {"id": INT8}, ("id",)), "cdc") for name in ("items", "other"))


def options(**more: str) -> Options:
    return parse_options({**NEEDED, **more}, streaming=None)


def transaction(number: int, schema_ids: tuple[int, ...], *topics: str) -> CommittedTransaction:
    ranges = tuple(Range(topic, 0, number, number, 1) for topic in topics)
    return CommittedTransaction(
        number, "COMMIT", 100 + number, 0, None, 700 + number, 1, None, None, 1, (), schema_ids, ranges
    )


def test_a_missing_schema_of_another_table_stops_no_typed_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schema 3 was deleted; nothing needs schema 4."""
    asked: list[int] = []

    def find_schema(_: Registry, schema_id: int) -> dict[str, Any] | None:
        asked.append(schema_id)
        return {1: ITEMS, 2: OTHER, 3: None}[schema_id]

    monkeypatch.setattr(Registry, "find_schema", find_schema)
    chosen = options(table="public.items")
    transactions = [
        transaction(0, (1, 2, 3), "cdc.public.items", "cdc.public.other"),
        transaction(1, (4,), "cdc.public.other"),
    ]
    (task,) = ChangeShape(chosen, TableFrame.of(ITEMS)).tasks(transactions, SchemaCache(chosen.registry))
    assert isinstance(task, ReadTask) and list(task.schemas) == [1]
    assert asked == [1, 2, 3]


def test_workers_do_not_ask_the_registry_for_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_chunks(_: object, reads: list[Read]) -> list[Chunk]:
        one = np.zeros(1, np.int64)
        insert = np.array([OPERATIONS.index("INSERT")])
        return [Chunk(read, one, pa.array([b"\0\0\0\0\1"]), insert, one, one, one, one, one) for read in reads]

    def fails(*_: object) -> tuple[int, dict[str, Any]]:
        raise AssertionError("the registry was asked")

    monkeypatch.setattr(Registry, "latest", lambda *_: (1, ITEMS))
    monkeypatch.setattr(shapes, "read_chunks", read_chunks)
    chosen, transactions = options(), [transaction(0, (1,), "cdc.chosen-name", "cdc.message")]
    found = {}
    for shape in (ChangeShape(chosen, None), TransactionShape(chosen)):
        planned = pickle.dumps((shape, shape.tasks(transactions, SchemaCache(chosen.registry))))
        with monkeypatch.context() as on_worker:
            on_worker.setattr(topics, "_tables", {})
            on_worker.setattr(Registry, "latest", fails)
            shape, (task,) = pickle.loads(planned)
            found[type(shape)] = [row for batch in shape.read(task) for row in batch.to_pylist()]
    assert [row["table"] for row in found[ChangeShape]] == ["public.items"]
    assert [row["tables"] for row in found[TransactionShape]] == [["public.items"]]
