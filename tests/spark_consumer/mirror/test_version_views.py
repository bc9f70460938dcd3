"""All tables of a mirror at one commit, in SQL: temporary views of Spark, and statements for other
programs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.jobs.cli import app
from spark_consumer.mirror import versions
from spark_consumer.mirror.delta.log_replay import open_delta
from spark_consumer.mirror.local import version_list
from spark_consumer.mirror.paths import table_path
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, Feeder, relation
from tests.spark_consumer.mirror.test_mirror import run_mirror

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

BALANCED = "SELECT o.amount, o.amount + i.amount AS sum FROM {} o JOIN {} i USING (id)"


def test_views_and_statements_show_all_tables_as_of_one_commit(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Each transaction moves an amount from one table to the other."""
    names = ("outgoing", "Incoming table")
    tables = [feeder.table(relation(name, {"id": INT8, "amount": INT8}, ("id",))) for name in names]
    lsns = []
    for amount in range(3):
        transaction = feeder.begin()
        for table, sign in zip(tables, (1, -1), strict=True):
            row = {"id": 1, "amount": 100 + sign * amount}
            if amount:
                transaction.update(table, table.rows[1,], row)
            else:
                transaction.insert(table, row)
        lsns.append(transaction.commit())
        feeder.kafka_commit()
        run_mirror(spark, feeder, tmp_path, startingPosition=f"lsn:{lsns[-2]}" if amount else "earliest")
    for amount, lsn in enumerate(lsns):
        version = versions.register(spark, str(tmp_path), at=lsn)
        assert version.commit_lsn == lsn
        joined = spark.sql(BALANCED.format("public_outgoing", "`public_Incoming table`")).collect()
        assert [tuple(row) for row in joined] == [(100 + amount, 200)]
    versions.register(spark, str(tmp_path), schema="public")
    assert spark.sql(BALANCED.format("outgoing", "`Incoming table`")).collect()[0].sum == 200
    listed = version_list.listed_versions(tmp_path)
    assert [version.commit_lsn for version in listed] == lsns
    assert str(listed[1]).startswith(f"{format_lsn(lsns[1])}\t") and str(listed[1]).endswith("\t2")
    for at, shown in ((["--at", format_lsn(lsns[1] + 1)], listed[1:2]), ([], listed)):
        printed = CliRunner().invoke(app, ["versions", "--path", str(tmp_path), *at]).output
        assert printed.splitlines() == [str(version) for version in shown]
    comment, _, incoming, outgoing = version_list.view_statements(tmp_path, format_lsn(lsns[1] + 1), "duckdb")
    assert comment.endswith(format_lsn(lsns[1]))
    location = table_path(str(tmp_path), TableName.parse("public.outgoing"))
    number = listed[1].tables["public.outgoing"]
    assert outgoing == (
        f'CREATE OR REPLACE VIEW "public"."outgoing" AS SELECT * FROM delta_scan(\'{location}\', version := {number});'
    )
    assert '"public"."Incoming table"' in incoming
    rows = [row for table in open_delta(Path(location), number).batches() for row in table.to_pylist()]
    assert [row["amount"] for row in rows] == [101]
    assert version_list.view_statements(tmp_path, "latest", "trino")[-1].endswith(
        f'delta."public"."outgoing" FOR VERSION AS OF {listed[2].tables["public.outgoing"]};'
    )
    with pytest.raises(MirrorError, match=rf"no version up to 0/1: the mirror begins at {format_lsn(lsns[0])}"):
        version_list.view_statements(tmp_path, "0/1", "duckdb")


@pytest.mark.parametrize(
    ("names", "schema", "way_on"),
    [
        (["public.Orders", "public.orders"], "", "--exclude"),
        (["public.Orders", "public.orders"], "public", "--exclude"),
        (["a_b.c", "a.b_c"], "", "one schema at a time"),
    ],
)
def test_who_is_refused_two_tables_as_one_view_is_told_a_way_on(
    monkeypatch: pytest.MonkeyPatch, names: list[str], schema: str, way_on: str
) -> None:
    spark, made = MagicMock(), {name: MagicMock() for name in names}
    monkeypatch.setattr(versions, "read", lambda *_: made)
    with pytest.raises(MirrorError, match="would both be the view") as caught:
        versions.register(spark, "path", schema=schema)
    assert way_on in str(caught.value)


@pytest.mark.parametrize("dialect", ["duckdb", "trino"])
def test_tables_that_would_be_one_view_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    made = version_list.ListedVersion(1, None, None, {"public.Orders": 1, "public.orders": 2})
    monkeypatch.setattr(version_list, "version_at", lambda *_: made)
    with pytest.raises(MirrorError, match=r"public\.Orders and public\.orders would be one view"):
        version_list.view_statements(tmp_path, "latest", dialect)
