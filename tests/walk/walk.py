"""What a reader of README.md and docs/ does: the commands as they are written there, in their
order, against real servers.

Replaced are only the names of servers that do not exist (db.example, ...), paths (/data/mirror) and
passwords (...). A command that does not end by itself is stopped by Ctrl-C once it has done what
the page says.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import asyncpg

from gateway.local import Kafka, Postgres, Registry
from gateway.local.ports import free_port

ROOT = Path(__file__).parents[2]
PASSWORD = "a password"
TIMEOUT_S = 180.0
OWN_DATABASE = ("README.md", "Your own database")
NONE: Mapping[str, str] = MappingProxyType({})
SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE items (id int PRIMARY KEY, order_id int);
INSERT INTO orders VALUES (1, 'was there before');
INSERT INTO items VALUES (1, 1);
"""


def commands(page: str, section: str, *languages: str) -> list[str]:
    """Of a page's section, the lines of its code blocks in these languages (sh and sql), and of
    those that are only indented, without comments. A line that ends with a backslash goes on."""
    text = (ROOT / page).read_text("utf-8")
    found = re.search(rf"^##+ {re.escape(section)}\n(.*?)(?=^##+ |\Z)", text, re.S | re.M)
    assert found is not None, f"{page} has no section {section!r}"
    fence = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.S | re.M)
    blocks = [block for language, block in fence.findall(found[1]) if language in (languages or ("sh", "sql"))]
    blocks += re.findall(r"^    \S.*\n", fence.sub("", found[1]), re.M)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    bare = (re.sub(r"\s+(#|--) .*", "", line).strip() for line in lines)
    return [line for line in bare if line]


@dataclass
class Walk:
    """`replaced`: names of the pages -> those of this computer."""

    postgres: Postgres
    environment: dict[str, str]
    replaced: dict[str, str]
    folder: Path
    walked: list[str] = field(default_factory=list)

    def here(self, command: str) -> str:
        self.walked.append(command)
        for name, ours in self.replaced.items():
            command = command.replace(name, ours)
        return command

    async def sql(self, *statements: str, database: str = "shop", postgres: Postgres | None = None) -> str:
        """Through psql, as superuser. Returns what it prints."""
        server = postgres or self.postgres
        process = await asyncio.create_subprocess_exec(
            *("psql", "-XAtqv", "ON_ERROR_STOP=1", server.database_dsn(database)),
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate("\n".join(map(self.here, statements)).encode())
        assert process.returncode == 0, f"{statements}\n{output.decode()}"
        return output.decode().strip()

    def export(self, *lines: str) -> None:
        for line in lines:
            words = self.here(line).removeprefix("export ")
            self.environment |= {name: value.strip("'") for name, value in re.findall(r"(\w+)=('[^']*'|\S+)", words)}

    async def run(self, command: str, *said: str, code: int = 0, settings: Mapping[str, str] = NONE) -> str:
        """It ends by itself."""
        async with self.running(command, settings) as (process, output):
            assert await process.wait() == code, f"{command}\n{output()}"
        for text in said:
            assert text in output(), f"{command}: {text!r} is not in\n{output()}"
        return output()

    async def run_again(self, command: str, said: str, settings: Mapping[str, str] = NONE) -> None:
        """Again and again, until it says this."""
        deadline = time.monotonic() + TIMEOUT_S
        while said not in (output := await self.run(command, settings=settings)):
            assert time.monotonic() < deadline, f"{command}: {said!r} is not in\n{output}"
            await asyncio.sleep(0.5)

    async def run_until(self, command: str, *said: str, change: str = "", code: int = 0) -> str:
        """Until all of this was said; Ctrl-C then ends it with `code`. `change`: SQL, each second
        meanwhile."""
        async with self.running(command) as (process, output):
            while not all(text in output() for text in said):
                assert process.returncode is None, f"{command}: {said}:\n{output()}"
                if change:
                    await self.sql(change)
                await asyncio.sleep(1.0)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == code, f"{command}\n{output()}"
        return output()

    @asynccontextmanager
    async def gateway(self, settings: Mapping[str, str] = NONE) -> AsyncIterator[None]:
        """`walgate run`, which streams; at the end SIGTERM ends it with 0."""
        async with self.running("walgate run", settings, None) as (process, log):
            await until(lambda: "streaming" in log() and process.returncode is None, "walgate run", log)
            yield
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0, log()

    @asynccontextmanager
    async def running(
        self, command: str, settings: Mapping[str, str] = NONE, timeout_s: float | None = TIMEOUT_S
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, Callable[[], str]]]:
        path = self.folder / f"{len(self.walked)}.txt"
        with path.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-o", "pipefail", "-c", f"{'' if '|' in command else 'exec '}{self.here(command)}"),
                cwd=ROOT,
                env={**self.environment, **settings},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

        def said() -> str:
            return path.read_text(errors="replace")

        try:
            async with asyncio.timeout(timeout_s):
                yield process, said
        except TimeoutError:
            raise AssertionError(f"{command}: takes too long\n{said()}") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def until(holds: Callable[[], bool], what: str, output: Callable[[], str], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}:\n{output()}"
        await asyncio.sleep(0.1)


async def shop(postgres: Postgres) -> None:
    """The database that the pages speak of."""
    admin = await postgres.connect()
    await admin.execute("CREATE DATABASE shop")
    await admin.close()
    tables: asyncpg.Connection = await postgres.connect("shop")
    await tables.execute(SHOP)
    await tables.close()


def walk(postgres: Postgres, kafka: Kafka, registry: Registry, folder: Path) -> Walk:
    programs = (Path(sys.executable).parent, Path(postgres.program("psql")).parent, os.environ["PATH"])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WALGATE_", "PG"))}
    environment |= {
        "PATH": ":".join(map(str, programs)),
        "PGPASSWORD": PASSWORD,
        "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "SCHEMA_REGISTRY_URL": registry.url,
        "WALGATE_HTTP__PORT": str(free_port()),
    }
    replaced = {
        "db.example": f"127.0.0.1:{postgres.port}",
        "kafka.example:9092": kafka.bootstrap_servers,
        "http://registry.example:8081": registry.url,
        "/data/mirror": str(folder / "mirror"),
        "PASSWORD '...'": f"PASSWORD '{PASSWORD}'",
        "PGPASSWORD='...'": f"PGPASSWORD='{PASSWORD}'",
        ".venv/bin/python": sys.executable,
    }
    return Walk(postgres, environment, replaced, folder)


async def prepare(walker: Walk) -> None:
    """README.md, Your own database: role, publication and settings."""
    wal_level, *sql, exported, servers, port, check, run, _, environment, install = commands(*OWN_DATABASE)
    assert environment.startswith("python3 -m venv ")
    assert "pip install " in install and wal_level.startswith("ALTER SYSTEM")  # tests/install walks the first
    assert (check, run) == ("walgate check", "walgate run")
    await walker.sql(*sql)
    walker.export(exported, servers)
    assert port.startswith("export WALGATE_HTTP__PORT=")
