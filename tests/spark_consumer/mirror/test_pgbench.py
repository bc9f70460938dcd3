"""pgbench through a real gateway into a mirror: its four sums are one at the end of every batch, as
they are in the source."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import asyncpg
import pytest
from pyspark.sql import SparkSession

from gateway.local import Kafka, Registry
from spark_consumer.mirror import version_manifest, versions
from spark_consumer.mirror.delta.log_replay import open_delta
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry as Schemas
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.tables import TableName
from tests.conftest import Database
from tests.spark_consumer.mirrors import merging_mirror
from tests.support.gateway_process import GatewayProcess

BRANCHES, TELLERS, ACCOUNTS = 2, 20, 500
TABLES = """
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88));
CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
CREATE PUBLICATION pgbench FOR ALL TABLES
"""
SUMS = {
    "pgbench_accounts": "abalance",
    "pgbench_tellers": "tbalance",
    "pgbench_branches": "bbalance",
    "pgbench_history": "delta",
}


async def fill(connection: asyncpg.Connection) -> None:
    """In one transaction, so that every batch has all tables; `work_mem` of the server's decoder is
    small: it is streamed."""
    async with connection.transaction():
        await connection.execute(
            f"INSERT INTO pgbench_branches SELECT i, 0 FROM generate_series(1, {BRANCHES}) i;"
            f"INSERT INTO pgbench_tellers SELECT i, i % {BRANCHES} + 1, 0 FROM generate_series(1, {TELLERS}) i;"
            f"INSERT INTO pgbench_accounts SELECT i, i % {BRANCHES} + 1, 0 FROM generate_series(1, {ACCOUNTS}) i"
        )


async def buy(connection: asyncpg.Connection, rnd: random.Random, count: int) -> None:
    """pgbench's TPC-B script, each in a transaction; some are rolled back after a savepoint, some
    at the end."""
    for _ in range(count):
        aid, bid, tid = rnd.randint(1, ACCOUNTS), rnd.randint(1, BRANCHES), rnd.randint(1, TELLERS)
        delta = rnd.randint(-5000, 5000)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2", delta, aid)
        await connection.execute("UPDATE pgbench_tellers SET tbalance = tbalance + $1 WHERE tid = $2", delta, tid)
        await connection.execute("UPDATE pgbench_branches SET bbalance = bbalance + $1 WHERE bid = $2", delta, bid)
        await connection.execute(
            "INSERT INTO pgbench_history VALUES ($1, $2, $3, $4, CURRENT_TIMESTAMP)", tid, bid, aid, delta
        )
        if rnd.random() < 0.1:
            savepoint = connection.transaction()
            await savepoint.start()
            await connection.execute("UPDATE pgbench_accounts SET abalance = abalance + 7 WHERE aid = $1", aid)
            await savepoint.rollback()
        await (transaction.rollback() if rnd.random() < 0.1 else transaction.commit())


async def load(database: Database, clients: int, of_client: int) -> int:
    """How many transactions were committed."""
    connections = [await database.connect() for _ in range(clients)]
    await asyncio.gather(*(buy(one, random.Random(number), of_client) for number, one in enumerate(connections)))
    count: int = await connections[0].fetchval("SELECT count(*) FROM pgbench_history")
    return count


def sums(path: Path, picture: version_manifest.RecordedVersion) -> dict[str, int]:
    """Of each table at its version in the picture, without Spark."""
    found = {}
    for name, column in SUMS.items():
        version = picture.tables.get(f"public.{name}")
        folder = Path(table_path(str(path), TableName("public", name)))
        batches = [] if version is None else list(open_delta(folder, version).batches())
        found[name] = sum(sum(batch[column].to_pylist()) for batch in batches)
    return found


def gateway_of(database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path) -> GatewayProcess:
    """It publishes TABLES."""
    settings = {
        "source__dsn": database.dsn, "source__slot": f"slot_{prefix}", "source__publications": "pgbench",
        "kafka__bootstrap_servers": kafka.bootstrap_servers, "kafka__prefix": prefix,
        "kafka__replication_factor": 1, "registry__url": registry.url,
    }  # fmt: skip
    return GatewayProcess(folder / "gateway.log", settings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("clients", "of_client", "limit"),
    [(2, 20, 50), pytest.param(8, 2500, 2000, marks=pytest.mark.timeout(1800))],
)
async def test_the_four_sums_of_pgbench_are_one_at_the_end_of_every_batch(
    spark: SparkSession,
    database: Database,
    kafka: Kafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
    clients: int,
    of_client: int,
    limit: int,
) -> None:
    connection = await database.connect()
    await connection.execute(TABLES)
    gateway = gateway_of(database, kafka, registry, topic_prefix, tmp_path)
    try:
        await gateway.streaming()
        await fill(connection)
        seen: list[version_manifest.RecordedVersion] = []

        def look(report: BatchReport) -> None:
            if report.is_merge:
                assert mirror._merges.merger.last is not None
                seen.append(mirror._merges.merger.last)

        mirror = merging_mirror(str(tmp_path / "mirror"), SchemaCache(Schemas({"url": registry.url})), look)
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "registry.url": registry.url,
            "prefix": topic_prefix, "maxChangesPerTrigger": str(limit),
        }  # fmt: skip
        frame = spark.readStream.format("walgate").options(**options).load()
        writer = frame.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = await asyncio.to_thread(writer.start)
        try:
            committed = await load(database, clients, of_client)
            truth = {
                name: await connection.fetchval(f"SELECT sum({column}) FROM {name}") for name, column in SUMS.items()
            }
            while not seen or sums(tmp_path / "mirror", seen[-1]) != truth:
                assert query.isActive, query.exception()
                await asyncio.sleep(0.2)
        finally:
            await asyncio.to_thread(query.stop)
    finally:
        await gateway.end()
    found = [sums(tmp_path / "mirror", picture) for picture in seen]
    assert len(seen) > 2 and len({tuple(one.values()) for one in found}) > 2
    for picture, one in zip(seen, found, strict=True):
        assert len(set(one.values())) == 1, (picture, one)
    rows = await asyncio.to_thread(versions.read(spark, str(tmp_path / "mirror"))["public.pgbench_history"].count)
    assert rows == committed
