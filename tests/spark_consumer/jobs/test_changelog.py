"""The changelog and what is special about relations without key or columns, in both formats."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from schemas.relation import ReplicaIdentity
from spark_consumer.changelog import writer
from spark_consumer.changelog.writer import Changelog, last_folder
from spark_consumer.errors import MirrorError
from spark_consumer.jvm import remove_folder
from spark_consumer.mirror import slice_contents, versions
from spark_consumer.mirror.delta.java_delta import delta_log_class
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import INT4, INT8, TEXT, Feeder, Row, Table, relation
from tests.spark_consumer.here import run_here
from tests.spark_consumer.jobs.test_jobs import check_other_topic, remove_markers
from tests.spark_consumer.mirrors import merging_mirror
from tests.spark_consumer.queries import run_to_end

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
NOTES = relation("notes", {"text": TEXT}, (), ReplicaIdentity.NOTHING)
NOTHING = relation("nothing", {}, (), ReplicaIdentity.NOTHING)


def feed(feeder: Feeder) -> list[Table]:
    items, notes, nothing = feeder.table(ITEMS), feeder.table(NOTES), feeder.table(NOTHING)
    for number in range(3):
        transaction = feeder.begin()
        transaction.insert(items, {"id": number, "name": f"name {number}"})
        transaction.insert(notes, {"text": "a"})
        transaction.insert(nothing, {})
        transaction.commit()
        feeder.kafka_commit()
    last = feeder.begin()
    last.update(items, items.rows[0,], {"id": 7, "name": None})
    last.truncate(notes, nothing)
    last.insert(nothing, {})
    last.commit()
    feeder.kafka_commit()
    return [items, notes, nothing]


def positions(frame: DataFrame) -> list[tuple[int, int, str]]:
    return sorted((row.commit_lsn, row.ordinal, row.op) for row in frame.collect())


def opened(feeder: Feeder, path: Path, format: str = "parquet") -> Changelog:  # noqa: A002 - the option's name
    return Changelog(str(path), format, SchemaCache(Registry({"url": feeder.registry_url})))


def take(
    spark: SparkSession,
    feeder: Feeder,
    changelog: Changelog,
    start: str = "earliest",
    end: str = "latest",
    **more: str,
) -> None:
    options = feeder.options(startingPosition=start, endingPosition=end, **more)
    changelog.apply(spark.read.format("walgate").options(**options).load(), 0)


def commit(feeder: Feeder, table: Table, *rows: Row) -> int:
    transaction = feeder.begin()
    for row in rows:
        transaction.insert(table, row)
    commit_lsn = transaction.commit()
    feeder.kafka_commit()
    return commit_lsn


@pytest.mark.parametrize(
    ("format", "small_bytes"),
    [("delta", slice_contents.SMALL_BYTES), ("parquet", slice_contents.SMALL_BYTES), ("parquet", 0)],
)
def test_a_changelog_has_every_change_once_wherever_batches_are_cut(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,  # noqa: A002
    small_bytes: int,
) -> None:
    """A batch that runs again, as after a crash, and one that begins early, as after a new
    checkpoint. Large batches are decoded by Spark. The path has characters of a glob."""
    monkeypatch.setattr(slice_contents, "SMALL_BYTES", small_bytes)
    tables = feed(feeder)
    path = tmp_path / "of [1]"
    for end in (f"lsn:{feeder.truth[3].commit_lsn}", "latest", "latest"):
        take(spark, feeder, opened(feeder, path, format), end=end)
    for table in tables:
        location = f"{path}/tables/public/{table.description.name}"
        found = spark.read.format(format).load(location.replace("[", "\\[") if format == "parquet" else location)
        assert positions(found) == [(c.commit_lsn, c.ordinal, c.op) for c in feeder.truth if c.table is table]


def test_a_table_that_is_named_later_begins_where_the_checkpoint_stands(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    items, notes = feeder.table(ITEMS), feeder.table(NOTES)
    for tables in ("public.items", "public.items,public.notes"):
        transaction = feeder.begin()
        transaction.insert(items, {"id": len(items.rows), "name": tables})
        transaction.insert(notes, {"text": tables})
        transaction.commit()
        feeder.kafka_commit()
        changelog = opened(feeder, tmp_path)
        stream = spark.readStream.format("walgate").options(**feeder.options(tables=tables)).load()
        query = stream.writeStream.foreachBatch(changelog.apply).option("checkpointLocation", f"{tmp_path}/checkpoint")
        run_to_end(query)
    folder = f"{tmp_path}/tables/public"
    assert spark.read.parquet(f"{folder}/items").count() == 2
    assert [row.after.text for row in spark.read.parquet(f"{folder}/notes").collect()] == ["public.items,public.notes"]


def test_a_folder_that_was_not_written_to_its_end_does_not_count(spark: SparkSession, tmp_path: Path) -> None:
    assert last_folder(spark, str(tmp_path / "nothing"), 30) == -1
    for lsn in (9, 10, 20):
        (tmp_path / f"batch={lsn}").mkdir()
    (tmp_path / "batch=9" / "_SUCCESS").touch()
    (tmp_path / "batch=10" / "_SUCCESS").touch()
    (tmp_path / "batch=15" / "_temporary").mkdir(parents=True)
    (tmp_path / "batch=20" / "part-0.parquet").touch()
    with pytest.raises(MirrorError, match=r"batch=20 is not finished"):
        last_folder(spark, str(tmp_path), 30, complete_lsn=19)
    assert last_folder(spark, str(tmp_path), 30, complete_lsn=20) == 20, "the changelog is complete up to there"
    assert last_folder(spark, str(tmp_path), 20) == 10
    assert not (tmp_path / "batch=15").exists(), "no row of it was there"
    assert not (tmp_path / "batch=20").exists(), "its batch is repeated"


@pytest.mark.parametrize("interrupted", ["never", "by an error", "before a removal", "after a removal"])
def test_a_folder_that_an_object_store_has_renamed_in_part_does_not_count(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    """However often the start is interrupted, and wherever."""
    for name in ("batch=9/_SUCCESS", "batch=20/_SUCCESS", "batch=20/part-0.parquet", "_writing-20-a/part-1.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    if interrupted == "by an error":
        for _ in range(2):
            with pytest.raises(MirrorError, match="batch=20 is not finished"):
                last_folder(spark, str(tmp_path), 30)
    removed = set[str]()

    def fails_once(session: SparkSession, location: str) -> None:
        if interrupted == "after a removal":
            remove_folder(session, location)
        if location not in removed:
            removed.add(location)
            raise TimeoutError("of the storage")
        remove_folder(session, location)

    if interrupted.endswith("a removal"):
        monkeypatch.setattr(writer, "remove_folder", fails_once)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                last_folder(spark, str(tmp_path), 20)
    assert last_folder(spark, str(tmp_path), 20) == 9
    assert [path.name for path in tmp_path.iterdir()] == ["batch=9"]


def test_folders_are_marked_as_finished_even_if_spark_is_not_to_do_it(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """An older release has written folders without the mark; they count, too."""
    items = feeder.table(ITEMS)
    folders = tmp_path / "tables" / "public" / "items"
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    try:
        for number in range(3):
            commit_lsn = commit(feeder, items, {"id": number, "name": ""})
            take(spark, feeder, opened(feeder, tmp_path))
            mark = folders / f"batch={commit_lsn}" / "_SUCCESS"
            assert mark.exists()
            if number == 1:
                mark.unlink()
    finally:
        conf.unset("mapreduce.fileoutputcommitter.marksuccessfuljobs")
    assert len(list(folders.glob("batch=*"))) == spark.read.parquet(str(folders)).count() == 3


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_column_that_is_widened_stays_readable(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    format: str,  # noqa: A002
) -> None:
    changelog = opened(feeder, tmp_path, format)
    narrow = feeder.table(relation("items", {"id": INT4}, ("id",)))
    wide = feeder.alter(narrow, relation("items", {"id": INT8}, ("id",)))
    start = "earliest"
    for table, number in ((narrow, 1), (wide, 2**40)):
        commit_lsn = commit(feeder, table, {"id": number})
        take(spark, feeder, changelog, start)
        start = f"lsn:{commit_lsn}"
    location = f"{tmp_path}/tables/public/items"
    reader = spark.read.format(format)
    if format == "parquet":
        reader = reader.schema(spark.read.parquet(f"{location}/batch={commit_lsn}").schema)
    assert sorted(row["after"]["id"] for row in reader.load(location).collect()) == [1, 2**40]
    if format == "delta":
        text = feeder.alter(wide, relation("items", {"id": TEXT}, ("id",)))
        commit(feeder, text, {"id": "a"})
        with pytest.raises(MirrorError, match=r"changelog of public\.items .* cannot store a column") as told:
            take(spark, feeder, changelog, start)
        assert "Move the existing table to another path, then restart" in told.value.hint
        shutil.move(location, tmp_path / "moved")
        delta_log_class(spark).clearCache()
        take(spark, feeder, opened(feeder, tmp_path, format), start)
        assert [row["after"]["id"] for row in reader.load(location).collect()] == ["a"]


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_table_that_was_removed_or_restored_alone_is_refused(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    format: str,  # noqa: A002
) -> None:
    """While a job runs, and by the next one. Each way on is tried."""
    items, notes = feeder.table(ITEMS), feeder.table(NOTES)
    path, aside, backup = tmp_path / "changes", tmp_path / "aside", tmp_path / "backup"
    location = path / "tables" / "public" / "items"

    def change() -> None:
        transaction = feeder.begin()
        transaction.insert(items, {"id": len(items.rows), "name": ""})
        transaction.insert(notes, {"text": ""})
        transaction.commit()
        feeder.kafka_commit()

    def next_job(path: Path = path, **more: str) -> None:
        delta_log_class(spark).clearCache()
        take(spark, feeder, opened(feeder, path, format), **more)

    def counts(path: Path) -> list[int]:
        return [spark.read.format(format).load(f"{path}/tables/public/{name}").count() for name in ("items", "notes")]

    running = opened(feeder, path, format)
    for _ in range(2):
        change()
        take(spark, feeder, running)
        if not backup.exists():
            shutil.copytree(location, backup)
    change()
    shutil.move(location, aside)
    with pytest.raises(MirrorError, match="is missing, although the changelog has written it up to"):
        take(spark, feeder, running)
    with pytest.raises(MirrorError, match="is missing, although the changelog has written it up to"):
        next_job()
    shutil.rmtree(location, ignore_errors=True)
    shutil.copytree(backup, location)
    with pytest.raises(MirrorError, match="ends at .*, although the changelog has written it up to"):
        next_job()
    shutil.rmtree(location)
    shutil.move(aside, location)
    next_job()
    assert counts(path) == [3, 3]
    if format == "delta":
        running = opened(feeder, path, format)
        for _ in range(2):
            change()
            take(spark, feeder, running)
        left = TABLE_FORMAT.version(spark, str(location))
        spark.sql(f"RESTORE TABLE delta.`{location}` TO VERSION AS OF 0")
        change()
        for changelog in (running, opened(feeder, path, format)):
            with pytest.raises(
                MirrorError, match="was restored, although the changelog has written its version [0-9]+"
            ):
                take(spark, feeder, changelog)
        spark.sql(f"RESTORE TABLE delta.`{location}` TO VERSION AS OF {left}")
        take(spark, feeder, opened(feeder, path, format))
        assert counts(path) == [6, 6]
    shutil.rmtree(location)
    change()
    next_job(exclude="public.items")
    assert not location.exists()
    change()
    with pytest.raises(MirrorError, match="--exclude"):
        next_job()
    next_job(tmp_path / "other")
    assert counts(tmp_path / "other") == [len(items.rows)] * 2


def test_relations_without_key_or_columns_are_read_and_mirrored(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    _, notes, nothing = feed(feeder)
    for table in (notes, nothing):
        typed = spark.read.format("walgate").options(**feeder.options(table=table.name)).load()
        assert positions(typed) == [(c.commit_lsn, c.ordinal, c.op) for c in feeder.truth if c.table is table]
    mirror = merging_mirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})))
    mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    logs = versions.read(spark, str(tmp_path))
    for table in (notes, nothing):
        rows = logs[table.name].orderBy("_commit_lsn", "_ordinal").collect()
        assert [row["_op"] for row in rows] == [change["op"] for change in table.log]


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_columns_that_are_dropped_or_renamed_within_a_batch_keep_their_values(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    format: str,  # noqa: A002
) -> None:
    """Whatever batches there are, and with a name that Delta maps."""
    start = "earliest"
    first = relation("items", {"id": INT8, "unit price": INT8, "old": TEXT}, ("id",))
    then = relation("items", {"id": INT8, "price": INT8}, ("id",))
    wanted, table = [], feeder.table(first)
    for number, cuts in enumerate((True, False, True)):
        if number:
            table = feeder.alter(table, first)
        end = commit(feeder, table, {"id": number, "unit price": 5, "old": "a"})
        if cuts:
            take(spark, feeder, opened(feeder, tmp_path, format), start)
            start = f"lsn:{end}"
        table = feeder.alter(table, then)
        end = commit(feeder, table, {"id": 10 + number, "price": 6})
        take(spark, feeder, opened(feeder, tmp_path, format), start)
        start = f"lsn:{end}"
        wanted += [(number, 5, "a", None), (10 + number, None, None, 6)]
    reader = spark.read.format(format)
    if format == "parquet":
        reader = reader.option("mergeSchema", "true")
    rows = [row["after"] for row in reader.load(f"{tmp_path}/tables/public/items").collect()]
    assert sorted((row["id"], row["unit price"], row["old"], row["price"]) for row in rows) == sorted(wanted)


@pytest.mark.parametrize("small_bytes", [slice_contents.SMALL_BYTES, 0])
def test_columns_that_cannot_be_in_one_batch_are_named_and_smaller_batches_are_taken(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(slice_contents, "SMALL_BYTES", small_bytes)
    table = feeder.table(relation("items", {"id": INT8, "v": TEXT}, ("id",)))
    cut = commit(feeder, table, {"id": 1, "v": "a"}, {"id": 2, "v": None})
    table = feeder.alter(table, relation("items", {"id": INT8, "v": INT8}, ("id",)))
    commit(feeder, table, {"id": 3, "v": 3})
    with pytest.raises(MirrorError, match=r"changelog of public.items .* an ALTER TABLE: .* column 'v'") as told:
        take(spark, feeder, opened(feeder, tmp_path))
    assert "smaller --max-changes" in told.value.hint
    for start, end in (("earliest", f"lsn:{cut}"), (f"lsn:{cut}", "latest")):
        take(spark, feeder, opened(feeder, tmp_path), start, end)
    folders = sorted((tmp_path / "tables/public/items").glob("batch=*"))
    rows = [[row["after"]["v"] for row in spark.read.parquet(str(folder)).collect()] for folder in folders]
    assert [sorted(map(str, values)) for values in rows] == [["None", "a"], ["3"]]


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_of_two_processes_the_one_that_came_last_writes(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,  # noqa: A002
) -> None:
    items = feeder.table(ITEMS)
    first = opened(feeder, tmp_path, format)
    cuts = [commit(feeder, items, {"id": number, "name": "a"}) for number in range(3)]
    take(spark, feeder, first, end=f"lsn:{cuts[0]}")
    second = opened(feeder, tmp_path, format)
    take(spark, feeder, second, end=f"lsn:{cuts[1]}")
    with pytest.raises(MirrorError, match="another process has opened the changelog"):
        take(spark, feeder, first)
    if format == "delta":  # it looked before the other one came
        monkeypatch.setattr(first, "_check_writer", lambda _: None)
        with pytest.raises(MirrorError, match="another process has opened the changelog"):
            take(spark, feeder, first)
    take(spark, feeder, second)
    found = spark.read.format(format).load(f"{tmp_path}/tables/public/items")
    assert sorted(row["after"]["id"] for row in found.collect()) == [0, 1, 2]


@pytest.mark.parametrize("moment", ["writes", "renames"])
def test_a_process_that_comes_during_a_batch_neither_doubles_nor_loses_rows_in_parquet(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its batches end elsewhere. It comes just before the other one writes, or after its last look
    at who the writer is."""
    items, first, second = feeder.table(ITEMS), opened(feeder, tmp_path), opened(feeder, tmp_path)
    cuts = [commit(feeder, items, {"id": number, "name": "a"}) for number in range(3)]
    take(spark, feeder, first, end=f"lsn:{cuts[0]}")
    place, name = (DataFrameWriter, "parquet") if moment == "writes" else (writer, "move_folder")
    original = getattr(place, name)

    def comes_first(*given: Any) -> Any:
        monkeypatch.undo()
        take(spark, feeder, second)
        return original(*given)

    monkeypatch.setattr(place, name, comes_first)
    with pytest.raises(MirrorError, match="another process has opened the changelog"):
        take(spark, feeder, first, end=f"lsn:{cuts[1]}")
    folder = tmp_path / "tables" / "public" / "items"
    assert sorted(row["after"]["id"] for row in spark.read.parquet(str(folder)).collect()) == [0, 1, 2]
    assert all(path.name.startswith("batch=") for path in folder.iterdir())


@pytest.mark.parametrize("renamed", ["nothing", "in part"])
def test_a_rename_that_fails_is_told_and_the_batch_is_repeated(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: str
) -> None:
    """It blames no other process. Neither the batch nor what is being stopped is renamed."""
    items, changelog = feeder.table(ITEMS), opened(feeder, tmp_path)
    commit_lsn = commit(feeder, items, {"id": 1, "name": "a"})

    def fails(_: SparkSession, location: str, target: str) -> bool:
        if renamed == "in part":
            Path(target).mkdir()
            Path(location, "_SUCCESS").rename(Path(target, "_SUCCESS"))
        return False

    monkeypatch.setattr(writer, "move_folder", fails)
    for target in (f"batch={commit_lsn}", f"_stopped-{commit_lsn}-"):
        with pytest.raises(MirrorError, match=rf"/_writing-{commit_lsn}-\w+ could not be renamed to .*/{target}"):
            take(spark, feeder, changelog)
        renamed = "nothing"
    monkeypatch.undo()
    take(spark, feeder, changelog)
    folder = tmp_path / "tables" / "public" / "items"
    assert [row["after"]["id"] for row in spark.read.parquet(str(folder)).collect()] == [1]
    assert [path.name for path in folder.iterdir()] == [f"batch={commit_lsn}"]


def test_what_is_there_in_another_format_is_refused(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    items = feeder.table(ITEMS)
    for first, then in (("delta", "parquet"), ("parquet", "delta")):
        commit(feeder, items, {"id": len(items.rows), "name": "a"})
        take(spark, feeder, opened(feeder, tmp_path / first, first))
        with pytest.raises(MirrorError, match=f"is not a table of a changelog in the format {then}"):
            take(spark, feeder, opened(feeder, tmp_path / first, then))


def test_a_changelog_that_would_miss_changes_is_refused(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    """It was restored from a backup, or removed, or its checkpoint is new. Each way on is tried."""
    items, path, backup = feeder.table(ITEMS), tmp_path / "changes", tmp_path / "backup"
    kept = tmp_path / "kept"

    def consume(*more: str, topics: Feeder = feeder) -> str:
        code, told = run_here(spark, "consume", topics, path, "--once", *more)
        assert (code == 0) == (told == ""), told
        return told

    def numbers() -> list[int]:
        return sorted(row["after"]["id"] for row in spark.read.parquet(f"{path}/tables/public/items").collect())

    commit(feeder, items, {"id": 0, "name": "a"})
    assert not consume()
    shutil.copytree(path, backup, ignore=shutil.ignore_patterns("checkpoint"))
    commit(feeder, items, {"id": 1, "name": "a"})
    assert not consume() and not consume()
    (path / "checkpoint").rename(kept)
    shutil.rmtree(path)
    assert f"which the changelog at {path} does not have" in consume("--checkpoint", str(kept))
    shutil.copytree(backup, path)
    assert "has completed micro-batch 1, which" in consume("--checkpoint", str(kept))
    commit(feeder, items, {"id": 2, "name": "a"})
    assert "Restart without --starting-position" in consume("--starting-position", "latest")
    assert not consume()
    assert numbers() == [0, 1, 2]

    check_other_topic(feeder, path, items, lambda topics, *more: consume(*more, topics=topics))
    shutil.rmtree(path / "checkpoint")
    for number in (3, 4):
        commit(feeder, items, {"id": number, "name": "a"})
    low = remove_markers(feeder, 4)
    assert f"start it with --starting-position marker:{low}:" in consume()
    assert not consume("--starting-position", f"marker:{low}")
    assert numbers() == [0, 1, 2, 4]
    assert (path / "_topic").read_text() == f"{feeder.prefix}.transaction"

    (path / "manifest" / "_delta_log").mkdir(parents=True)
    assert "there is a mirror at" in consume()
