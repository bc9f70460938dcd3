"""Mirrors on real parts: after any workload the Delta tables are what the source's tables are."""

from __future__ import annotations

import io
import json
import shutil
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from schemas.lsn import format_lsn
from spark_consumer.changelog.writer import Changelog
from spark_consumer.errors import MirrorError
from spark_consumer.mirror import maintenance, slice_contents, unmerged_overlay, version_manifest, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.delta.java_delta import delta_log_class
from spark_consumer.mirror.local.dump import dump_json
from spark_consumer.mirror.merge import merge_slices
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, NUMERIC, NUMERIC_12_2, TEXT, Feeder, Table, relation
from tests.spark_consumer.mirrors import Story, merged_rows, merging_mirror, play, running_mirror, waiting_mirror
from tests.spark_consumer.queries import run_to_end
from tests.spark_consumer.workload import VISITS, Workload

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUMERIC_20 = (NUMERIC, (20 << 16) + 4)
ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT, "note": TEXT}, ("id",))


def run_mirror(spark: SparkSession, feeder: Feeder, path: Path, **options: str) -> list[BatchReport]:
    """The mirror at this path takes what is there now as one batch, and merges it."""
    batch = spark.read.format("walgate").options(**feeder.options(**options)).load()
    return running_mirror(path, feeder.registry_url).take(batch)


def run_committed(spark: SparkSession, feeder: Feeder, path: Path) -> list[BatchReport]:
    """Commit in Kafka what was written, and let the mirror take it."""
    feeder.kafka_commit()
    return run_mirror(spark, feeder, path)


def stream_mirror(spark: SparkSession, feeder: Feeder, path: Path, limit: int) -> list[BatchReport]:
    """A streaming query that takes what is there now, in batches."""
    reports: list[BatchReport] = []
    mirror = merging_mirror(str(path), SchemaCache(Registry({"url": feeder.registry_url})), reports.append)
    stream = spark.readStream.format("walgate").options(**feeder.options(maxChangesPerTrigger=str(limit))).load()
    writer = stream.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", f"{path}/checkpoint")
    run_to_end(writer)
    mirror.stop()
    return reports


def mirrored(path: Path, table: Table) -> dict[Any, dict[str, Any]]:
    rows = merged_rows(path, table.name)[table.name]
    return {table.key(row): {name: value for name, value in row.items() if name != "_special"} for row in rows}


def a_table_equals_its_source_after_each_kind_of_change(feeder: Feeder, path: Path, spark: SparkSession) -> Story:
    accounts = feeder.table(ACCOUNTS)
    first = feeder.begin()
    for number in range(20):
        first.insert(accounts, {"id": number, "owner": f"owner {number}", "note": "long " * 10})
    first.commit()
    yield
    assert mirrored(path, accounts) == accounts.rows
    second = feeder.begin()
    second.update(accounts, accounts.rows[3,], {**accounts.rows[3,], "owner": "changed"}, unchanged=("note",))
    second.update(accounts, accounts.rows[4,], {**accounts.rows[4,], "id": 400}, unchanged=("note",))
    second.update(accounts, accounts.rows[5,], {**accounts.rows[5,], "id": 500, "note": "short"})
    second.delete(accounts, accounts.rows[6,])
    second.commit()
    yield
    assert mirrored(path, accounts) == accounts.rows
    third = feeder.begin()
    third.truncate(accounts)
    third.insert(accounts, {"id": 1, "owner": "new", "note": None})
    third.commit()
    yield
    assert mirrored(path, accounts) == accounts.rows == {(1,): {"id": 1, "owner": "new", "note": None}}
    rows = versions.read(spark, str(path))[accounts.name].drop("_special").toArrow().to_pylist()
    assert rows == list(accounts.rows.values())


def columns_come_and_go_and_change_their_type(feeder: Feeder, path: Path) -> Story:
    old = feeder.table(relation("owners", {"id": INT8, "owner": TEXT, "note": TEXT}, ("id",)))
    first = feeder.begin()
    first.insert(old, {"id": 1, "owner": "a", "note": "n"})
    first.insert(old, {"id": 2, "owner": "b", "note": None})
    first.commit()
    yield
    new = feeder.alter(old, relation("owners", {"id": NUMERIC_20, "owner": TEXT, "odd name;": TEXT}, ("id",)))
    new.rows = {(Decimal(key),): {**row, "id": Decimal(key)} for (key,), row in new.rows.items()}
    second = feeder.begin()
    second.update(new, new.rows[Decimal(1),], {"id": Decimal(1), "owner": "c", "odd name;": "x"})
    second.insert(new, {"id": Decimal(3), "owner": None, "odd name;": None})
    second.delete(new, new.rows[Decimal(2),])
    second.commit()
    yield
    assert mirrored(path, new) == new.rows


def special_values_stay_beside_their_column(feeder: Feeder, path: Path) -> Story:
    prices = feeder.table(relation("prices", {"id": INT8, "price": (NUMERIC, NUMERIC_12_2), "text": TEXT}, ("id",)))
    first = feeder.begin()
    first.insert(prices, {"id": 1, "price": None, "text": "a"}, special={"price": "NaN"})
    first.insert(prices, {"id": 2, "price": Decimal("1.50"), "text": "b"})
    first.commit()
    yield
    second = feeder.begin()
    second.update(prices, prices.rows[1,], {"id": 1, "price": None, "text": "c"}, unchanged=("price",))
    second.commit()
    yield
    out = io.StringIO()
    dump_json(path, [prices.name], out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0]["columns"] == ["id", "price", "text"]
    assert sorted(lines[1:]) == [["1", "NaN", "c"], ["2", "1.50", "b"]]


def test_a_mirror_equals_the_source_after_each_kind_of_change(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    play(
        lambda: run_committed(spark, feeder, tmp_path),
        a_table_equals_its_source_after_each_kind_of_change(feeder, tmp_path, spark),
        columns_come_and_go_and_change_their_type(feeder, tmp_path),
        special_values_stay_beside_their_column(feeder, tmp_path),
    )


@pytest.mark.long
def test_a_mirror_equals_the_source_after_a_random_workload(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    workload = Workload(feeder, 7)
    for _ in range(40):
        workload.step()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    for _ in range(40):
        workload.step()
    workload.finish()
    reports = stream_mirror(spark, feeder, tmp_path, 250)
    assert len(reports) > 1 and reports[-1].commit_lsn == feeder.truth[-1].commit_lsn
    for table in (workload.customers, workload.orders):
        assert mirrored(tmp_path, table) == table.rows
    logged = (
        versions.read(spark, str(tmp_path))["public.visits"].orderBy("_commit_lsn", "_ordinal").toArrow().to_pylist()
    )
    expected = [{"op": row["op"], "page": row.get("page")} for row in workload.visits.log]
    assert [{"op": row["_op"], "page": row["page"]} for row in logged] == expected


@pytest.mark.parametrize(
    ("batch_here", "tables_here"),
    [
        pytest.param(False, False, id="spark"),
        pytest.param(False, True, marks=pytest.mark.long, id="table_here"),
        pytest.param(True, False, marks=pytest.mark.long, id="batch_here"),
    ],
)
def test_a_large_batch_is_folded_to_the_same_rows(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch_here: bool,
    tables_here: bool,
) -> None:
    """A batch that is too large for this process may have tables that fit, and tables of one that
    fits may have many columns."""
    if not batch_here:
        for module in (merge_slices, unmerged_overlay):
            monkeypatch.setattr(module, "summarize", lambda raw, _: (slice_contents.batch_content(raw), None))
        monkeypatch.setattr(unmerged_overlay, "READ_HERE", 1_000_000 if tables_here else 0)
    if not tables_here:
        monkeypatch.setattr(slice_contents, "_SMALL_CELLS", 0)
    workload = Workload(feeder, 11)
    for _ in range(40):
        workload.step()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    for _ in range(30):
        workload.step()
    workload.finish()
    run_mirror(spark, feeder, tmp_path)
    for table in (workload.customers, workload.orders):
        assert mirrored(tmp_path, table) == table.rows


@pytest.mark.parametrize("small_changes", [slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def test_rows_from_before_the_start_come_with_their_first_update(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_changes: int
) -> None:
    """But for values that it does not send, which are null until another update does."""
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", small_changes)
    accounts = feeder.table(ACCOUNTS)
    before = feeder.begin()
    for number in range(6):
        before.insert(accounts, {"id": number, "owner": f"owner {number}", "note": "a long one"})
    start = before.commit()
    first = feeder.begin()
    first.update(accounts, accounts.rows[0,], {**accounts.rows[0,], "owner": "changed"})
    first.update(accounts, accounts.rows[1,], {**accounts.rows[1,], "owner": "changed"}, unchanged=("note",))
    first.delete(accounts, accounts.rows[2,])
    first.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path, startingPosition=f"lsn:{start}")
    unsent = {**accounts.rows[1,], "note": None}
    assert mirrored(tmp_path, accounts) == {(0,): accounts.rows[0,], (1,): unsent}
    second = feeder.begin()
    second.update(accounts, accounts.rows[1,], accounts.rows[1,])
    second.update(accounts, accounts.rows[3,], {**accounts.rows[3,], "owner": "changed"}, unchanged=("note",))
    second.update(accounts, accounts.rows[4,], {**accounts.rows[4,], "id": 40}, unchanged=("note",))
    second.delete(accounts, accounts.rows[5,])
    second.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path, startingPosition=f"lsn:{start}")
    unsent_rows = {(key,): {**accounts.rows[key,], "note": None} for key in (3, 40)}
    assert mirrored(tmp_path, accounts) == {**accounts.rows, **unsent_rows}


def test_a_batch_that_runs_again_changes_nothing(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    accounts, visits = feeder.table(ACCOUNTS), feeder.table(VISITS)
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 1, "owner": "a", "note": None})
    transaction.insert(visits, {"page": "/", "seconds": 1.0})
    transaction.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    shutil.rmtree(tmp_path / "manifest")  # as if the crash had come before the picture
    running_mirror(tmp_path, feeder.registry_url).restart()
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path, accounts) == accounts.rows
    assert len(merged_rows(tmp_path, visits.name)[visits.name]) == 1


@pytest.mark.long
@pytest.mark.parametrize("small_changes", [slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def test_a_new_checkpoint_that_cuts_batches_elsewhere_loses_nothing(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_changes: int
) -> None:
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", small_changes)
    accounts, items = feeder.table(ACCOUNTS), feeder.table(relation("items", {"id": INT8}, ("id",)))
    first = feeder.begin()
    first.insert(accounts, {"id": 1, "owner": "a", "note": "a long one"})
    first.insert(items, {"id": 1})
    first.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    middle = feeder.begin()
    middle.update(accounts, accounts.rows[1,], {**accounts.rows[1,], "owner": "b"}, unchanged=("note",))
    middle_lsn = middle.commit()
    second = feeder.begin()
    second.update(accounts, accounts.rows[1,], {**accounts.rows[1,], "id": 2}, unchanged=("note",))
    second.truncate(items)
    second.insert(items, {"id": 2})
    second_lsn = second.commit()
    feeder.kafka_commit()
    with monkeypatch.context() as crash:
        crash.setattr(version_manifest, "record", lambda *_: 1 / 0)  # the tables are written, the picture is not
        with pytest.raises(ZeroDivisionError):
            run_mirror(spark, feeder, tmp_path)
    shutil.rmtree(tmp_path / "changes")  # a release that had none was killed, and its checkpoint was lost
    with pytest.raises(MirrorError, match="the changes to be merged end at") as refused:
        run_mirror(spark, feeder, tmp_path, endingPosition=f"lsn:{middle_lsn}")
    assert f"until it reports a micro-batch with changes up to {format_lsn(second_lsn)} or later, then" in str(
        refused.value
    )
    third = feeder.begin()
    third.insert(items, {"id": 3})
    third.update(accounts, accounts.rows[2,], {**accounts.rows[2,], "owner": "c"}, unchanged=("note",))
    third.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path, accounts) == accounts.rows == {(2,): {"id": 2, "owner": "c", "note": "a long one"}}
    assert mirrored(tmp_path, items) == items.rows


def test_a_table_that_another_writer_made_is_refused(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    accounts = feeder.table(ACCOUNTS)
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 1, "owner": "a", "note": None})
    transaction.commit()
    feeder.kafka_commit()
    location = table_path(str(tmp_path), TableName("public", "accounts"))
    spark.range(3).write.format("delta").save(location)
    with pytest.raises(MirrorError, match="was not created by walgate-mirror"):
        run_mirror(spark, feeder, tmp_path)
    changelog = Changelog(str(tmp_path), "delta", SchemaCache(Registry({"url": feeder.registry_url})))
    with pytest.raises(MirrorError, match="was not created by walgate-changelog"):
        changelog.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    untouched = spark.read.format("delta").load(location)
    assert untouched.columns == ["id"] and untouched.count() == 3
    shutil.move(location, tmp_path / "moved")  # as the error message says
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path, accounts) == accounts.rows

    for setting in ("'delta.setTransactionRetentionDuration' = 'interval 0 seconds'", "'any' = 'other'"):
        spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ({setting})")
        delta_log_class(spark).clearCache()
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 2, "owner": "a", "note": None})
    transaction.commit()
    with pytest.raises(
        MirrorError, match="Delta has forgotten it, since the table's property .* is 'interval 0 seconds'"
    ):
        run_committed(spark, feeder, tmp_path)


def test_a_table_that_was_removed_or_restored_alone_is_refused(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror goes on with the table as it left it, or without the table."""
    accounts, items = feeder.table(ACCOUNTS), feeder.table(relation("items", {"id": INT8}, ("id",)))
    location, aside, backup = table_path(str(tmp_path), TableName("public", "accounts")), tmp_path / "a", tmp_path / "b"

    def change(number: int) -> None:
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "owner": "a", "note": None})
        transaction.insert(items, {"id": number})
        transaction.commit()
        feeder.kafka_commit()

    def opened(*exclude: str) -> AppendingMirror:
        return waiting_mirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})), exclude=exclude)

    def take(mirror: AppendingMirror, **options: str) -> None:
        mirror.apply(spark.read.format("walgate").options(**feeder.options(**options)).load(), 0)

    def merge(mirror: AppendingMirror) -> None:
        delta_log_class(spark).clearCache()
        mirror.finish(spark, merge=True)

    mirror = opened()
    change(1)
    take(mirror)
    merge(mirror)
    shutil.copytree(location, backup)
    change(2)
    take(mirror)
    merge(mirror)
    change(3)
    take(mirror)
    shutil.move(location, aside)
    for put, refused in (
        (lambda: None, "is missing, although the mirror has version 1 of it"),
        (lambda: shutil.copytree(backup, location), "is at version 0, although the mirror has version 1 of it"),
        (lambda: spark.range(3).write.format("delta").save(location), "was not created by walgate-mirror"),
    ):
        put()
        with pytest.raises(MirrorError, match=refused):
            merge(mirror)
        shutil.rmtree(location, ignore_errors=True)
    shutil.move(aside, location)
    merge(mirror)
    assert mirrored(tmp_path, accounts) == accounts.rows and len(accounts.rows) == 3
    left = TABLE_FORMAT.version(spark, location)
    change(4)
    take(mirror)
    for earlier, later in ((0, left), (left + 1, left + 2)):  # the latter two have the rows of the former
        spark.sql(f"RESTORE TABLE delta.`{location}` TO VERSION AS OF {earlier}")
        with pytest.raises(MirrorError, match=f"was restored, although the mirror has version {left} of it") as told:
            merge(mirror)
        assert told.value.__notes__ == [f"while the changes of {accounts.name} were merged"]
        spark.sql(f"RESTORE TABLE delta.`{location}` TO VERSION AS OF {later}")
        mirror = opened()
    merge(mirror)
    assert mirrored(tmp_path, accounts) == accounts.rows and len(accounts.rows) == 4
    shutil.rmtree(location)
    change(5)
    take(mirror)
    with pytest.raises(MirrorError, match="--exclude"):
        merge(mirror)
    mirror = opened(accounts.name)
    take(mirror, exclude=accounts.name)
    merge(mirror)
    assert mirrored(tmp_path, items) == items.rows and len(items.rows) == 5
    assert list(versions.read(spark, str(tmp_path))) == [items.name]
    monkeypatch.setattr(TABLE_FORMAT, "has_old_entries", lambda *_: True)
    monkeypatch.setattr(version_manifest, "merged_before", lambda *_: 0)  # versions with the table are kept
    maintenance.remove(spark, str(tmp_path), timedelta(days=7), [items.name])


def test_a_picture_shows_all_tables_behind_one_commit(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    accounts = feeder.table(ACCOUNTS)
    lsns = []
    for number in range(2):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "owner": None, "note": None})
        lsns.append(transaction.commit())
        feeder.kafka_commit()
        run_mirror(spark, feeder, tmp_path)
    assert versions.read(spark, str(tmp_path), at=lsns[1] - 1)["public.accounts"].count() == 1
    assert versions.read(spark, str(tmp_path), at=format_lsn(lsns[1]))["public.accounts"].count() == 2
    with pytest.raises(MirrorError, match="begins at"):
        versions.read(spark, str(tmp_path), at=lsns[0] - 1)
