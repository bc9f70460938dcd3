"""A drill of the incidents of docs/symptoms.md: with only the log, `walgate status` and /status at
hand, the culprit and the remedy are named, and the log stays short.

Incidents that begin while the stream is open are in test_culprits.py: servers that are away,
transactions that hold the slot, WAL near its limit, a table in quarantine.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import asyncpg
import pytest
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType  # type: ignore[attr-defined]

from gateway.local import Postgres, Registry
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.exactly_once.test_check import _denied
from tests.support.gateway_process import GatewayProcess, ended, environment_of
from tests.support.proxy import ACCOUNT, UNRESOLVABLE, ProxiedKafka
from tests.support.slots import until_free

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1500)]
WATCHED_S = 60.0
LINES = 20
AT_ONCE = 6


@dataclass
class Place:
    """A gateway of its own for each incident, on shared servers."""

    gateway: GatewayProcess
    sql: asyncpg.Connection
    kafka: ProxiedKafka
    name: str
    port: int
    dsn: str
    others: list[GatewayProcess] = field(default_factory=list)

    def set(self, **settings: Any) -> None:
        self.gateway.settings |= settings

    async def has_run(self, **settings: Any) -> None:
        """The gateway has delivered a row and was stopped."""
        await self.gateway.streaming(**settings)
        await self.sql.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1, 'x' FROM t")
        written = await self.sql.fetchval("SELECT pg_current_wal_insert_lsn()")
        slot = settings.get("source__slot", self.name)
        is_confirmed = "SELECT confirmed_flush_lsn >= $1 FROM pg_replication_slots WHERE slot_name = $2"
        while not await self.sql.fetchval(is_confirmed, written, slot):
            await self.sql.execute("SELECT pg_logical_emit_message(true, 'drill', 'x')")
            await asyncio.sleep(0.2)
        await self.gateway.stop()
        await until_free(self.sql, str(settings.get("source__slot", self.name)))


@dataclass(frozen=True)
class Incident:
    """`settings`: those that are wrong. `prepare` makes other mistakes before the start; `meanwhile`
    what happens after it. `ends`: the gateway exits with code 78; otherwise it waits. `in_stream`:
    only the log can tell why it ended, and `walgate status` says so."""

    culprit: str
    remedy: str
    settings: dict[str, object] = field(default_factory=dict)
    prepare: Callable[[Place], Awaitable[None]] | None = None
    meanwhile: Callable[[Place], Awaitable[None]] | None = None
    ends: bool = False
    in_stream: bool = False


def sql(statement: str) -> Callable[[Place], Awaitable[None]]:
    async def run(place: Place) -> None:
        await place.sql.execute(statement.format(name=place.name))

    return run


async def _slot_is_dropped(place: Place) -> None:
    await place.has_run()
    await place.sql.execute("SELECT pg_drop_replication_slot($1)", place.name)


async def _prefix_of_another(place: Place) -> None:
    await place.has_run(source__slot=f"{place.name}_first")
    await place.sql.execute("SELECT pg_drop_replication_slot($1)", f"{place.name}_first")


async def _topic_is_deleted(place: Place) -> None:
    await place.has_run()
    place.kafka.delete_topic(f"{place.name}.public.t")


async def _slot_is_read(place: Place) -> None:
    twin = GatewayProcess(place.gateway.log_path.with_suffix(".twin"), place.gateway.settings | {"http__port": 0})
    place.gateway.settings["kafka__prefix"] = f"{place.name}_other"
    await twin.streaming()
    place.others.append(twin)


async def _writing_is_denied(place: Place) -> None:
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap_servers})
    await _denied(admin, ResourceType.TOPIC, f"{place.name}.transaction", AclOperation.WRITE)
    place.set(kafka__bootstrap_servers=place.kafka.secured_servers, **ACCOUNT)


async def _role_cannot_replicate(place: Place) -> None:
    await place.sql.execute(f"CREATE ROLE {place.name} LOGIN PASSWORD 'secret'")
    place.set(source__dsn=place.dsn.format(login=f"{place.name}:secret", database="{database}"))


async def _type_is_changed(place: Place) -> None:
    table = f"typed_{place.name}"
    await place.sql.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v text); CREATE PUBLICATION {place.name} FOR TABLE {table}"
    )
    place.set(source__publications=place.name)
    await place.gateway.streaming()
    await place.sql.execute(f"INSERT INTO {table} VALUES (1, '1')")
    await place.sql.execute(f"ALTER TABLE {table} ALTER v TYPE int USING v::int; INSERT INTO {table} VALUES (2, 2)")
    await place.gateway.wait()


async def _row_is_too_large(place: Place) -> None:
    await place.sql.execute(
        f"CREATE TABLE large_{place.name} (id int PRIMARY KEY, v text); "
        f"CREATE PUBLICATION {place.name} FOR TABLE large_{place.name}"
    )
    place.set(source__publications=place.name, kafka__max_record_bytes=100_000)
    await place.gateway.streaming()
    await place.sql.execute(f"INSERT INTO large_{place.name} VALUES (1, repeat('x', 200000))")
    await place.gateway.wait()


NO_TLS = "kafka.security_protocol"
INCIDENTS: dict[str, Incident] = {
    "publication": Incident(
        "publication nowhere does not exist", "CREATE PUBLICATION", {"source__publications": "nowhere"}
    ),
    "wal_level": Incident("wal_level is replica", "ALTER SYSTEM SET wal_level = logical", {"source__dsn": "{replica}"}),
    "slots": Incident("replication slots are in use", "max_replication_slots", {"source__dsn": "{full}"}),
    "encoding": Incident("SQL_ASCII", "UTF8", {"source__dsn": "{ascii}"}, ends=True),
    "column list": Incident(
        "leaves out b",
        "column list",
        {"source__publications": "{name}"},
        sql(
            "CREATE TABLE k_{name} (a int, b int, PRIMARY KEY (a, b)); CREATE PUBLICATION {name} FOR TABLE k_{name} (a)"
        ),
        ends=True,
    ),
    "slot of another": Incident(
        "no resume LSN is stored for it",
        "source.adopt_slot",
        prepare=sql("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"),
        ends=True,
    ),
    "slot is gone": Incident("no longer exists", "walgate accept-gap", prepare=_slot_is_dropped, ends=True),
    "slot in use": Incident("is in use by process", "process", prepare=_slot_is_read),
    "prefix of another": Incident("belongs to slot", "kafka.prefix", prepare=_prefix_of_another, ends=True),
    "topic deleted": Incident("these topics were deleted", "{name}.public.t", prepare=_topic_is_deleted, ends=True),
    "type": Incident(
        "is incompatible with an earlier one",
        "schemas.on_incompatible",
        meanwhile=_type_is_changed,
        ends=True,
        in_stream=True,
    ),
    "row": Incident("kafka.max_record_bytes", "raise", meanwhile=_row_is_too_large, ends=True, in_stream=True),
    "registry away": Incident(
        "the schema registry does not answer", "registry.url", {"registry__url": "http://127.0.0.1:1"}
    ),
    "registry's path": Incident(
        "does not point to a schema registry", "/apis/ccompat/v7", {"registry__url": "{registry_root}/nowhere"}
    ),
    "registry's protocol": Incident(
        "TLS handshake with the schema registry failed",
        "use http://",
        {"registry__url": "https://127.0.0.1:{registry_port}"},
    ),
    "registry is Kafka": Incident("does not answer", "another service", {"registry__url": "http://{kafka}"}),
    "postgresql is Kafka": Incident(
        "this is not a PostgreSQL server, but a Kafka broker",
        "source.dsn",
        {"source__dsn": "postgresql://u@{kafka}/d"},
        ends=True,
    ),
    "postgresql refused": Incident("127.0.0.1:1", "source.dsn", {"source__dsn": "postgresql://u@127.0.0.1:1/d"}),
    "authority": Incident(
        "needs the certificate of the authority", "sslrootcert", {"source__dsn": "{dsn}?sslmode=verify-full"}, ends=True
    ),
    "dsn": Incident("URLs of another library", "URL of libpq", {"source__dsn": "jdbc:postgresql://h/d"}, ends=True),
    "setting": Incident("kafka.prefx: there is no such setting", "kafka.prefix", {"kafka__prefx": "x"}, ends=True),
    "database": Incident("does not exist", "source.dsn", {"source__dsn": "{no_database}"}),
    "password": Incident(
        "password authentication failed", "check user and password", {"source__dsn": "{wrong_password}"}
    ),
    "role": Incident("REPLICATION", "ALTER ROLE", prepare=_role_cannot_replicate),
    "kafka refused": Incident("127.0.0.1:1", "kafka.bootstrap_servers", {"kafka__bootstrap_servers": "127.0.0.1:1"}),
    "kafka's name": Incident("kafka.invalid", "kafka.bootstrap_servers", {"kafka__bootstrap_servers": UNRESOLVABLE}),
    "advertised": Incident(UNRESOLVABLE, "advertised.listeners", {"kafka__bootstrap_servers": "{misnamed}"}),
    "controller": Incident("KRaft controller", "port of a broker", {"kafka__bootstrap_servers": "{controller}"}),
    "kafka is postgresql": Incident(
        "{postgresql}", "kafka.bootstrap_servers", {"kafka__bootstrap_servers": "{postgresql}"}
    ),
    "kafka without TLS": Incident("{kafka}", NO_TLS, {"kafka__security_protocol": "SSL"}),
    "kafka with a login": Incident("{secured}", NO_TLS, {"kafka__bootstrap_servers": "{secured}"}),
    "kafka's password": Incident(
        "SaslAuthenticationFailed",
        "check kafka.sasl_username",
        {"kafka__bootstrap_servers": "{secured}", **ACCOUNT, "kafka__sasl_password": "wrong"},
    ),
    "mechanism": Incident(
        "mechanism",
        "kafka.sasl_mechanism",
        {"kafka__bootstrap_servers": "{secured}", **ACCOUNT, "kafka__sasl_mechanism": "SCRAM-SHA-512"},
    ),
    "acl": Incident("denies access to topic {name}.transaction", "grant Write", prepare=_writing_is_denied),
    "replicas": Incident("replication", "kafka.replication_factor", {"kafka__replication_factor": 3}),
}


def the_log_is_short(log: str) -> None:
    """No minute has more than LINES lines, no library speaks above a warning, nothing is a traceback."""
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert "Traceback" not in log and "never retrieved" not in log, log
    assert all(entry["level"] == "warning" for entry in entries if "logger" in entry), log
    moments = [datetime.fromisoformat(entry["timestamp"]) for entry in entries if entry["level"] != "info"]
    for moment in moments:
        assert sum(moment - timedelta(minutes=1) < other <= moment for other in moments) <= LINES, log


async def drill(place: Place, incident: Incident, names: dict[str, str]) -> int:
    """Return the number of lines of the log."""
    gateway = place.gateway
    for name, value in incident.settings.items():
        gateway.settings[name] = value.format(**names) if isinstance(value, str) else value
    if incident.prepare is not None:
        await incident.prepare(place)
    for name, value in gateway.settings.items():
        gateway.settings[name] = value.format(**names) if isinstance(value, str) else value
    culprit, remedy = incident.culprit.format(**names), incident.remedy.format(**names)
    before = len(gateway.log())
    if incident.meanwhile is not None:
        await incident.meanwhile(place)
    else:
        gateway.start()
    begun = time.monotonic()
    if incident.ends:
        assert await gateway.wait() == 78, gateway.log_tail()
    else:
        await asyncio.sleep(WATCHED_S - (time.monotonic() - begun))
        assert gateway.is_running, gateway.log_tail()
    log = gateway.log()[before:]
    assert culprit in log and remedy in log, f"{culprit}, {remedy}:\n{log}"
    status = await ended(("status",), environment_of(gateway.settings))
    told = status.stdout + status.stderr
    if incident.in_stream:
        culprit, remedy = "NOT RUNNING", "the last lines of its log say why"
    assert culprit in told and remedy in told, f"status: {culprit}, {remedy}:\n{told}\n{log}"
    if not incident.ends:
        page = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{place.port}/status").read().decode())
        assert culprit in page and remedy in page.replace('\\"', '"'), f"page: {culprit}, {remedy}:\n{page}"
    the_log_is_short(log)
    return len(log.splitlines())


async def test_culprit_and_remedy_are_named_and_the_log_is_short(
    own_database: Database,
    proxied_kafka: ProxiedKafka,
    registry: Registry,
    start_postgres: Callable[..., Awaitable[Postgres]],
    tmp_path: Path,
) -> None:
    admin = await own_database.connect()
    await admin.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
    ascii_name = f"ascii_{own_database.name}"
    await admin.execute(f"CREATE DATABASE {ascii_name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    replica, full = await asyncio.gather(
        start_postgres(settings={"wal_level": "replica"}), start_postgres(settings={"max_replication_slots": 1})
    )
    for server in (replica, full):
        other = await server.connect()
        await other.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
        if server is full:
            await other.execute("SELECT pg_create_physical_replication_slot('other')")
        await other.close()
    postgresql = f"127.0.0.1:{own_database.server.port}"
    password = own_database.server.password
    names = {
        "dsn": own_database.dsn,
        "replica": replica.database_dsn("postgres"),
        "full": full.database_dsn("postgres"),
        "ascii": own_database.dsn.replace(f"/{own_database.name}", f"/{ascii_name}"),
        "no_database": own_database.dsn.replace(f"/{own_database.name}", "/nowhere"),
        "wrong_password": own_database.dsn.replace(f":{password}@", ":wrong@"),
        "postgresql": postgresql,
        "registry_root": f"http://127.0.0.1:{registry.port}",
        "registry_port": str(registry.port),
        "kafka": proxied_kafka.bootstrap_servers,
        "misnamed": proxied_kafka.misnamed_servers,
        "secured": proxied_kafka.secured_servers,
        "controller": f"127.0.0.1:{proxied_kafka.controller_port}",
        "database": own_database.name,
    }
    limit = asyncio.Semaphore(AT_ONCE)
    failures: dict[str, str] = {}

    async def one(title: str, incident: Incident) -> None:
        name, port = f"d{uuid4().hex[:10]}", free_port()
        settings = {
            "source__dsn": own_database.dsn,
            "source__slot": name,
            "source__publications": "p",
            "kafka__bootstrap_servers": proxied_kafka.bootstrap_servers,
            "kafka__prefix": name,
            "kafka__replication_factor": 1,
            "registry__url": registry.url,
            "http__port": port,
        }
        gateway = GatewayProcess(tmp_path / f"{name}.log", settings)
        connection = await own_database.connect()
        dsn = f"postgresql://{{login}}@{postgresql}/{{database}}"
        place = Place(gateway, connection, proxied_kafka, name, port, dsn)
        async with limit:
            try:
                lines = await drill(place, incident, names | {"name": name})
                print(f"{lines:3} lines  {title}")
            except (AssertionError, TimeoutError) as error:
                failures[title] = str(error)
            finally:
                await gateway.end()
                for other in place.others:
                    await other.end()
                await connection.execute(f"DROP ROLE IF EXISTS {name}")

    await asyncio.gather(*(one(title, incident) for title, incident in INCIDENTS.items()))
    await admin.execute(f"DROP DATABASE {ascii_name} WITH (FORCE)")
    assert not failures, "\n\n".join(f"== {title}: {error}" for title, error in failures.items())
