"""Tables that were dropped and recreated without rows: the stream has no change of the new
relation, and only a snapshot says that it is empty."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import methodcaller
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.paths import kept_path
from spark_consumer.mirror.slice_contents import TablePart, empty_relations
from spark_consumer.mirror.table_states import SnapshotWindow, StoredMark
from spark_consumer.mirror.tables.prepare_table import EMPTY, KEEP_AS, STOP
from spark_consumer.mirror.tables.table_schema import OUT, is_log
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import Feeder, Row, Table
from tests.spark_consumer.mirror.test_snapshots import ACCOUNTS, CALLS, ITEMS, account, in_one_transaction, visit
from tests.spark_consumer.mirrors import merged_rows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def take(spark: SparkSession, feeder: Feeder, path: Path, on_recreated: str = EMPTY, *, merges: bool = True) -> str:
    """What the mirror reports."""
    feeder.kafka_commit()
    notes: list[str] = []
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))
    mirror = AppendingMirror(
        str(path),
        schemas,
        lambda report: notes.extend(report.notes),
        on_recreated=on_recreated,
        merge_every_s=math.inf,
    )
    mirror.apply(spark.read.format("walgate").options(**feeder.options(includeMarkers="true")).load(), 0)
    mirror.finish(spark, merge=merges)
    return "\n".join(notes)


def shown(spark: SparkSession, path: Path, table: Table) -> list[Row]:
    """What the newest version shows of the table, as `held`."""
    picture = versions.read(spark, str(path))
    assert picture.filling == []
    return held(path, table, picture[table.name].toArrow().to_pylist())


def held(path: Path, table: Table, rows: list[Row] | None = None) -> list[Row]:
    """What the table has: of a log, what was inserted behind its last TRUNCATE. `rows`: all of it,
    if they are not those that were merged."""
    rows = merged_rows(path, table.name)[table.name] if rows is None else rows
    if rows and is_log(rows[0]):
        rows.sort(key=lambda row: (row["_commit_lsn"], row["_ordinal"], row["_op"] == "TRUNCATE"))
        assert not {row["_op"] for row in rows} & {*OUT}
        cuts = [place for place, row in enumerate(rows) if row["_op"] == "TRUNCATE"]
        rows = rows[cuts[-1] + 1 :] if cuts else rows
    columns = {column.name for column in table.description.columns}
    return [{name: row[name] for name in row if name in columns} for row in rows]


def recreated(feeder: Feeder, *tables: Table) -> list[Table]:
    """In the order of the gateway: the new relations are found in the catalog, and read."""
    made = [feeder.alter(table, replace(table.description, oid=table.description.oid + 1)) for table in tables]
    for table in made:
        feeder.bound("SNAPSHOT_BEGIN", table, "FILL")
    for table in made:
        feeder.bound("SNAPSHOT_END", table, "FILL", rows=0)
    return made


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_rows_of_a_relation_that_was_recreated_without_rows_go(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, at_once: bool
) -> None:
    """Rows with a key, and those of a log. `at_once`: the last changes of the former relations are
    merged with the end of the snapshot."""
    items, former = feeder.table(ITEMS), [feeder.table(ACCOUNTS), feeder.table(CALLS)]
    rows = [[account(1), account(2)], [visit("a"), visit("b")]]

    def insert(tables: list[Table], number: int) -> None:
        for table, of_table in zip(tables, rows, strict=True):
            in_one_transaction(feeder, methodcaller("insert", table, of_table[number]))

    insert(former, 0)
    in_one_transaction(feeder, lambda t: t.insert(items, {"id": 1}))
    take(spark, feeder, tmp_path)
    insert(former, 1)
    if not at_once:
        take(spark, feeder, tmp_path)
    made = recreated(feeder, *former)
    in_one_transaction(feeder, lambda t: t.insert(items, {"id": 2}))
    take(spark, feeder, tmp_path, merges=False)
    names = [table.name for table in former]
    assert versions.read(spark, str(tmp_path)).filling == names, "no version has them before the merge"
    told = take(spark, feeder, tmp_path)
    for table in made:
        assert f"{table.name} was dropped and recreated: the rows of the old table were removed" in told
        assert held(tmp_path, table) == []
    insert(made, 0)
    assert "recreated" not in take(spark, feeder, tmp_path)
    assert [held(tmp_path, table) for table in made] == [of_table[:1] for of_table in rows]
    in_one_transaction(feeder, lambda t: t.insert(former[1], visit("b")))
    with pytest.raises(MirrorError, match=r"public\.calls .*was dropped and recreated, or another table was renamed"):
        take(spark, feeder, tmp_path)


def test_they_are_kept_or_refused_as_somebody_said(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    accounts = feeder.table(ACCOUNTS)
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(1)))
    take(spark, feeder, tmp_path)
    (made,) = recreated(feeder, accounts)
    with pytest.raises(MirrorError, match="was dropped and recreated"):
        take(spark, feeder, tmp_path, STOP)
    assert take(spark, feeder, tmp_path, KEEP_AS)
    assert held(tmp_path, made) == []
    kept = kept_path(str(tmp_path), TableName.parse(accounts.name), accounts.description.oid)
    assert [row["id"] for row in spark.read.format("delta").load(kept).collect()] == [1]


def test_rows_that_came_since_are_those_of_the_new_relation(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """All of it in one merge: the change behind the snapshot removes the old rows."""
    accounts = feeder.table(ACCOUNTS)
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(1)))
    (made,) = recreated(feeder, accounts)
    in_one_transaction(feeder, lambda t: t.insert(made, account(2)))
    again = feeder.alter(made, replace(ACCOUNTS, oid=ACCOUNTS.oid + 2))
    in_one_transaction(feeder, lambda t: t.insert(again, account(3)))
    take(spark, feeder, tmp_path)
    assert held(tmp_path, again) == [account(3)]


@pytest.mark.parametrize(
    ("known", "change", "key", "is_found"),
    [
        (1, None, None, True),
        (2, None, None, False),
        (1, (1, 5), None, True),
        (2, (2, 15), None, False),
        (1, (1, 15), None, False),
        (1, None, ["id"], False),
    ],
    ids=["former rows", "same relation", "changed before", "new rows", "changed since", "changed since, read before"],
)
def test_only_what_was_there_before_the_snapshot_is_of_a_former_relation(
    known: int, change: tuple[int, int] | None, key: list[str] | None, is_found: bool
) -> None:
    """The snapshot of relation 2 begins at LSN 10. Between its last look and its end the table may
    have been recreated once more."""
    facts = {"purpose": "FILL", "row_count": 0, "relation_oid": 2, "snapshot_id": "one"}
    mark = StoredMark("SNAPSHOT_END", "public.items", 20, 0, facts)
    window = SnapshotWindow("one", "FILL", 10, key)
    parts = []
    if change is not None:
        oid, lsn = change
        parts.append(TablePart(TableName("public", "items"), 1, 1, [oid], oid, None, lsn, lsn))
    found = empty_relations(
        [mark], {"public.items": window}, parts, {"public.items": known}, lambda schema_id: schema_id
    )
    assert found == ({"public.items": 2} if is_found else {})
