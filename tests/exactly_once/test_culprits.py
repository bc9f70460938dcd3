"""Who or what is the cause, one after the other: named by /readyz and the status, by `walgate
status`, and by an alert, within NAMED_S; and in each situation every lag that the gateway tells is
within TRUE_S of the truth (lag_truth.py). Only the live page is in test_page_of_outages.py."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.local import Registry
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.exactly_once.lag_truth import LagTruth, lag_truth
from tests.exactly_once.workload import PUBLICATION
from tests.support.proxy import FaultProxy, ProxiedKafka
from tests.support.scene import Proxies, open_scene_behind
from tests.support.watching import ALMOST_NOTHING_S, NAMED_S, TRUE_S, Watcher, status_of, watching

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
BUDGET_BYTES = 24 << 20
MAX_RECORD_BYTES = 200_000
FILLER = "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20)) FROM generate_series(1, $1::int)"
OUTAGE_S = 8.0
"""At least; it lasts until the cause is named everywhere."""
LINES = 20
FORGOTTEN_S = 900.0
"""An alert calls a transaction forgotten when it is so old; here its age is added to what was
recorded."""


async def a_transaction_that_holds_the_start(watcher: Watcher) -> None:
    scene = watcher.scene
    foreign = await scene.database.connect()
    await foreign.execute("SET application_name = 'nightly'; BEGIN")
    await foreign.execute("CREATE TABLE held (id int)")
    process = f"process {foreign.get_server_pid()}"
    scene.gateway.start()
    await scene.gateway.logged('"http"')
    begun = time.monotonic()
    earliest = await watcher.clock()
    naming = asyncio.gather(
        watcher.is_named("WalgateSlotCreationBlocked", process, "nightly", begun=begun),
        watcher.command_names("waits for", process, "nightly", begun=begun),
    )
    found = await watcher.until(
        lambda seen: any(holder["blocks"] for holder in seen["blockers"]), "who holds the start", NAMED_S
    )
    (holder,) = (holder for holder in found["blockers"] if holder["blocks"])
    assert (holder["pid"], holder["application"]) == (foreign.get_server_pid(), "nightly") and holder["since"]
    assert process in found["waiting_for"] and "pg_terminate_backend" in holder["remedy"]
    await watcher.readyz_names("nightly", begun=begun)
    await naming
    await the_lag_counts_from_the_first_reading(watcher, earliest)
    await foreign.execute("ROLLBACK")
    await scene.gateway.logged('"streaming"')


async def the_lag_counts_from_the_first_reading(watcher: Watcher, earliest: float) -> None:
    """Nothing was ever delivered: the gateway says that it is at least so old. `earliest`: before
    the first reading."""
    first = await watcher.until(lambda seen: seen["lag_seconds"] is not None, "a lag")
    begins = first["server_time"] - first["lag_seconds"]
    assert first["lag_is_at_least"] and earliest - TRUE_S < begins <= first["server_time"]
    for _ in range(10):
        before = await watcher.clock()
        lag_s = (await watcher.status())["lag_seconds"]
        assert before - begins - TRUE_S < lag_s < await watcher.clock() - begins + TRUE_S
        await asyncio.sleep(0.2)


async def an_outage(watcher: Watcher, proxy: FaultProxy, server: str, title: str, lasts_s: float) -> None:
    begun = time.monotonic()
    await proxy.refuse()
    naming = asyncio.gather(
        watcher.readyz_names(title, "127.0.0.1", begun=begun),
        watcher.is_named("WalgateServiceDown", server, begun=begun),
        watcher.command_names("WAITING for", title, "DOWN for", begun=begun),
    )
    await naming
    found = await watcher.status()
    assert found["state"] == "waiting" and found["waiting_since"] is not None
    await asyncio.sleep(begun + lasts_s - time.monotonic())
    assert (await watcher.status())["lag_seconds"] > lasts_s - 1.0
    await proxy.accept()
    await watcher.until(lambda seen: seen["waiting_for"] == "" and seen["lag_seconds"] < ALMOST_NOTHING_S, "ready")


def the_log_is_quiet(log: str) -> None:
    """A minute of an outage has at most LINES lines; no library speaks above a warning, or while
    its service is said to be down; and nothing is a traceback."""
    entries = [json.loads(line) for line in log.splitlines()]  # whoever wrote it, Kafka's client too
    assert not [entry for entry in entries if "exception" in entry or "never retrieved" in entry["event"]]
    of_libraries = [entry for entry in entries if "logger" in entry]
    assert all(entry["level"] == "warning" for entry in of_libraries), of_libraries
    down: dict[str, list[datetime]] = {}
    outages = 0
    for entry in entries:
        if entry["event"] == "service_down":
            down[entry["service"]] = []
        moment = datetime.fromisoformat(entry["timestamp"])
        for moments in down.values():
            moments.append(moment)
            within = [earlier for earlier in moments if moment - earlier < timedelta(minutes=1)]
            assert len(within) <= LINES, log
        assert not ("Kafka" in down and entry.get("logger", "").startswith("aiokafka")), entry
        if entry["event"] == "service_up":
            del down[entry["service"]]
            outages += 1
    assert outages >= 3


async def no_registry(watcher: Watcher, proxy: FaultProxy) -> None:
    begun = time.monotonic()
    await proxy.refuse()
    naming = asyncio.gather(
        watcher.is_named("WalgateServiceDown", "registry", begun=begun),
        watcher.command_names("registry      DOWN for", begun=begun),
    )
    found = await watcher.until(lambda seen: seen["parts"][2]["up"] is False, "the registry is down", NAMED_S)
    assert found["parts"][2]["name"] == "registry" and found["parts"][2]["error"] and found["waiting_for"] == ""
    await watcher.there_is_no_lag()
    await naming
    await proxy.accept()
    await watcher.until(lambda seen: seen["parts"][2]["up"] is True, "the registry is up")


async def a_forgotten_prepared_transaction(watcher: Watcher) -> None:
    sql = watcher.scene.connection
    await sql.execute("BEGIN")
    await sql.execute("CREATE TABLE forgotten (id int)")
    await sql.execute("PREPARE TRANSACTION 'forgotten one'")
    begun = time.monotonic()
    naming = asyncio.gather(
        watcher.is_named("WalgateSlotBlocked", "prepared transaction forgotten one", begun=begun, older_s=FORGOTTEN_S),
        watcher.command_names("blocked by", "ROLLBACK PREPARED 'forgotten one'", begun=begun),
    )
    found = await watcher.until(
        lambda seen: any(holder["kind"] == "prepared" for holder in seen["blockers"]), "the prepared one", NAMED_S
    )
    holder = next(holder for holder in found["blockers"] if holder["kind"] == "prepared")
    assert holder["name"] == "forgotten one" and "ROLLBACK PREPARED 'forgotten one'" in holder["remedy"]
    await watcher.there_is_no_lag()
    await naming
    await sql.execute("ROLLBACK PREPARED 'forgotten one'")


async def a_slot_near_its_limit(watcher: Watcher) -> None:
    scene = watcher.scene
    holding = await scene.database.connect()
    process = f"process {holding.get_server_pid()}"
    await holding.execute("SET application_name = 'import'; BEGIN")
    await holding.execute("CREATE TABLE holding (id int)")
    for _ in range(int(0.96 * BUDGET_BYTES / (1 << 20)) + 1):
        await scene.connection.execute(FILLER, 1)
    begun = time.monotonic()
    naming = asyncio.gather(
        watcher.is_named("WalgateWalNearLimit", begun=begun),
        watcher.is_named("WalgateSlotBlocked", process, "import", begun=begun),
        watcher.command_names("blocked by", process, "import", "WAL retained", "source.wal_budget_bytes", begun=begun),
    )
    found = await watcher.until(
        lambda seen: bool(seen["wal"]) and seen["wal"]["retained_bytes"] >= 0.95 * BUDGET_BYTES
        and any(holder["pid"] == holding.get_server_pid() for holder in seen["blockers"]),
        "the WAL that is held, and who holds it",
        NAMED_S,
    )  # fmt: skip
    assert found["wal"]["limit_bytes"] == BUDGET_BYTES and found["wal"]["limit_by"] == "source.wal_budget_bytes"
    await scene.gateway.logged('"wal_retained"')
    assert scene.gateway.events("wal_retained")[-1]["hint"]
    await watcher.there_is_no_lag()
    await naming
    await holding.execute("ROLLBACK")


async def a_table_that_cannot_be_written(watcher: Watcher) -> None:
    sql = watcher.scene.connection
    await sql.execute("CREATE TABLE poison (id int PRIMARY KEY, c text)")
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE poison")
    await sql.execute(f"INSERT INTO poison VALUES (1, repeat('x', {2 * MAX_RECORD_BYTES}))")
    begun = time.monotonic()
    naming = asyncio.gather(
        watcher.is_named("WalgateQuarantine", "public.poison", begun=begun),
        watcher.command_names("quarantine    public.poison", "kafka.max_record_bytes", "walgate readmit", begun=begun),
    )
    found = await watcher.until(lambda seen: bool(seen["quarantined"]), "the table in quarantine", NAMED_S)
    (told,) = found["quarantined"]
    assert told["table"] == "public.poison" and "kafka.max_record_bytes" in told["reason"]
    assert found["last_error"] is not None
    await watcher.there_is_no_lag()
    await naming
    await watcher.ready()


async def no_gateway(watcher: Watcher) -> None:
    """What the command finds by itself."""
    scene = watcher.scene
    begun = time.monotonic()
    assert await scene.stop() == 0
    code, text = await status_of(scene)
    assert code == 1 and "nothing is reading the slot" in text and "NOT IN USE" in text and "last commit" in text
    told = json.loads((await status_of(scene, "--json"))[1])
    assert told["asked"] == "services" and told["delivered_lsn"] > 0 and told["last_commit_time"] > 0
    assert all(part["up"] for part in told["parts"])
    assert [each["table"] for each in told["quarantined"]] == ["public.poison"] and "public.poison" in text
    assert any(seen["relation"] == "work.plain" and seen["columns"] > 1 for seen in told["schemas"])
    await watcher.is_named("WalgateAbsent", begun=begun)


async def each_situation(watcher: Watcher, truth: LagTruth, proxies: Proxies, kafka_away_s: float) -> None:
    """The lag is judged also while it recovers."""
    truth.during("Kafka is away")
    await an_outage(watcher, proxies.kafka.proxy, "kafka", "Kafka", kafka_away_s)
    truth.during("PostgreSQL is away")
    await an_outage(watcher, proxies.postgres, "postgresql", "PostgreSQL", OUTAGE_S)
    truth.during("the registry is away")
    await no_registry(watcher, proxies.registry)
    truth.during("a prepared transaction")
    await a_forgotten_prepared_transaction(watcher)
    truth.during("a slot near its limit")
    await a_slot_near_its_limit(watcher)
    truth.during("a table in quarantine")
    await a_table_that_cannot_be_written(watcher)
    truth.during("")


@pytest.mark.parametrize("kafka_away_s", [OUTAGE_S, pytest.param(90.0, marks=pytest.mark.long)])
async def test_the_cause_is_named_everywhere_and_the_lag_is_true(
    own_database: Database,
    postgres_proxy: FaultProxy,
    proxied_kafka: ProxiedKafka,
    registry: Registry,
    registry_proxy: FaultProxy,
    topic_prefix: str,
    tmp_path: Path,
    kafka_away_s: float,
) -> None:
    port = free_port()
    proxies = Proxies(postgres_proxy, proxied_kafka, registry_proxy)
    settings: dict[str, Any] = {
        "http__port": port,
        "source__wal_budget_bytes": BUDGET_BYTES,
        "source__heartbeat_interval_s": 1.0,
        "source__messages": False,
        "kafka__max_record_bytes": MAX_RECORD_BYTES,
        "errors__on_error": "quarantine",
    }
    async with (
        open_scene_behind(proxies, own_database, registry, topic_prefix, tmp_path, **settings) as scene,
        watching(scene, port) as watcher,
    ):
        await a_transaction_that_holds_the_start(watcher)
        await watcher.ready()
        await scene.commits()
        beat = await watcher.until(lambda seen: seen["heartbeat_time"] is not None, "a heartbeat")
        await watcher.until(lambda seen: seen["heartbeat_time"] > beat["heartbeat_time"], "the next one")
        servers = (proxied_kafka.bootstrap_servers, registry.url)
        async with lag_truth(own_database.dsn, port, *servers, topic_prefix) as truth:
            await each_situation(watcher, truth, proxies, kafka_away_s)
        truth.is_within(TRUE_S)
        code, text = await status_of(scene, "--json")
        assert code == 0 and json.loads(text)["asked"] == "gateway"
        # A heartbeat is no change event, and does not bring other messages with it.
        assert await scene.end(f"{topic_prefix}.message") == 0
        await no_gateway(watcher)
        the_log_is_quiet(scene.gateway.log())
        await scene.streaming()
        # Not judged: the table in quarantine and messages beyond the limit are left out on purpose.
        await scene.delivered(await scene.workload.finish())
