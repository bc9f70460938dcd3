"""Transactions of sizes that nobody holds in memory: streamed while they are open, among others,
and read back to the row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
from tests.spark_consumer.workload import Workload
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_confirmed

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
PIECE = 10_000
WORKER_MB = 600


def test_a_streamed_transaction_of_500_000_rows_comes_out_among_others(
    spark: SparkSession, feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth piece of it is in a savepoint that is rolled back."""
    monkeypatch.setattr(Workload, "_restart", lambda _: None)  # would make the large one void
    workload, items = Workload(feeder, 3), feeder.table(ITEMS)
    large = feeder.begin(streamed=True)
    for number in range(0, 550_000, PIECE):
        rolled_back = number // PIECE % 11 == 5
        subxid = feeder.next_xid() if rolled_back else None
        for key in range(number, number + PIECE):
            large.insert(items, {"id": key, "name": f"name {key}"}, subxid)
        large.send()
        if subxid is not None:
            large.abort_to(subxid)
        workload.step()
    large.commit()
    workload.finish()
    raw = spark.read.format("walgate").options(**feeder.options(includeMessages="true")).load()
    found = raw.select("table", "op", "commit_lsn", "ordinal").toArrow()
    found = found.sort_by([("commit_lsn", "ascending"), ("ordinal", "ascending")])
    expected = [(c.table and c.table.name, c.op, c.commit_lsn, c.ordinal) for c in feeder.truth]
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    typed = spark.read.format("walgate").options(**feeder.options(table=items.name)).load()
    rows = typed.select("ordinal", "after.*").toArrow().sort_by("ordinal")
    changes = [change for change in feeder.truth if change.table is items]
    assert len(changes) == 500_000
    assert rows["id"].to_pylist() == [change.after and change.after["id"] for change in changes]
    assert rows["name"].to_pylist() == [change.after and change.after["name"] for change in changes]


async def test_three_million_rows_in_one_transaction_leave_the_workers_small(
    spark: SparkSession, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    count = 3_000_000
    connection = await database.connect()
    await connection.execute(
        "CREATE TABLE big (id bigint PRIMARY KEY, note text); CREATE PUBLICATION big FOR TABLE big"
    )
    settings = {
        "source__dsn": database.dsn, "source__slot": f"slot_{topic_prefix}", "source__publications": "big",
        "kafka__bootstrap_servers": kafka.bootstrap_servers, "kafka__prefix": topic_prefix,
        "kafka__replication_factor": 1, "registry__url": registry.url,
    }  # fmt: skip
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "registry.url": registry.url, "prefix": topic_prefix}
    try:
        await gateway.streaming()
        rows = f"SELECT i, 'a note of some length ' || i FROM generate_series(1, {count}) i"
        await connection.execute(f"INSERT INTO big {rows}", timeout=1200)
        await until_confirmed(connection, f"slot_{topic_prefix}", timeout_s=3600)
    finally:
        await gateway.kill()

    def read() -> tuple[int, ...]:
        typed = spark.read.format("walgate").options(**options, table="public.big").load()
        right = (f.col("after.id") == f.col("ordinal") + 1) & (
            f.col("after.note") == f.concat(f.lit("a note of some length "), f.col("after.id"))
        )
        found = typed.agg(
            f.count("*"), f.count_if(right), f.sum("ordinal"), f.count_distinct("commit_lsn"), f.count("before")
        ).head()
        assert found is not None
        return tuple(found)

    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]
    with peak_mb_of_workers(spark) as peak:
        found = await asyncio.to_thread(read)
    print(f"largest worker {max(peak.values())} MB of {len(peak)}, heap {heap >> 20} MB")
    assert found == (count, count, count * (count - 1) // 2, 1, 0)
    assert heap <= 1 << 30
    assert peak and max(peak.values()) < WORKER_MB, peak


@contextmanager
def peak_mb_of_workers(spark: SparkSession) -> Iterator[dict[int, int]]:
    """Largest resident memory of each Python process below the JVM: VmHWM of proc(5)."""
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    peak: dict[int, int] = {}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            facts = {pid: status(pid) for pid in map(int, (path.name for path in Path("/proc").glob("[0-9]*")))}
            family, grown = {java}, True
            while grown:
                more = {pid for pid, found in facts.items() if int(found.get("PPid", 0)) in family} - family
                family, grown = family | more, bool(more)
            for pid in family - {java}:
                mb = int(facts[pid].get("VmHWM", "0 kB").split()[0]) >> 10
                peak[pid] = max(mb, peak.get(pid, 0))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":", 1) for line in lines)
