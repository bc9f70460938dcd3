"""`walgate dump`, which needs no Spark."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from schemas.change_schema import change_schema
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.delta.delta_table import DELETION_VECTORS
from spark_consumer.mirror.delta.log_replay import DeltaFiles, open_delta
from spark_consumer.mirror.local import dump
from spark_consumer.mirror.local.dump import DumpedTable, newest, text_rows
from spark_consumer.mirror.tables.table_schema import TableSchema
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, relation


@pytest.mark.parametrize(
    ("columns", "special"),
    [
        (["id", "_special"], "_special"),
        (["special", "_special", "is_special", "____________"], "_special"),
        (["_special", "id", "__special"], "__special"),
        (["__special", "id", "_special", "___special"], "___special"),
    ],
)
def test_a_column_of_the_source_is_not_taken_for_the_special_texts(columns: list[str], special: str) -> None:
    table = DumpedTable("public.t", 1, DeltaFiles(Path(), columns={name: name for name in columns}))
    assert table.special == special
    assert table.columns == [name for name in columns if name != special]


@pytest.mark.parametrize("names", [(), ("_special",), ("__special",), ("___special", "_special", "special")])
def test_the_column_of_special_texts_is_found_again(names: tuple[str, ...]) -> None:
    described = relation("items", {"id": INT8, **dict.fromkeys(names, TEXT)}, ("id",))
    shape = TableSchema.of(change_schema(described, "cdc"))
    columns = {name: name for name in (*shape.columns, shape.special_column)}
    assert DumpedTable("public.items", 1, DeltaFiles(Path(), columns=columns)).columns == ["id", *names]


@pytest.mark.integration
@pytest.mark.parametrize(
    "deleted",
    [
        "id in (3, 70000, 199999)",
        pytest.param("id % 3 = 0", marks=pytest.mark.long),
        pytest.param("id between 1000 and 150000", marks=pytest.mark.long),
        "id % 3 = 0 or id between 70000 and 140000",
    ],
)
def test_rows_in_a_deletion_vector_are_not_there(spark: SparkSession, tmp_path: Path, deleted: str) -> None:
    """Bitmaps in all their forms: places, bits and runs."""
    location = str(tmp_path / "table")
    rows = spark.range(0, 200_000, 1, 1)
    rows.write.format("delta").options(**DELETION_VECTORS).save(location)
    table = DeltaTable.forPath(spark, location)
    table.delete(deleted)
    table.delete("id = 5")  # another vector in the place of the first
    found = open_delta(Path(location))
    assert all(vector is not None for vector in found.files.values())
    held = pa.concat_tables(found.batches())["id"].to_pylist()
    assert held == [row.id for row in rows.where(f"not ({deleted}) and id != 5").collect()]


@pytest.mark.integration
def test_a_table_without_rows_has_a_file_with_its_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so do the tables behind it."""
    columns = (
        "id",
        "'a' AS text",
        "id * 1.50 AS price",
        "now() AS time",
        "array(id) AS ids",
        "map('a', 'b') AS _special",
    )
    location = str(tmp_path / "table")
    rows = spark.range(3).selectExpr(*columns)
    rows.write.format("delta").save(location)
    full = DumpedTable("public.b", 1, open_delta(Path(location)))
    rows.limit(0).write.format("delta").mode("overwrite").save(location)
    empty = DumpedTable("public.a", 1, open_delta(Path(location)))
    assert not empty.files.files
    monkeypatch.setattr(dump, "newest", lambda *_: [empty, full])
    dump.dump_parquet(tmp_path, [], tmp_path / "out")
    found = [pq.read_table(tmp_path / "out" / f"public.{name}.parquet") for name in "ab"]
    assert [len(table) for table in found] == [0, 3]
    types = [spark.read.parquet(str(tmp_path / "out" / f"public.{name}.parquet")).dtypes for name in "ab"]
    assert types[0] == types[1] == rows.dtypes


def test_small_numbers_are_written_as_postgresql_does() -> None:
    numbers = [Decimal(0), Decimal("1E-10"), None, Decimal("2.5")]
    column = pa.chunked_array([numbers[:2], numbers[2:]], pa.decimal128(20, 10))
    table = pa.table(
        {"n": column, "list": pa.array([numbers, None, [], []], pa.list_(column.type)), "_special": [None] * 4}
    )
    assert list(text_rows(table, ["n", "list"], "_special")) == [
        ("0.0000000000", '{"0.0000000000","0.0000000001",NULL,"2.5000000000"}'),
        ("0.0000000001", None),
        (None, "{}"),
        ("2.5000000000", "{}"),
    ]


@pytest.mark.parametrize("name", [("public", "a/b"), ("public", "x/../../y"), ("../..", "t")])
def test_no_name_of_a_table_leads_out_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: tuple[str, str]
) -> None:
    empty = DumpedTable(str(TableName(*name)), 1, DeltaFiles(tmp_path, schema=pa.schema([("id", pa.int64())])))
    monkeypatch.setattr(dump, "newest", lambda *_: [empty])
    dump.dump_parquet(tmp_path, [], tmp_path / "to" / "out")
    assert [path.parent for path in tmp_path.rglob("*.parquet")] == [tmp_path / "to" / "out"]


def test_a_folder_without_a_mirror_is_named(tmp_path: Path) -> None:
    with pytest.raises(MirrorError, match=f"there is no mirror at {tmp_path}"):
        newest(tmp_path)
