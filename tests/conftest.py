"""Real servers for the tests, started when the first test requests them: one broker and one
registry for the whole run, and one PostgreSQL of each version for each worker.

`postgres`, `postgres_oldest`, `kafka`, `registry`: servers of the session. `database`,
`database_oldest`: a new, empty database for each test; `topic_prefix`: a unique prefix.
`start_postgres`: a separate server for the test.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import hypothesis
import pytest
import pytest_asyncio
import structlog
from xdist.remote import Producer

from gateway.local import Kafka, Postgres, Registry
from gateway.local.binaries import NEWEST_VERSION, OLDEST_VERSION
from gateway.local.java import java_version
from tests.support import quick_java
from tests.support.distribution import KindsInFewProcesses, in_order
from tests.support.shared_servers import shared

# With a small buffer, the server streams or spills transactions of a few hundred rows.
TEST_SETTINGS: dict[str, str | int] = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": 20}
TERMINATE_TIMEOUT_MS = 10_000
_OF_SETTINGS = "WALGATE_"
SERVERS = frozenset({"postgres", "postgres_oldest", "start_postgres", "kafka", "registry"})


@dataclass(frozen=True, slots=True)
class Database:
    """A database of one test. At the end, the test's remaining connections, slots and prepared
    transactions are removed."""

    server: Postgres
    name: str
    connections: list[asyncpg.Connection] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return self.server.database_dsn(self.name)

    def dsn_of(self, role: str) -> str:
        """Return the DSN of a role that was created with the server's password."""
        return self.server.database_dsn(self.name, role)

    async def connect(self) -> asyncpg.Connection:
        """Return a new connection as superuser."""
        connection = await self.server.connect(self.name)
        self.connections.append(connection)
        return connection


class StartedVersions(logging.Handler):
    """The servers that were started in this run: part -> versions. Filled from the log of the local
    servers, and by `add`."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.versions: dict[str, set[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and len(record.args) == 3:
            self.add(str(record.args[0]), str(record.args[1]))

    def add(self, part: str, version: str) -> None:
        self.versions.setdefault(part, set()).add(version)


_started = StartedVersions()


@pytest.fixture(autouse=True)
def logs_of_the_run() -> Iterator[None]:
    """Restore logging after a test whose command in this process has set it up to write to a stderr
    that is closed afterwards."""
    structlog_config, handlers, level = structlog.get_config(), logging.root.handlers[:], logging.root.level
    hook, formatwarning = sys.excepthook, warnings.formatwarning
    yield
    if structlog.get_config()["logger_factory"] is not structlog_config["logger_factory"]:
        structlog.configure(**structlog_config)
        logging.captureWarnings(False)
        logging.root.handlers[:], sys.excepthook, warnings.formatwarning = handlers, hook, formatwarning
        logging.root.setLevel(level)


@pytest.fixture(autouse=True)
def variables_of_the_run() -> Iterator[None]:
    """Restore environment variables: loading settings sets some (secrets from files), which
    programs started by other tests must not get."""
    before = {name: value for name, value in os.environ.items() if name.startswith(_OF_SETTINGS)}
    yield
    for name in [name for name in os.environ if name.startswith(_OF_SETTINGS)]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def started_versions() -> StartedVersions:
    """Return the record of started versions, for tests that start other programs:
    `started_versions.add("Spark", "4.2.0")`."""
    return _started


@pytest_asyncio.fixture(scope="session")
async def postgres() -> AsyncIterator[Postgres]:
    async with Postgres(settings=TEST_SETTINGS) as server:
        yield server


@pytest_asyncio.fixture(scope="session")
async def postgres_oldest() -> AsyncIterator[Postgres]:
    async with Postgres(OLDEST_VERSION, settings=TEST_SETTINGS) as server:
        yield server


@pytest_asyncio.fixture
async def start_postgres() -> AsyncIterator[Callable[..., Awaitable[Postgres]]]:
    """`await start_postgres(version=16, settings={...})` starts a server that ends with the
    test."""
    servers: list[Postgres] = []

    async def start(version: int = NEWEST_VERSION, **options: Any) -> Postgres:
        options["settings"] = {**TEST_SETTINGS, **options.get("settings", {})}
        server = Postgres(version, **options)
        servers.append(server)
        await server.start()
        return server

    yield start
    for server in servers:
        await server.close()


@pytest_asyncio.fixture
async def database(postgres: Postgres) -> AsyncIterator[Database]:
    async for made in _new_database(postgres):
        yield made


@pytest_asyncio.fixture
async def database_oldest(postgres_oldest: Postgres) -> AsyncIterator[Database]:
    async for made in _new_database(postgres_oldest):
        yield made


async def _new_database(server: Postgres) -> AsyncIterator[Database]:
    name = f"test_{uuid4().hex[:12]}"
    admin = await server.connect()
    await admin.execute(f"CREATE DATABASE {name}")
    database = Database(server, name)
    try:
        yield database
    finally:
        for connection in database.connections:
            connection.terminate()
        await _drop(admin, server, name)
        await admin.close()


async def _drop(admin: asyncpg.Connection, server: Postgres, name: str) -> None:
    """Drop the database, after ending its walsenders, slots and prepared transactions, each of
    which prevents that."""
    inside = await server.connect(name)
    for (gid,) in await inside.fetch("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        await inside.execute(f"ROLLBACK PREPARED '{gid.replace(chr(39), chr(39) * 2)}'")
    await inside.close()
    await admin.execute(
        "SELECT pg_terminate_backend(pid, $2) FROM pg_stat_activity WHERE datname = $1", name, TERMINATE_TIMEOUT_MS
    )
    await admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1", name
    )
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest_asyncio.fixture(scope="session")
async def _kafka_and_registry(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Kafka, Registry]]:
    """Start both concurrently, but only those that the selected tests need."""
    kafka, registry = Kafka(), Registry()
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent  # shared by all workers

    async def find(name: str, product: str, server: Kafka | Registry) -> None:
        if name in needed:
            server.port = await asyncio.to_thread(servers.enter_context, shared(name, folder))
            _started.add(product, server.version)

    with ExitStack() as servers:
        await asyncio.gather(find("kafka", "Kafka", kafka), find("registry", "Apicurio", registry))
        yield kafka, registry


@pytest_asyncio.fixture(scope="session")
async def kafka(_kafka_and_registry: tuple[Kafka, Registry]) -> Kafka:
    return _kafka_and_registry[0]


@pytest_asyncio.fixture(scope="session")
async def registry(_kafka_and_registry: tuple[Kafka, Registry]) -> Registry:
    return _kafka_and_registry[1]


@pytest.fixture
def topic_prefix() -> str:
    return f"t{uuid4().hex[:10]}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures that they request: `make unit`, `make integration` and `make e2e`
    select by these marks."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("integration")
        files.setdefault(item.path, []).append(item)
    items[:] = [item for path in in_order(files) for item in files[path]]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> KindsInFewProcesses | None:
    return KindsInFewProcesses(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure() -> None:
    # A shell that runs the tests in the background ignores SIGINT, and every program that a test
    # starts would inherit this.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    quick_java.use()
    logger = logging.getLogger("gateway.local")
    logger.setLevel(logging.INFO)
    logger.addHandler(_started)
    # Property tests must not fail because the computer is busy. Set WALGATE_EXAMPLES=10000 for a
    # long run.
    examples = int(os.environ.get("WALGATE_EXAMPLES", "100"))
    hypothesis.settings.register_profile(
        "walgate", deadline=None, max_examples=examples, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("walgate")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record the versions of this process; a pytest-xdist worker passes them to the controller."""
    if _started.versions.keys() & {"Kafka", "Apicurio"}:
        _started.add("Java", java_version())
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._gateway is not None:
        _started.add("Spark", pyspark.__version__)
    _started.add("Python", platform.python_version())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["versions"] = {part: sorted(found) for part, found in _started.versions.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    for part, found in getattr(node, "workeroutput", {}).get("versions", {}).items():
        for version in found:
            _started.add(part, version)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests ran, and the versions of all programs that were started."""
    ran = sum(len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "error"))
    parts = [f"{part} {', '.join(sorted(found))}" for part, found in sorted(_started.versions.items())]
    terminalreporter.section("versions")
    terminalreporter.line(f"{ran} tests ran on {'; '.join(parts)}")
