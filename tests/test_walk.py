"""A new user's walk: the commands of README.md and docs/, as they are written there, in their order, against real servers.

Replaced are only the names of servers that do not exist (db.example, ...) and paths (/data/mirror). A command that does not end
by itself is stopped by Ctrl-C once it has done what the page says.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from gateway.local import LocalParts
from gateway.local.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
PASSWORD = "a password"
TIMEOUT_S = 120.0
SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE items (id int PRIMARY KEY, order_id int);
INSERT INTO orders VALUES (1, 'was there before');
"""


def commands(page: str, section: str) -> list[str]:
    """Of a page's section: lines of its code blocks, without comments; a line that ends with a backslash goes on."""
    text = (ROOT / page).read_text("utf-8")
    found = re.search(rf"^##+ {re.escape(section)}\n(.*?)(?=^##+ |\Z)", text, re.S | re.M)
    assert found is not None, f"{page} has no section {section!r}"
    fence = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.S | re.M)
    blocks = [block for language, block in fence.findall(found[1]) if language in ("sh", "sql")]
    blocks += re.findall(r"^    \S.*\n", fence.sub("", found[1]), re.M)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    bare = (re.sub(r"\s+(#|--) .*", "", line).strip() for line in lines)
    return [line for line in bare if line]


@dataclass
class Walk:
    """`replaced`: names of the pages -> those of this computer."""

    sql: asyncpg.Connection
    environment: dict[str, str]
    replaced: dict[str, str]
    folder: Path
    walked: list[str] = field(default_factory=list)

    def here(self, command: str) -> str:
        self.walked.append(command)
        for name, ours in self.replaced.items():
            command = command.replace(name, ours)
        return command

    async def execute(self, statement: str) -> None:
        """SQL, as superuser."""
        await self.sql.execute(self.here(statement))

    def export(self, command: str) -> None:
        for name, value in re.findall(r"(\w+)=(\S+)", self.here(command)):
            self.environment[name] = value.strip("'")

    async def run(self, command: str, *said: str, code: int = 0) -> str:
        """It ends by itself."""
        async with self.running(command) as (process, output):
            assert await process.wait() == code, f"{command}\n{output()}"
        for text in said:
            assert text in output(), f"{command}: {text!r} is not in\n{output()}"
        return output()

    async def run_until(self, command: str, *said: str, change: str = "SELECT") -> str:
        """Until all of this was said; Ctrl-C then ends it with 0. `change`: SQL, each second meanwhile."""
        deadline = time.monotonic() + TIMEOUT_S - 10
        async with self.running(command) as (process, output):
            while not all(text in output() for text in said):
                assert time.monotonic() < deadline, f"{command}: {said}:\n{output()}"
                await self.sql.execute(change)
                await asyncio.sleep(1.0)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0, f"{command}\n{output()}"
        return output()

    @asynccontextmanager
    async def running(self, command: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Callable[[], str]]]:
        path = self.folder / f"{len(self.walked)}.txt"
        with path.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-o", "pipefail", "-c", f"{'' if '|' in command else 'exec '}{self.here(command)}"),
                cwd=ROOT,
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield process, lambda: path.read_text(errors="replace")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def until(holds: Callable[[], bool], what: str, output: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S - 10
    while not holds():
        assert time.monotonic() < deadline, f"{what}:\n{output()}"
        await asyncio.sleep(0.1)


@pytest.fixture
async def walk(tmp_path: Path) -> AsyncIterator[Walk]:
    async with LocalParts() as parts:
        admin = await parts.postgres.connect()
        await admin.execute("CREATE DATABASE shop")
        await admin.close()
        sql = await parts.postgres.connect("shop")
        await sql.execute(SHOP)
        programs = (Path(sys.executable).parent, Path(parts.postgres.program("psql")).parent, os.environ["PATH"])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WALGATE_")}
        environment |= {
            "PATH": ":".join(map(str, programs)),
            "PGPASSWORD": PASSWORD,
            "KAFKA_BOOTSTRAP_SERVERS": parts.kafka.bootstrap_servers,
            "SCHEMA_REGISTRY_URL": parts.registry.url,
            "WALGATE_HTTP__PORT": str(free_port()),
        }
        replaced = {
            "db.example": f"127.0.0.1:{parts.postgres.port}",
            "kafka.example:9092": parts.kafka.bootstrap_servers,
            "http://registry.example:8081": parts.registry.url,
            "/data/mirror": str(tmp_path / "mirror"),
            "PASSWORD '...'": f"PASSWORD '{PASSWORD}'",
        }
        yield Walk(sql, environment, replaced, tmp_path)
        await sql.close()


async def test_every_command_does_what_the_page_says(walk: Walk) -> None:
    role, publication, grant, *rest = commands("README.md", "With your own PostgreSQL and Kafka")
    pip, exports = rest[:3], rest[3:6]
    assert all(line.startswith("pip install ") for line in pip)  # tests/install walks these
    for statement in (role, publication, grant):
        await walk.execute(statement)
    for line in exports:
        walk.export(line)
    check, run, mirror = rest[6:]
    await walk.run(check, "the gateway would start")
    async with walk.running(run) as (gateway, log):
        await until(lambda: "streaming" in log(), run, log)
        await read(walk)
        await tail(walk)
        await operate(walk)
        await mirrored(walk, mirror)
        gateway.send_signal(signal.SIGTERM)
        assert await gateway.wait() == 0, log()
    await walk.run("walgate status", "nothing reads the slot", "NOT IN USE", code=1)
    await leave(walk)
    print("\n".join(walk.walked))


async def read(walk: Walk) -> None:
    _, example = commands("README.md", "Read a topic")
    walk.replaced[".venv/bin/python"] = sys.executable
    await walk.run(example, "was there before")


async def tail(walk: Walk) -> None:
    updated = "UPDATE orders SET note = 'two words' WHERE id = 1"
    changes, topics, _ = commands("README.md", "Inspect the stream")
    await walk.run_until(changes, "two words", change=updated)
    await walk.run_until(topics, '"message": "Read"', '"message": "Update"', '"message": "COMMIT"')
    walk.replaced["--publication other"] = "--publication walgate"
    export, plain, chosen, limited = commands("docs/tail.md", "From PostgreSQL")
    walk.export(export)
    await walk.run_until(plain, "Begin", 'new: id=1 note="two words"', "Commit", change=updated)
    await walk.run_until(chosen, "two words", change=updated)
    assert limited == "walgate tail --json --limit 100 | jq ."
    await walk.run_until("walgate tail --json --limit 100", '"message": "Update"', change=updated)
    fresh, old = commands("docs/tail.md", "From Kafka")
    await walk.run_until(fresh, "two words", change=updated)
    await walk.run_until(old, "was there before")
    await walk.execute("SELECT pg_create_logical_replication_slot('slot', 'pgoutput')")
    await walk.sql.execute(updated)
    peek, given, record = commands("docs/tail.md", "Captured messages and records")
    walk.environment |= {"PGHOST": "127.0.0.1", "PGUSER": "walgate", "PGDATABASE": "shop"}
    walk.environment["PGPORT"] = walk.environment["WALGATE_SOURCE__DSN"].rpartition(":")[2].partition("/")[0]
    await walk.run(peek, "Begin", "two words", "Commit")
    await walk.run(given, "Begin  commit_lsn=0/16B3F48")
    assert record == "walgate decode record.bin"
    await walk.sql.execute("SELECT pg_drop_replication_slot('slot')")


async def operate(walk: Walk) -> None:
    """What the text of docs/operations.md and docs/snapshot.md names."""
    (query,) = [" ".join(commands("docs/operations.md", "Monitoring"))]
    await walk.execute(query)
    await walk.run("walgate health", "streaming")
    await walk.run("walgate status", "streaming for", "public.orders")
    await walk.run("walgate status --json", '"asked": "gateway"')
    await walk.run_until("walgate status --watch", "streaming for")
    await walk.run("walgate check --json", '"exit_code": 0')
    (command,) = commands("docs/snapshot.md", "Commands")
    await walk.execute(command)
    for each in ("pause", "resume", "start public.items", "start --verify public.orders", "cancel"):
        await walk.run(f"walgate snapshot {each}")
    await walk.run("walgate snapshot status", "public.orders")
    await walk.run("walgate version", "0.")


async def mirrored(walk: Walk, mirror: str) -> None:
    async with walk.running(mirror) as (process, output):
        deadline = time.monotonic() + TIMEOUT_S - 10
        table = Path(walk.replaced["/data/mirror"]) / "tables/public/orders/_delta_log"
        while not table.exists():
            assert time.monotonic() < deadline and process.returncode is None, output()
            await asyncio.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, output()
    await walk.run("walgate dump --mirror /data/mirror --table public.orders", "two words")


async def leave(walk: Walk) -> None:
    drop, look = commands("docs/leaving.md", "Shut down permanently")
    await walk.execute(drop)
    await walk.execute(look)
    assert await walk.sql.fetchval("SELECT count(*) FROM pg_replication_slots") == 0
    await walk.execute("DROP PUBLICATION walgate")
