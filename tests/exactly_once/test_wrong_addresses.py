"""`walgate check` and a gateway name an address that is wrong, and what is to be changed, and
change nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.cli.check import run_check
from gateway.cli.check_report import exit_code, render
from gateway.local import Kafka, Postgres, Registry
from tests.conftest import TEST_SETTINGS, Database
from tests.exactly_once.test_check import Place, wrong
from tests.support.gateway_process import GatewayProcess
from tests.support.proxy import UNRESOLVABLE, ProxiedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
SOON_S = 8.0


@pytest_asyncio.fixture
async def place(own_database: Database, proxied_kafka: ProxiedKafka, registry: Registry, topic_prefix: str) -> Place:
    sql = await own_database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    return Place(own_database, proxied_kafka, registry, topic_prefix)


async def first_restart(place: Place, folder: Path, **wrong_settings: str) -> dict[str, str]:
    """Reason and hint of a gateway that cannot start with these settings."""
    parts = {"source": place.source, "kafka": place.of_kafka, "registry": place.of_registry}
    settings = {f"{part}__{name}": value for part, values in parts.items() for name, value in values.items()}
    gateway = GatewayProcess(folder / "gateway.log", {**settings, **wrong_settings})
    gateway.start()
    try:
        await gateway.logged('"restarting"')
        (event, *_) = gateway.events("restarting")
        return {"reason": event["reason"], "hint": event["hint"]}
    finally:
        await gateway.end()


async def test_an_advertised_address_that_cannot_be_resolved_is_named(place: Place, tmp_path: Path) -> None:
    servers = place.kafka.misnamed_servers
    begun = time.monotonic()
    checked = await run_check(place.settings(kafka={"bootstrap_servers": servers}))
    assert time.monotonic() - begun < SOON_S
    (found,) = wrong(checked)
    assert f"the host name of {UNRESOLVABLE} cannot be resolved" in found.message, render(checked)
    assert "advertised.listeners" in found.remedy and exit_code(checked) == 1
    said = await first_restart(place, tmp_path, kafka__bootstrap_servers=servers)
    assert UNRESOLVABLE in said["reason"] and "advertise" in said["reason"], said
    assert "advertised.listeners" in said["hint"] and "check that kafka.bootstrap_servers" not in said["hint"], said


async def test_a_port_of_another_service_is_named(place: Place, kafka: Kafka, tmp_path: Path) -> None:
    for port, service in ((kafka.port, "a Kafka broker"), (place.registry.port, "an HTTP server")):
        dsn = place.database.dsn.replace(f":{place.database.server.port}/", f":{port}/")
        begun = time.monotonic()
        checked = await run_check(place.settings(source={"dsn": dsn}))
        assert time.monotonic() - begun < SOON_S
        (found,) = wrong(checked)
        assert f"127.0.0.1:{port}: this is not a PostgreSQL server, but {service}" in found.message, render(checked)
        assert "source.dsn" in found.remedy and exit_code(checked) == 78


async def test_the_port_of_a_controller_is_named(place: Place, tmp_path: Path) -> None:
    servers = f"127.0.0.1:{place.kafka.controller_port}"
    checked = await run_check(place.settings(kafka={"bootstrap_servers": servers}))
    (found,) = wrong(checked)
    assert f"{servers} is the port of a KRaft controller" in found.message, render(checked)
    assert "the port of a broker's listener" in found.remedy and exit_code(checked) == 78
    said = await first_restart(place, tmp_path, kafka__bootstrap_servers=servers)
    assert f"{servers}: ControllerPort: it is the port of a KRaft controller" in said["reason"], said
    assert "the port of a broker's listener" in said["hint"], said


@pytest_asyncio.fixture
async def standby() -> AsyncIterator[tuple[Postgres, Postgres]]:
    primary = Postgres(18, settings=TEST_SETTINGS)
    async with primary, Postgres(18, settings=TEST_SETTINGS, standby_of=primary) as copy:
        yield primary, copy


async def test_a_standby_is_waited_for_and_no_slot_is_left_on_it(
    standby: tuple[Postgres, Postgres], kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    primary, copy = standby
    sql = await primary.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    read = await copy.connect()
    while not await read.fetchval("SELECT count(*) FROM pg_publication"):
        await asyncio.sleep(0.05)
    place = Place(Database(copy, "postgres"), kafka, registry, topic_prefix)  # type: ignore[arg-type]
    checked = await run_check(place.settings())
    (found,) = wrong(checked)
    assert "the gateway reads from the primary only" in found.message, render(checked)
    assert "point source.dsn to the primary" in found.remedy and exit_code(checked) == 1
    said = await first_restart(place, tmp_path)
    assert "the gateway reads from the primary only" in said["reason"], said
    assert await read.fetchval("SELECT count(*) FROM pg_replication_slots") == 0
    both = place.database.dsn.replace("@", f"@127.0.0.1:{copy.port},").replace(
        f"127.0.0.1:{copy.port}/", f"127.0.0.1:{primary.port}/"
    )
    parts = {"source": place.source, "kafka": place.of_kafka, "registry": place.of_registry}
    settings = {f"{part}__{name}": value for part, values in parts.items() for name, value in values.items()}
    gateway = GatewayProcess(tmp_path / "both.log", {**settings, "source__dsn": both})
    try:
        await gateway.streaming()  # the next host is the primary, without target_session_attrs
    finally:
        await gateway.end()
    await sql.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_type = 'logical'"
    )
    for connection in (sql, read):
        connection.terminate()
