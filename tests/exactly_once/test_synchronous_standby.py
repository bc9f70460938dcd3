"""`synchronous_standby_names = '*'`: the gateway is a synchronous standby, which it says, and it
never waits for itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Postgres, Registry
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.support.gateway_process import ended, environment_of
from tests.support.proxy import ProxiedKafka
from tests.support.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

_SETTING = "ALTER SYSTEM SET synchronous_standby_names = '{}'"
_STATE = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'walgate'"
_OURS = """
    SELECT query_start::text, coalesce(wait_event, '') FROM pg_stat_activity
    WHERE application_name = 'walgate' AND query LIKE '%pg_logical_emit_message%'
"""


async def _set(sql: asyncpg.Connection, names: str) -> None:
    await sql.execute(_SETTING.format(names))
    await sql.execute("SELECT pg_reload_conf()")


async def _said_by(scene: Scene, command: str, *options: str, exit_codes: tuple[int, ...] = (0,)) -> str:
    done = await ended((command, *options), environment_of(scene.gateway.settings))
    assert done.returncode in exit_codes, done.stderr
    return done.stdout


async def test_a_synchronous_gateway_is_named_and_does_not_wait_for_itself(
    start_postgres: Callable[..., Awaitable[Postgres]],
    proxied_kafka: ProxiedKafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    server = await start_postgres()
    database = Database(server, "postgres")
    servers = proxied_kafka.bootstrap_servers
    async with open_scene(database, servers, registry.url, topic_prefix, tmp_path) as scene:
        sql = scene.connection
        await sql.execute("SET synchronous_commit = local")
        await _set(sql, "*")
        checked = await _said_by(scene, "check")
        assert "includes walgate, the application name" in checked, checked
        assert "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (standby1)'" in checked
        scene.gateway.settings |= {"kafka__bootstrap_servers": proxied_kafka.proxied_servers}
        await scene.streaming(http__port=(port := free_port()), source__heartbeat_interval_s=0.2)
        async with asyncio.timeout(20):
            while await sql.fetchval(_STATE) != "sync":
                await asyncio.sleep(0.05)
        proxied_kafka.proxy.black_hole()
        other = await database.connect()
        hangs = asyncio.create_task(other.execute("INSERT INTO work.plain VALUES (0, 0)"))
        seen: set[tuple[object, ...]] = set()
        async with asyncio.timeout(20):
            while len({begun for begun, _ in seen}) < 8:
                seen |= {tuple(row) for row in await sql.fetch(_OURS)}
                await asyncio.sleep(0.05)
        assert not hangs.done(), "the server does not wait for the gateway: nothing is shown here"
        assert not [waits for _, waits in seen if waits == "SyncRep"]
        scene.gateway.settings |= {"http__port": port}
        told = ""
        async with asyncio.timeout(30):  # until the gateway has looked at its slot again
            while "SYNCHRONOUS STANDBY (sync): each COMMIT of every database waits" not in told:
                told = await _said_by(scene, "status", exit_codes=(0, 1))
        assert json.loads(await _said_by(scene, "status", "--json", exit_codes=(0, 1)))["slot"]["sync_state"] == "sync"
        assert any("includes walgate" in entry["message"] for entry in scene.gateway.events("warning"))
        proxied_kafka.proxy.heal()
        proxied_kafka.proxy.cut()
        await hangs
        await _set(sql, "")
        other.terminate()
