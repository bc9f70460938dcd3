"""The recipe of docs/spark.md, word for word: `spark-submit` to a cluster, a mirror on S3, under
load, with kills."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.mirror.local.dump import newest
from tests.conftest import Database
from tests.spark_consumer.cluster import Cluster, ObjectStorage
from tests.spark_consumer.mirror.test_pgbench import SUMS, TABLES, buy, fill, gateway_of
from tests.support.fork_server import die_with_parent

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]


@pytest_asyncio.fixture
async def storage() -> AsyncIterator[ObjectStorage]:
    async with ObjectStorage() as server:
        yield server


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as server:
        yield server


def recipe() -> list[str]:
    """The commands under "On a cluster"."""
    section = (ROOT / "docs" / "spark.md").read_text().partition("\n## On a cluster\n")[2].partition("\n## ")[0]
    return re.findall(r"```bash\n(.*?)```", section, re.DOTALL)


def clone(folder: Path) -> Path:
    """One in which the recipe may write."""
    folder.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in ("build", "mirror.toml") and not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder


def write_settings(path: Path, storage: ObjectStorage, more: dict[str, str], conf: dict[str, str]) -> None:
    secret = path.parent / "secret"
    secret.write_text(storage.SECRET)
    lines = [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    lines += [
        "[conf]",
        *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in (storage.settings | conf).items()),
    ]
    lines += [f'"spark.hadoop.fs.s3a.secret.key" = {{ file = "{secret}" }}']
    path.write_text("\n".join(lines) + "\n")


class Driver:
    """The second command of the recipe, in a process group of its own."""

    def __init__(self, folder: Path, command: str, master: str) -> None:
        self._folder = folder
        self._command = command
        self._environment = {
            **os.environ, "MASTER": master, "JARS": ",".join(map(str, (*jars("delta"), *jars("s3a")))),
            "JAVA_HOME": str(spark_java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None
        self._said: list[str] = []

    @property
    def said(self) -> str:
        """What is no JSON: spark-submit writes Python's stderr to stdout."""
        return "".join(self._said)[-10_000:]

    async def prepare(self, command: str) -> None:
        done = await asyncio.create_subprocess_shell(
            f"set -e\n{command}", cwd=self._folder, env=self._environment, executable="/bin/bash"
        )
        assert await done.wait() == 0

    async def start(self) -> None:
        # Python ends with the Java that spark-submit becomes.
        self._process = await asyncio.create_subprocess_shell(
            self._command, cwd=self._folder, env=self._environment, executable="/bin/bash",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip

    async def batch(self) -> dict[str, Any]:
        """What the next batch is reported with."""
        assert self._process is not None and self._process.stdout is not None
        async for line in self._process.stdout:
            self._said.append(line.decode())
            if line.startswith(b"{") and json.loads(line).get("changes"):
                return dict(json.loads(line))
        raise AssertionError(self.said)

    async def end(self) -> int:
        assert self._process is not None
        self._said.append((await self._process.communicate())[0].decode())
        assert self._process.returncode is not None
        return self._process.returncode

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()


async def rows_of(connection: asyncpg.Connection, name: str, columns: list[str]) -> list[tuple[str | None, ...]]:
    """As text, a timestamp with all six digits."""
    texts = {column: f"{column}::text" for column in columns} | {"mtime": "to_char(mtime, 'YYYY-MM-DD HH24:MI:SS.US')"}
    selected = ", ".join(texts[column] for column in columns)
    return sorted((tuple(row) for row in await connection.fetch(f"SELECT {selected} FROM {name}")), key=repr)


async def sell(database: Database, enough: asyncio.Event) -> None:
    """In two sessions, until it is enough."""

    async def session(number: int) -> None:
        connection, rnd = await database.connect(), random.Random(number)
        while not enough.is_set():
            await buy(connection, rnd, 10)

    await asyncio.gather(session(1), session(2))


@pytest.mark.parametrize("merge_every", ["0", "2"])
async def test_a_submitted_mirror_on_s3_equals_the_source_behind_a_killed_worker_and_a_killed_driver(
    cluster: Cluster, storage: ObjectStorage, database: Database, kafka: Kafka, registry: Registry,
    topic_prefix: str, tmp_path: Path, merge_every: str,
) -> None:  # fmt: skip
    connection = await database.connect()
    await connection.execute(TABLES)
    folder = await asyncio.to_thread(clone, tmp_path / "clone")
    options = {
        "bootstrap_servers": kafka.bootstrap_servers, "registry": registry.url, "prefix": topic_prefix,
        "path": f"s3a://{storage.BUCKET}/mirror", "progress": "json", "merge_every": merge_every,
    }  # fmt: skip
    write_settings(folder / "mirror.toml", storage, options, {})
    build, submit = recipe()
    driver = Driver(folder, submit, cluster.url)
    gateway, enough = gateway_of(database, kafka, registry, topic_prefix, tmp_path), asyncio.Event()
    try:
        await driver.prepare(build)
        await gateway.streaming()
        await fill(connection)
        await driver.start()
        await driver.batch()
        selling = asyncio.create_task(sell(database, enough))
        await driver.batch()
        await cluster.kill_worker()
        for _ in range(2):
            await driver.batch()
        await driver.kill()
        await cluster.add_worker()
        enough.set()
        await selling
        last = await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text")
        write_settings(folder / "mirror.toml", storage, {**options, "until_lsn": last}, {})
        await driver.start()
        assert await driver.end() == 0, driver.said
    finally:
        enough.set()
        await driver.kill()
        await gateway.end()
    found = {table.name.removeprefix("public."): table for table in newest(storage.bucket / "mirror")}
    assert found.keys() == SUMS.keys()
    for name, table in found.items():
        assert sorted(table.rows(), key=repr) == await rows_of(connection, name, table.columns), name
