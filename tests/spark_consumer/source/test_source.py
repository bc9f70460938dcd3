"""The data sources on a real broker and registry: what they give is the truth, or an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.topic_names import transaction_topic
from spark_consumer.reader.broker import POLL_S
from spark_consumer.source.options import parse_options
from spark_consumer.source.rows import decode
from tests.spark_consumer.feeder import INT8, TEXT, Change, Feeder, Table, relation
from tests.spark_consumer.queries import run_to_end, run_to_end_of
from tests.spark_consumer.workload import Workload

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT}, ("id",))


def load(spark: SparkSession, feeder: Feeder, format: str = "walgate", **options: str) -> DataFrame:  # noqa: A002
    return spark.read.format(format).options(**feeder.options(**options)).load()


def positions(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [(c.table and c.table.name, c.op, c.commit_lsn, c.ordinal, c.change_lsn) for c in changes]


@pytest.mark.parametrize("seed", [1])
def test_a_random_workload_comes_out_as_it_happened(spark: SparkSession, feeder: Feeder, seed: int) -> None:
    feeder.range_records = 25
    workload = Workload(feeder, seed)
    for _ in range(150):
        workload.step()
    workload.finish()
    raw = load(spark, feeder, includeMessages="true").orderBy("commit_lsn", "ordinal").collect()
    assert [(r.table, r.op, r.commit_lsn, r.ordinal, r.change_lsn) for r in raw] == positions(feeder.truth)
    for table in workload.tables:
        typed = load(spark, feeder, table=table.name).orderBy("commit_lsn", "ordinal").toArrow().to_pylist()
        expected = [change for change in feeder.truth if change.table is table]
        found = [(row["op"], row["commit_lsn"], row["ordinal"]) for row in typed]
        assert found == [(change.op, change.commit_lsn, change.ordinal) for change in expected]
        for row, change in zip(typed, expected, strict=True):
            assert row["after"] == (None if change.op == "DELETE" else change.after)
            assert row["before"] == change.before
            assert row["old_key"] == change.old_key
            assert tuple(row["unchanged"]) == change.unchanged


def test_a_stream_gives_whole_transactions_within_its_limit(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    accounts = feeder.table(ACCOUNTS)
    for size in (1, 1, 30, 2, 2):
        transaction = feeder.begin()
        for _ in range(size):
            transaction.insert(accounts, {"id": len(feeder.truth), "owner": None})
        transaction.commit()
    feeder.kafka_commit()
    batches: list[list[int]] = []

    def collect(frame: DataFrame, _: int) -> None:
        batches.append(sorted(row.commit_lsn for row in frame.collect()))

    def stream(checkpoint: str, limit: str) -> DataStreamWriter:
        options = feeder.options(maxChangesPerTrigger=limit, tables=accounts.name)
        writer = spark.readStream.format("walgate").options(**options).load().writeStream.foreachBatch(collect)
        return writer.option("checkpointLocation", str(tmp_path / checkpoint))

    for limit, expected in (("10", [2, 30, 4]), ("none", [36])):
        batches.clear()
        run_to_end(stream(limit, limit))
        assert [len(batch) for batch in batches] == expected
        assert [lsn for batch in batches for lsn in batch] == [change.commit_lsn for change in feeder.truth]
    batches.clear()
    other = feeder.table(relation("other", {"id": INT8}, ("id",)))
    for size in (36, 0):  # then a batch of nothing: the offset passes what the query does not want
        run_to_end_of(stream("once", "10").trigger(once=True).start)
        assert len(batches[-1]) == size
        transaction = feeder.begin()
        transaction.insert(other, {"id": size})
        transaction.commit()
        feeder.kafka_commit()
    assert len(batches) == 2


def test_transactions_are_a_frame_of_their_own(spark: SparkSession, feeder: Feeder) -> None:
    accounts = feeder.table(ACCOUNTS)
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 1, "owner": None})
    commit_lsn = transaction.commit()
    feeder.kafka_commit()
    (row,) = load(spark, feeder, "walgate-transactions").collect()
    assert (row.commit_lsn, row.xid, row.kind, row.tables, row.event_count) == (
        commit_lsn, transaction.xid, "COMMIT", ["public.accounts"], 1,
    )  # fmt: skip


def exclude_accounts(marker: dict[str, Any]) -> None:
    facts = {"relation_oid": 1, "schema": "public", "name": "accounts", "topic": "", "event_count": 1, "reason": ""}
    marker["manifest"]["excluded"] = [facts]


def test_decode_leaves_the_markers_of_a_table_out(spark: SparkSession, feeder: Feeder) -> None:
    accounts = feeder.table(ACCOUNTS)
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 1, "owner": None})
    transaction.commit(damage=exclude_accounts)
    feeder.kafka_commit()
    raw = load(spark, feeder, includeMarkers="true")
    assert sorted(row.op for row in raw.where("table = 'public.accounts'").collect()) == ["EXCLUDED", "INSERT"]
    assert [row.op for row in decode(raw, "public.accounts", feeder.options()).collect()] == ["INSERT"]


def test_a_view_in_sql_has_the_typed_columns(spark: SparkSession, feeder: Feeder) -> None:
    """As docs/spark.md has it."""
    accounts = feeder.table(ACCOUNTS)
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 1, "owner": "a"})
    transaction.insert(accounts, {"id": 2, "owner": "b"})
    transaction.commit()
    feeder.kafka_commit()
    options = ", ".join(f"'{name}' '{value}'" for name, value in feeder.options(table="public.accounts").items())
    spark.sql(f"CREATE TEMPORARY VIEW account_changes USING walgate OPTIONS ({options})")
    try:
        rows = spark.sql("SELECT op, after.owner FROM account_changes WHERE after.id = 2").collect()
        assert [tuple(row) for row in rows] == [("INSERT", "b")]
    finally:
        spark.catalog.dropTempView("account_changes")


def test_a_filter_of_one_query_does_not_change_another(spark: SparkSession, feeder: Feeder) -> None:
    """Spark shares the plan of a read among all scans of a frame or a view."""
    accounts = feeder.table(ACCOUNTS)
    transaction = feeder.begin()
    for number in range(3):
        transaction.insert(accounts, {"id": number, "owner": None})
    transaction.commit()
    deletion = feeder.begin()
    deletion.delete(accounts, accounts.rows[1,])
    deletion.commit()
    feeder.kafka_commit()
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        frame = load(spark, feeder, table="public.accounts")
        inserts, deletes = frame.where("op = 'INSERT'"), frame.where("op = 'DELETE'")
        pairs = inserts.alias("i").join(deletes.alias("d"), f.col("i.after.id") == f.col("d.old_key.id"))
        assert [each.count() for each in (inserts, deletes, frame)] == [3, 1, 4]
        assert [each.count() for each in (inserts.union(deletes), pairs)] == [4, 1]
    finally:
        spark.conf.unset(setting)


def test_positions_bound_a_batch_read(spark: SparkSession, feeder: Feeder) -> None:
    accounts = feeder.table(ACCOUNTS)
    lsns = []
    for number in range(5):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "owner": None})
        lsns.append(transaction.commit())
    feeder.kafka_commit()
    options = {"startingPosition": f"lsn:{lsns[1]}", "endingPosition": f"lsn:{lsns[3]}"}
    found = sorted(row.commit_lsn for row in load(spark, feeder, **options).collect())
    assert found == lsns[2:4]


def test_a_stretch_with_control_records_is_read_without_waiting_for_more(feeder: Feeder) -> None:
    """Half of its offsets are ends of Kafka transactions: who waits for as many messages as offsets
    waits for the poll's end."""
    accounts = feeder.table(ACCOUNTS)
    for number in range(20):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "owner": None})
        transaction.commit()
        feeder.kafka_commit()
    broker = parse_options(feeder.options(), streaming=True).broker
    topic = transaction_topic(feeder.prefix)
    low, high = broker.offsets(topic)
    assert high - low == 40
    took = []
    for _ in range(20):
        began = time.monotonic()
        assert sum(len(offsets) for offsets, _ in broker.read(topic, 0, low, high - 1)) == 20
        took.append(time.monotonic() - began)
    assert min(took) < POLL_S, took


def spoil_range(name: str, difference: int) -> Callable[[dict[str, Any]], None]:
    def spoil(marker: dict[str, Any]) -> None:
        marker["manifest"]["ranges"][0][name] += difference

    return spoil


def spoil_epoch(marker: dict[str, Any]) -> None:
    marker["manifest"]["epoch"] += 1


def spoil_order(marker: dict[str, Any]) -> None:
    marker["marker_lsn"] = 1


def spoil_manifest(marker: dict[str, Any]) -> None:
    marker["manifest"] = None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (spoil_range("record_count", -1), "manifest in its marker says"),
        (spoil_range("last_offset", 50), "no record at offset"),
        (spoil_range("partition", 1), "manifest in its marker says|no record at offset|no longer has offset|overlap"),
        (spoil_epoch, "manifest in its marker says"),
        (spoil_order, "does not come after"),
        (spoil_manifest, r"\.transaction\[0\] offset \d+: the COMMIT of xid \d+ has no manifest"),
    ],
)
def test_a_damaged_marker_stops_the_read_in_time(
    spark: SparkSession, feeder: Feeder, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    accounts = feeder.table(ACCOUNTS)
    good = feeder.begin()
    good.insert(accounts, {"id": 0, "owner": None})
    good.commit()
    bad = feeder.begin()
    for number in range(1, 4):
        bad.insert(accounts, {"id": number, "owner": None})
    bad.commit(damage=damage)
    feeder.kafka_commit()
    patience_s = "5" if "no record" in message else "30"  # a busy broker is not to be taken for a damage
    began = time.monotonic()
    with pytest.raises(Exception, match=message):
        load(spark, feeder, noProgressTimeout=patience_s).collect()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxChangePerTriger": "5"}, "Did you mean maxChangesPerTrigger"),
        ({"table": "accounts"}, "schema.table"),
        ({"startingPosition": "soon"}, "Write earliest"),
        ({"table": "public.a", "tables": "public.b"}, "cannot be combined"),
        ({"kafka.isolation.level": "read_uncommitted"}, "set by the data source"),
        ({"kafka.no.such.setting": "1"}, "No such configuration property"),
    ],
)
def test_a_wrong_option_is_refused(spark: SparkSession, options: dict[str, str], message: str) -> None:
    needed = {"kafka.bootstrap.servers": "127.0.0.1:1", "registry.url": "http://127.0.0.1:1"}
    with pytest.raises(Exception, match=message):
        spark.read.format("walgate").options(**needed, **options).load()


def test_old_and_new_records_come_in_the_newest_columns(spark: SparkSession, feeder: Feeder) -> None:
    old = feeder.table(ACCOUNTS)
    first = feeder.begin()
    first.insert(old, {"id": 1, "owner": "a"})
    first.commit()
    wider = relation("accounts", {"id": INT8, "city": TEXT}, ("id",))
    new: Table = feeder.alter(old, wider)
    second = feeder.begin()
    second.insert(new, {"id": 2, "city": "b"})
    second.commit()
    feeder.kafka_commit()
    rows = load(spark, feeder, table="public.accounts").orderBy("commit_lsn").collect()
    assert [row.after.asDict() for row in rows] == [{"id": 1, "city": None}, {"id": 2, "city": "b"}]
