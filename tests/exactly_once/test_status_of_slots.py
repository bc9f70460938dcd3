"""Who holds the start, the slot or the WAL: named by status within seconds, also while no gateway runs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.local import Kafka, Registry
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.exactly_once.scene import Scene, open_scene
from tests.exactly_once.test_status_of_outages import NAMED_S, Watcher
from tests.exactly_once.workload import PUBLICATION
from tests.gateway_process import COMMAND

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
BUDGET_BYTES = 24 << 20
MAX_RECORD_BYTES = 200_000
FILLER = "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20)) FROM generate_series(1, $1::int)"


async def status_of(scene: Scene, *options: str) -> tuple[int, str]:
    """`walgate status` as a process of its own: exit code and output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WALGATE_")}
    for name, value in scene.gateway.settings.items():
        environment[f"WALGATE_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value)
    process = await asyncio.create_subprocess_exec(
        COMMAND[0], "status", *options, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def _a_transaction_that_holds_the_start(watcher: Watcher) -> None:
    scene = watcher.scene
    foreign = await scene.database.connect()
    await foreign.execute("SET application_name = 'nightly'; BEGIN")
    await foreign.execute("CREATE TABLE held (id int)")
    scene.gateway.start()
    await scene.gateway.logged('"http"')
    earliest = await watcher.clock()

    def blocks(found: dict[str, Any]) -> bool:
        return any(holder["blocks"] for holder in found["holders"])

    found = await watcher.until(blocks, "who holds the start", 60.0)
    holder = next(holder for holder in found["holders"] if holder["blocks"])
    assert (holder["pid"], holder["application"]) == (foreign.get_server_pid(), "nightly") and holder["since"]
    assert f"process {holder['pid']}" in found["waiting_for"] and "pg_terminate_backend" in holder["remedy"]
    await watcher.readyz_names("nightly")
    _, text = await status_of(scene)
    assert "waits for" in text and "nightly" in text
    await watcher.lag_is_true(earliest - 10.0, await watcher.clock())
    await foreign.execute("ROLLBACK")
    await scene.gateway.logged('"streaming"')


async def _a_forgotten_prepared_transaction(watcher: Watcher) -> None:
    sql = watcher.scene.connection
    await sql.execute("BEGIN")
    await sql.execute("CREATE TABLE forgotten (id int)")
    await sql.execute("PREPARE TRANSACTION 'forgotten one'")
    found = await watcher.until(
        lambda seen: any(holder["kind"] == "prepared" for holder in seen["holders"]), "the prepared one", NAMED_S
    )
    holder = next(holder for holder in found["holders"] if holder["kind"] == "prepared")
    assert holder["name"] == "forgotten one" and "ROLLBACK PREPARED 'forgotten one'" in holder["remedy"]
    await sql.execute("ROLLBACK PREPARED 'forgotten one'")


async def _a_slot_near_its_limit(watcher: Watcher) -> None:
    scene = watcher.scene
    holding = await scene.database.connect()
    await holding.execute("BEGIN")
    await holding.execute("CREATE TABLE holding (id int)")
    for _ in range(int(0.96 * BUDGET_BYTES / (1 << 20)) + 1):
        await scene.connection.execute(FILLER, 1)
    found = await watcher.until(
        lambda seen: bool(seen["wal"]) and seen["wal"]["held_bytes"] >= 0.95 * BUDGET_BYTES
        and any(holder["pid"] == holding.get_server_pid() for holder in seen["holders"]),
        "the WAL that is held, and who holds it",
        NAMED_S,
    )  # fmt: skip
    assert found["wal"]["limit_bytes"] == BUDGET_BYTES and found["wal"]["limit_by"] == "source.wal_budget_bytes"
    await scene.gateway.logged('"wal_held"')
    assert scene.gateway.events("wal_held")[-1]["hint"]
    _, text = await status_of(scene)
    assert "held back by" in text and f"process {holding.get_server_pid()}" in text and "WAL held" in text
    await holding.execute("ROLLBACK")


async def _a_table_that_cannot_be_written(watcher: Watcher) -> None:
    sql = watcher.scene.connection
    await sql.execute("CREATE TABLE poison (id int PRIMARY KEY, c text)")
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE poison")
    await sql.execute(f"INSERT INTO poison VALUES (1, repeat('x', {2 * MAX_RECORD_BYTES}))")
    found = await watcher.until(lambda seen: bool(seen["quarantined"]), "the table in quarantine", NAMED_S)
    (told,) = found["quarantined"]
    assert told["table"] == "public.poison" and "kafka.max_record_bytes" in told["reason"]
    assert found["last_error"] is not None
    await watcher.ready()


async def test_who_holds_the_start_and_the_slot_is_named(
    own_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    port = free_port()
    async with open_scene(
        own_database,
        kafka.bootstrap_servers,
        registry.url,
        topic_prefix,
        tmp_path,
        http__port=port,
        source__wal_budget_bytes=BUDGET_BYTES,
        source__heartbeat_interval_s=1.0,
        source__messages=False,
        kafka__max_record_bytes=MAX_RECORD_BYTES,
        errors__on_error="quarantine",
    ) as scene:
        watcher = Watcher(scene, port)
        await _a_transaction_that_holds_the_start(watcher)
        await watcher.ready()
        await scene.commits()
        beat = await watcher.until(lambda seen: seen["heartbeat_time"] is not None, "a heartbeat", 60.0)
        await watcher.until(lambda seen: seen["heartbeat_time"] > beat["heartbeat_time"], "the next one", 60.0)
        await _a_forgotten_prepared_transaction(watcher)
        await _a_slot_near_its_limit(watcher)
        await _a_table_that_cannot_be_written(watcher)
        code, text = await status_of(scene, "--json")
        assert code == 0 and json.loads(text)["asked"] == "gateway"
        assert await scene.stop() == 0
        code, text = await status_of(scene)
        assert code == 1 and "nothing reads the slot" in text and "NOT IN USE" in text and "last commit" in text
        told = json.loads((await status_of(scene, "--json"))[1])
        assert told["asked"] == "servers" and told["delivered_lsn"] > 0 and told["last_commit_time"] > 0
        assert all(part["up"] for part in told["parts"])
        assert [each["table"] for each in told["quarantined"]] == ["public.poison"] and "public.poison" in text
        assert any(seen["relation"] == "work.plain" and seen["columns"] > 1 for seen in told["schemas"])
        # A heartbeat is no change event, and does not bring other messages with it.
        assert await scene.end(f"{topic_prefix}.message") == 0
