"""The demo itself: its verdict on a true and on a spoilt mirror, and what it leaves behind."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from rich.console import Console

from gateway.demo.panel import Panel
from gateway.demo.story import STEPS, Addresses, Story, StoryOptions
from gateway.demo.verdict import TableVerdict
from gateway.local import Kafka, Registry
from gateway.local.guard import Guard
from spark_consumer.mirror.delta.log_replay import open_delta
from tests.conftest import Database
from tests.support.quick_java import users_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SECONDS = 5.0
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0


@pytest_asyncio.fixture
async def guard() -> AsyncIterator[Guard]:
    guard = await Guard.open("test-demo")
    yield guard
    await guard.close()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where a demo puts its folders: reachable for the account that runs PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.long  # tests/install/test_dist.py runs a demo too, and test_verdict spoils every table
async def test_a_mirror_is_equal_until_a_row_is_corrupted_or_lost(
    guard: Guard, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str
) -> None:
    panel = Panel("", STEPS, Console(file=io.StringIO()))
    addresses = Addresses(database.dsn, kafka.bootstrap_servers, registry.url, topic_prefix, database.name)
    story = Story(StoryOptions(SECONDS, 5, kill_gateway=False), panel, guard, addresses)
    facts: dict[str, object] = {}
    await story.tell(facts)
    assert facts["equal"], facts
    assert facts["transactions"] == facts["transactions_rebuilt"]

    path, true_rows = newest_file(guard.folder / "mirror" / "tables" / "public" / "carts")
    pq.write_table(with_another_text(true_rows), path)
    corrupted = await judge_carts(story)
    pq.write_table(true_rows.slice(1), path)
    lost = await judge_carts(story)
    pq.write_table(true_rows, path)
    restored = await judge_carts(story)

    assert not corrupted.equal
    assert (corrupted.differing_rows, corrupted.differences[0].column) == (1, "skus")
    assert not lost.equal
    assert lost.source_rows == lost.mirror_rows + 1
    assert restored.equal


async def judge_carts(story: Story) -> TableVerdict:
    return next(verdict for verdict in await story.judge() if verdict.table == "public.carts")


def newest_file(table: Path) -> tuple[Path, pa.Table]:
    """One of the files that the table consists of now, and its rows."""
    path = next(table / name for name, _ in open_delta(table).files)
    return path, pq.read_table(path)


def with_another_text(rows: pa.Table) -> pa.Table:
    """The first array of texts of the first row is another one."""
    place = next(index for index, field in enumerate(rows.schema) if pa.types.is_list(field.type))
    values = rows.column(place).to_pylist()
    values[0] = ["bolt-m7"]
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.array(values, field.type))


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGTERM, signal.SIGKILL))],
)
async def test_a_demo_that_is_stopped_leaves_no_process_and_no_folder(temporary: Path, number: signal.Signals) -> None:
    demo = await asyncio.create_subprocess_exec(
        *demo_command(), stdout=asyncio.subprocess.PIPE, env=users_environment() | {"TMPDIR": str(temporary)}
    )
    assert demo.stdout is not None
    async with asyncio.timeout(START_TIMEOUT_S):
        while b"] Gateway" not in (line := await demo.stdout.readline()):
            assert line, "the demo has ended"
    assert list(temporary.iterdir())
    demo.send_signal(number)
    async with asyncio.timeout(END_TIMEOUT_S):
        code = await demo.wait()
    assert code == (-number if number == signal.SIGKILL else 128 + signal.SIGINT)
    deadline = time.monotonic() + END_TIMEOUT_S  # after kill -9 the guards clean up by themselves
    while (left := [*temporary.iterdir(), *processes_with(temporary)]) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    assert left == []


def demo_command() -> list[str]:
    return [sys.executable, "-m", "gateway.cli.main", "demo"]


def processes_with(temporary: Path) -> list[str]:
    """Command lines of the processes that were started with this folder for temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={temporary}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue  # gone, or another user's
    return found
