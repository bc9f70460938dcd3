"""A table that is put into quarantine, from PostgreSQL to a mirror: it stands still there, and
comes back whole.

Every part is a process of its own, as operators run it; the mirror is read without Spark, and held
against the source.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from gateway.local.ports import HOST, free_port
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.local.dump import newest
from tests.conftest import Database
from tests.spark_consumer.jobs.test_jobs import Topics, start
from tests.support.gateway_process import GatewayProcess
from tests.support.written import walgate

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1000)]

WAIT_S = 240
LARGEST = 200_000
TABLES = ("flows", "others", "poison")
SETUP = """
CREATE TABLE flows (id int PRIMARY KEY, v text);
CREATE TABLE others (id int PRIMARY KEY, v text);
CREATE TABLE poison (id int PRIMARY KEY, v text);
ALTER TABLE poison ALTER v SET STORAGE EXTERNAL;
INSERT INTO flows SELECT n, 'first' FROM generate_series(1, 100) n;
INSERT INTO others TABLE flows;
INSERT INTO poison TABLE flows;
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
REASON = "a row is larger than kafka.max_record_bytes"
TOLD = f"public.poison is not updated until a new snapshot of it is taken: {REASON}"
Rows = list[tuple[str | None, ...]]


@dataclass
class Scene:
    sql: asyncpg.Connection
    gateway: GatewayProcess
    path: Path
    http_port: int
    reports: list[dict[str, Any]] = field(default_factory=list)
    number: int = 1000

    async def change(self, *tables: str) -> None:
        """One transaction that inserts, updates and deletes a row of each of these tables."""
        self.number += 1
        async with self.sql.transaction():
            for table in tables:
                await self.sql.execute(
                    f"INSERT INTO {table} VALUES ({self.number}, 'new');"
                    f"UPDATE {table} SET v = v || ' {self.number}' WHERE id = {self.number % 50 + 1};"
                    f"DELETE FROM {table} WHERE id = {self.number % 50 + 51}"
                )

    async def rows(self, table: str) -> Rows:
        """Of the source."""
        return sorted(tuple(row) for row in await self.sql.fetch(f"SELECT id::text, v FROM {table}"))

    def mirrored(self, table: str) -> Rows:
        try:
            (found,) = newest(self.path, [f"public.{table}"])
        except MirrorError:  # not yet
            return []
        return sorted((row[0], row[1]) for row in found.rows())

    async def equal(self, *tables: str) -> None:
        """What commits meanwhile is not waited for."""
        for table in tables:
            truth = await self.rows(table)
            async with asyncio.timeout(WAIT_S):
                while (found := await asyncio.to_thread(self.mirrored, table)) != truth:
                    await asyncio.sleep(0.2)
            assert found == truth

    def notes(self) -> list[str]:
        return [note for report in self.reports for note in report.get("notes", [])]

    async def told(self) -> None:
        """Of the table that stands still; the mirror says so behind its commit."""
        async with asyncio.timeout(WAIT_S):
            while TOLD not in self.notes():
                await asyncio.sleep(0.05)

    async def stale(self) -> float:
        """The mirror's metric."""
        text = (await asyncio.to_thread(urlopen, f"http://{HOST}:{self.http_port}/metrics")).read().decode()
        (line,) = [line for line in text.splitlines() if line.startswith("walgate_job_stale_tables ")]
        return float(line.split()[1])


@asynccontextmanager
async def open_scene(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path
) -> AsyncIterator[Scene]:
    settings: dict[str, object] = {
        "source__dsn": database.dsn,
        "source__slot": prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__max_record_bytes": LARGEST,
        "registry__url": registry.url,
        "snapshot__mode": "initial",
        "errors__tables": '[{"pattern": "public.poison", "on_error": "quarantine"}]',
    }
    sql = await database.connect()
    await sql.execute(SETUP)
    scene = Scene(sql, GatewayProcess(folder / "gateway.log", settings), folder / "mirror", free_port())
    topics = Topics(kafka.bootstrap_servers, registry.url, prefix)
    mirror = await start("mirror", topics, scene.path, "--merge-every", "0", "--http", f"{HOST}:{scene.http_port}")

    async def listen() -> None:
        assert mirror.stdout is not None
        async for line in mirror.stdout:
            if line.startswith(b"{"):
                scene.reports.append(json.loads(line))

    listening = asyncio.create_task(listen())
    try:
        await scene.gateway.streaming()
        yield scene
        assert mirror.returncode is None
    except BaseException:
        print(scene.gateway.log_tail(), (folder / "errors.txt").read_text()[-3000:], *scene.reports[-20:], sep="\n")
        raise
    finally:
        if mirror.returncode is None:
            os.killpg(mirror.pid, signal.SIGTERM)
        await mirror.wait()
        await listening
        await scene.gateway.end()


async def test_a_table_in_quarantine_stands_still_in_a_mirror_until_it_is_readmitted_and_read_again(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path) as scene:
        await scene.equal(*TABLES)
        await scene.change(*TABLES)
        await scene.equal(*TABLES)
        assert TOLD not in scene.notes() and await scene.stale() == 0
        last = await scene.rows("poison")

        async with scene.sql.transaction():
            await scene.sql.execute("UPDATE flows SET v = 'with it'; UPDATE poison SET v = 'with it' WHERE id = 1")
            await scene.sql.execute(f"INSERT INTO poison VALUES (5000, repeat('x', {2 * LARGEST}))")
        await scene.change(*TABLES)
        await scene.equal("flows", "others")
        assert scene.mirrored("poison") == last != await scene.rows("poison")
        await scene.told()
        assert await scene.stale() == 1
        assert [(entry["table"], entry["reason"]) for entry in scene.gateway.events("table_quarantined")] == [
            ("public.poison", REASON)
        ]

        await scene.gateway.kill()
        await scene.change(*TABLES)
        await scene.gateway.streaming()
        await scene.change(*TABLES)
        await scene.equal("flows", "others")
        assert scene.mirrored("poison") == last and await scene.stale() == 1

        await scene.sql.execute("DELETE FROM poison WHERE id = 5000")
        before = len(scene.gateway.events("streaming"))
        assert "changes of public.poison will be written from" in await walgate(
            scene.gateway, "readmit", "public.poison"
        )
        await scene.gateway.logged('"streaming"', times=before + 1)
        await scene.change(*TABLES)
        await scene.equal("flows", "others")
        assert scene.mirrored("poison") == last, "what was left out is not in it: it still stands still"

        await walgate(scene.gateway, "snapshot", "start", "public.poison")
        await scene.change(*TABLES)
        await scene.equal(*TABLES)
        await scene.change(*TABLES)
        await scene.equal(*TABLES)
        assert await scene.stale() == 0
        said = await walgate(scene.gateway, "verify", "--mirror", str(scene.path), "--timeout", str(WAIT_S))
        assert "public.poison: equal" in said, said
