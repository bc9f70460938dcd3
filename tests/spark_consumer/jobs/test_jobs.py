"""The jobs as programs of their own: killed at any moment and started again, they write what
happened, once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from gateway.local.java import spark_java_home
from gateway.local.spark import delta_jars
from schemas.lsn import format_lsn, parse_lsn
from schemas.topic_names import transaction_topic
from spark_consumer.mirror.delta.log_replay import open_delta
from spark_consumer.mirror.local.dump import newest
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, WrittenTopics, relation, words_of
from tests.spark_consumer.here import run_here
from tests.spark_consumer.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

LONG = [pytest.mark.long, pytest.mark.timeout(3600)]
ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))


def foreign_folder(path: Path) -> Path:
    """A working directory with packages of our names, which are not ours."""
    for name in ("schemas", "spark_consumer"):
        (path.parent / "cwd" / name).mkdir(parents=True, exist_ok=True)
        (path.parent / "cwd" / name / "__init__.py").write_text("raise ImportError('of another project')")
    return path.parent / "cwd"


@dataclass(frozen=True)
class Topics:
    """Of a gateway."""

    bootstrap_servers: str
    registry_url: str
    prefix: str


async def start(
    verb: str, feeder: WrittenTopics, path: Path, *more: str, **variables: str
) -> asyncio.subprocess.Process:
    """In a process group of its own, so that a kill takes the JVM and the workers too. errors.txt
    beside `path` is its stderr."""
    environment = {
        **os.environ,
        **variables,
        "JAVA_HOME": str(spark_java_home()),
        "WALGATE_SPARK_JARS": ",".join(map(str, delta_jars())),
    }
    program = (sys.executable, "-P", "-m", "spark_consumer", verb)
    with (path.parent / "errors.txt").open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            *(*program, *words_of(feeder), "--path", str(path), "--progress", "json", "--cores", "2", *more),
            cwd=foreign_folder(path), env=environment, start_new_session=True,
            stdout=asyncio.subprocess.PIPE, stderr=errors,
        )  # fmt: skip


def errors_of(folder: Path) -> str:
    """What a job has written to standard error: neither Spark nor Java says anything of its
    start."""
    return (folder / "errors.txt").read_text()


async def lines(process: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(line) async for line in process.stdout if line.startswith(b"{")]


async def run(verb: str, feeder: Feeder, path: Path, *more: str, **variables: str) -> list[dict[str, Any]]:
    process = await start(verb, feeder, path, *more, **variables)
    found = await lines(process)
    assert await process.wait() == 0
    return found


def texts(rows: Iterator[tuple[str | None, ...]]) -> list[tuple[str | None, ...]]:
    return sorted(rows)


def expected(table: Table, columns: list[str]) -> list[tuple[str | None, ...]]:
    rows = table.rows.values()
    return sorted(tuple(None if row[name] is None else str(row[name]) for name in columns) for row in rows)


def check_items(path: Path, items: Table) -> None:
    (found,) = newest(path, ["public.items"])
    assert texts(found.rows()) == expected(items, found.columns)


async def kill_and_feed(verb: str, feeder: Feeder, path: Path, items: Table, kills: int, *more: str) -> None:
    rnd = random.Random(5)
    for turn in range(kills):
        process = await start(verb, feeder, path, "--max-changes", "40", *more)
        for _ in range(5):
            await asyncio.to_thread(change_items, feeder, items, rnd)
        assert process.stdout is not None
        for _ in range(1 + (turn + 1) % 3):  # ready, then a batch or two: the kill falls somewhere in the next one
            await process.stdout.readline()
        await asyncio.sleep(rnd.random() * 2)
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def change_items(feeder: Feeder, items: Table, rnd: random.Random) -> None:
    transaction = feeder.begin()
    for key in rnd.sample(range(60), 25):
        row = {"id": key, "name": f"name {rnd.random()}"}
        old = items.rows.get((key,))
        if old is None:
            transaction.insert(items, row)
        elif rnd.random() < 0.3:
            transaction.delete(items, old)
        else:
            transaction.update(items, old, row)
    transaction.commit()
    feeder.kafka_commit()


@pytest.mark.parametrize(
    ("kills", "merge_every"),
    [
        (1, "60"),
        pytest.param(1, "0", marks=pytest.mark.long),
        pytest.param(20, "0", marks=LONG),
        pytest.param(20, "0.5", marks=LONG),
    ],
)
async def test_a_mirror_that_is_killed_equals_the_source_in_the_end(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, kills: int, merge_every: str
) -> None:
    items = await asyncio.to_thread(feeder.table, ITEMS)
    more = ("--merge-every", merge_every)
    await kill_and_feed("mirror", feeder, tmp_path, items, kills, *more)
    if kills > 1:
        shutil.rmtree(tmp_path / "checkpoint")  # a new one begins behind the last picture
    last = feeder.truth[-1].commit_lsn
    again = ("--max-changes", "40", "--until-lsn", format_lsn(last), *more)
    assert run_here(spark, "mirror", feeder, tmp_path, *again) == (0, "")
    await asyncio.to_thread(check_items, tmp_path, items)


def test_a_mirror_with_a_new_checkpoint_misses_nothing_silently(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Its old one was lost; meanwhile retention has removed markers that it did not read, and
    later records whose markers remain. Each way on that an error names is taken."""
    items, path = feeder.table(ITEMS), tmp_path / "mirror"

    def mirror(*more: str, topics: Feeder = feeder) -> str:
        code, told = run_here(spark, "mirror", topics, path, *more)
        assert (code == 0) == (told == ""), told
        return told

    commit_lsns = [insert_item(feeder, items, number) for number in range(3)]
    assert not mirror("--until-lsn", format_lsn(commit_lsns[-1]))
    check_other_topic(feeder, path, items, lambda topics, *more: mirror("--once", *more, topics=topics))
    commit_lsns += [insert_item(feeder, items, number) for number in range(3, 10)]
    shutil.rmtree(path / "checkpoint")
    low = remove_markers(feeder, 7)
    told = mirror("--once")
    assert f"all changes up to {format_lsn(commit_lsns[2])}" in told and f"--starting-position marker:{low}," in told
    assert not mirror("--once", "--starting-position", f"marker:{low}")
    assert not mirror("--once", "--starting-position", "latest")  # its checkpoint knows better
    assert (path / "_topic").read_text() == transaction_topic(feeder.prefix)

    insert_item(feeder, items, 10)
    places = [TopicPartition(items.topic, partition, OFFSET_END) for partition in range(feeder.partitions)]
    admin = AdminClient({"bootstrap.servers": feeder.bootstrap_servers})
    for removed in admin.delete_records(places).values():
        removed.result(30)
    insert_item(feeder, items, 11)
    assert "with a new checkpoint location" in mirror("--once")
    shutil.rmtree(path / "checkpoint")
    (way,) = re.findall(r"--starting-position (marker:\d+), then run walgate snapshot", mirror("--once"))
    assert not mirror("--once", "--starting-position", way)
    (found,) = newest(path, ["public.items"])
    assert sorted(int(str(row[0])) for row in found.rows()) == [0, 1, 2, 7, 8, 9, 11]


def check_other_topic(feeder: Feeder, path: Path, items: Table, job: Callable[..., str]) -> None:
    """A job with a new checkpoint and the prefix of another gateway of the same server: its topic
    has the same LSNs. Afterwards no topic is noted, as by an older release."""
    other = Feeder(feeder.bootstrap_servers, feeder.registry_url, f"{feeder.prefix}_other")
    table = other.table(items.description)
    for number in range(9):
        insert_item(other, table, number)
    other.close()
    told = job(other, "--checkpoint", str(path.parent / "other"))
    assert (
        f"from the marker topic {feeder.prefix}.transaction, and cannot go on with {other.prefix}.transaction" in told
    )
    (path / "_topic").unlink()


def test_a_checkpoint_that_is_ahead_of_its_mirror_is_refused(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """The mirror was restored from a backup, then removed; its checkpoint was not. Both ways on are
    tried."""
    items, others = feeder.table(ITEMS), feeder.table(relation("others", {"id": INT8, "name": TEXT}, ("id",)))
    path, backup, kept = tmp_path / "mirror", tmp_path / "backup", tmp_path / "kept"
    only = ("--once", "--tables", "public.items")

    def mirror(*more: str) -> str:
        code, told = run_here(spark, "mirror", feeder, path, *only, *more)
        assert (code == 0) == (told == ""), told
        return told

    def changes_of_others() -> None:
        """Among them one of `items` that is rolled back: no transaction has a row of the mirror."""
        for number in (len(others.rows), len(others.rows) + 1):
            insert_item(feeder, others, number)
        transaction = feeder.begin(streamed=True)
        transaction.insert(others, {"id": len(others.rows), "name": "a"})
        transaction.insert(items, {"id": 100, "name": "a"}, subxid=feeder.next_xid())
        transaction.abort_to(transaction.changes[-1].subxid)
        transaction.commit()
        feeder.kafka_commit()

    changes_of_others()
    assert not mirror(), "no transaction had a row for it"
    commit_lsns = [insert_item(feeder, items, number) for number in range(2)]
    assert not mirror(), "the checkpoint is ahead, and the mirror has nothing"
    changes_of_others()
    shutil.copytree(path, backup, ignore=shutil.ignore_patterns("checkpoint"))
    assert not mirror()
    commit_lsns.append(insert_item(feeder, items, 2))
    assert not mirror(), "the checkpoint is ahead, and nothing is missing"
    planned = max(int(entry.name) for entry in (path / "checkpoint" / "offsets").iterdir() if entry.name.isdigit())
    shutil.copytree(path / "checkpoint", kept)
    last = str(max(int(entry.name) for entry in (kept / "commits").iterdir() if entry.name.isdigit()))
    commit = (kept / "commits" / last).read_text()
    for name, rest in ((f"commits/{last}", commit), (f"offsets/{planned + 1}", "")):
        (kept / name).with_name(f".{(kept / name).name}.crc").unlink(missing_ok=True)
        (kept / name).write_text("")  # as after a power failure
        told = mirror("--checkpoint", str(kept))
        assert f"{kept} cannot be read: its file {name} is incomplete" in told
        assert "or remove this one" in told
        (kept / name).write_text(rest)
    shutil.rmtree(kept)
    assert not mirror("--checkpoint", str(kept))
    shutil.rmtree(kept)

    (path / "checkpoint").rename(kept)
    shutil.rmtree(path)
    told = mirror("--checkpoint", str(kept))
    assert f"the mirror at {path} has no changes" in told and format_lsn(commit_lsns[0]) in told
    assert not mirror("--checkpoint", str(tmp_path / "new"))
    check_items(path, items)

    shutil.rmtree(path)
    shutil.copytree(backup, path)
    told = mirror("--checkpoint", str(kept))
    assert f"all changes up to {format_lsn(commit_lsns[1])}" in told and format_lsn(commit_lsns[2]) in told
    assert "or remove this one" in told
    shutil.rmtree(kept)
    assert not mirror("--checkpoint", str(kept))
    check_items(path, items)


def insert_item(feeder: Feeder, items: Table, number: int) -> int:
    transaction = feeder.begin()
    transaction.insert(items, {"id": number, "name": "a"})
    commit_lsn = transaction.commit()
    feeder.kafka_commit()
    return commit_lsn


def remove_markers(feeder: Feeder, count: int) -> int:
    """The first so many, as retention does: offset of the first that is left."""
    topic = transaction_topic(feeder.prefix)
    admin = AdminClient({"bootstrap.servers": feeder.bootstrap_servers})
    low = 2 * count  # each is followed by the end of its Kafka transaction
    (removed,) = admin.delete_records([TopicPartition(topic, 0, low)]).values()
    assert removed.result(30).low_watermark == low
    return low


@pytest.mark.long
async def test_a_changelog_that_is_killed_has_every_change_once(feeder: Feeder, tmp_path: Path) -> None:
    items = await asyncio.to_thread(feeder.table, ITEMS)
    await kill_and_feed("consume", feeder, tmp_path, items, 20)
    await run(
        "consume", feeder, tmp_path, "--max-changes", "40", "--until-lsn", format_lsn(feeder.truth[-1].commit_lsn)
    )
    check_changelog(tmp_path, items, feeder)


def check_changelog(path: Path, table: Table, feeder: Feeder) -> None:
    folder = path / "tables" / "public" / table.description.name
    rows = [row for file in folder.glob("batch=*/*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    changes = sorted((row["commit_lsn"], row["ordinal"], row["op"]) for row in rows)
    assert changes == [(c.commit_lsn, c.ordinal, c.op) for c in feeder.truth if c.table is table]


@pytest.mark.long
async def test_a_changelog_in_parquet_has_every_change_once(feeder: Feeder, tmp_path: Path) -> None:
    workload = await asyncio.to_thread(Workload, feeder, 13)
    for _ in range(40):
        await asyncio.to_thread(workload.step)
    await asyncio.to_thread(workload.finish)
    found = await run("consume", feeder, tmp_path, "--once", "--max-changes", "100")
    batches = [line for line in found if "batch" in line]
    assert parse_lsn(batches[-1]["commit_lsn"]) == feeder.truth[-1].commit_lsn
    for table in workload.tables:
        check_changelog(tmp_path, table, feeder)


async def test_sigterm_ends_a_changelog_in_delta_cleanly(feeder: Feeder, tmp_path: Path) -> None:
    items = await asyncio.to_thread(feeder.table, ITEMS)
    for seed in range(2):
        await asyncio.to_thread(change_items, feeder, items, random.Random(seed))
    path = tmp_path / "changes"
    process = await start("consume", feeder, path, "--format", "delta")
    assert process.stdout is not None
    async for line in process.stdout:
        if json.loads(line).get("batch") is not None:
            break
    process.terminate()
    assert (await process.wait(), errors_of(tmp_path)) == (0, "")
    files = await asyncio.to_thread(open_delta, path / "tables" / "public" / "items")
    rows = [row for table in files.batches() for row in table.to_pylist()]
    found = sorted((row["commit_lsn"], row["ordinal"], row["op"], row["after"]) for row in rows)
    assert found == [(c.commit_lsn, c.ordinal, c.op, c.after) for c in feeder.truth]


@pytest.mark.long
@pytest.mark.parametrize(("number", "merge_every"), [(signal.SIGTERM, "0"), (signal.SIGINT, "60")])
async def test_a_mirror_that_is_stopped_within_a_batch_is_silent(
    feeder: Feeder, tmp_path: Path, number: signal.Signals, merge_every: str
) -> None:
    """Ctrl-C reaches every process of the group; SIGTERM, as from a supervisor, the first one
    alone."""
    tables = await asyncio.to_thread(one_batch_of_many_tables, feeder)
    path = tmp_path / "mirror"
    process = await start("mirror", feeder, path, "--merge-every", merge_every)
    while not any(path.rglob("_delta_log")):
        assert process.returncode is None
        await asyncio.sleep(0.05)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    found = await lines(process)
    assert (await process.wait(), errors_of(tmp_path)) == (0, "")
    assert not any("batch" in line for line in found), "the batch had ended before the signal came"
    await run("mirror", feeder, path, "--once")
    assert {found.name: texts(found.rows()) for found in newest(path)} == {
        f"public.{table.description.name}": expected(table, ["id", "name"]) for table in tables
    }


def one_batch_of_many_tables(feeder: Feeder) -> list[Table]:
    described = [relation(f"items_{number}", {"id": INT8, "name": TEXT}, ("id",)) for number in range(8)]
    tables = [feeder.table(one) for one in described]
    transaction = feeder.begin()
    for table in tables:
        for key in range(2_000):  # so that the batch takes a while
            transaction.insert(table, {"id": key, "name": "a"})
    transaction.commit()
    feeder.kafka_commit()
    return tables


@pytest.mark.long
async def test_a_python_process_that_starts_too_slowly_is_waited_for(feeder: Feeder, tmp_path: Path) -> None:
    """Spark gives the process of a streaming source ten seconds, and then the query ends."""
    items = await asyncio.to_thread(feeder.table, ITEMS)
    transaction = feeder.begin()
    transaction.insert(items, {"id": 1, "name": "a"})
    transaction.commit()
    await asyncio.to_thread(feeder.kafka_commit)
    started, slow = tmp_path / "started", tmp_path / "python"
    waits = f"[ -e {started} ] || {{ : > {started}; sleep 15; }}"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *source_runner*) {waits};; esac\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    found = await run("mirror", feeder, tmp_path / "mirror", "--once", PYSPARK_PYTHON=str(slow))
    assert started.exists() and any("connect back" in line.get("problem", "") for line in found)
    (made,) = newest(tmp_path / "mirror")
    assert list(made.rows()) == [("1", "a")]
