"""No row of an Arrow table is left out of its frame."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_consumer
from spark_consumer.arrow import to_frame

SCHEMA = pa.schema([("number", pa.int64())])
ROOM = Path(spark_consumer.__file__).parent


@pytest.mark.integration
@pytest.mark.parametrize("sizes", [(), (0,), (2,), (1, 0, 1), (0, 0, 2), (2, 0, 0, 1, 0), (0, 1, 0, 3)])
def test_chunks_without_rows_do_not_end_a_table(spark: SparkSession, sizes: tuple[int, ...]) -> None:
    chunks = [pa.array([10 * index + row for row in range(size)], pa.int64()) for index, size in enumerate(sizes)]
    table = pa.table([pa.chunked_array(chunks, pa.int64())], schema=SCHEMA)
    assert to_frame(spark, table).toArrow().sort_by("number").to_pylist() == table.to_pylist()


def test_nothing_else_makes_frames_of_arrow() -> None:
    """Of lists it may: those have no chunks."""
    found = {
        path.name
        for path in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "createDataFrame"
        and not isinstance(node.args[0], (ast.List, ast.ListComp))
    }
    assert found == {"arrow.py"}
