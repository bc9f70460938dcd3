"""An old primary that came back and stands first in source.dsn is asked for ever.

Story: source.dsn names both servers. After the failover the old primary is started again, by
mistake or by a tool, and takes connections. The gateway saw that it was left behind, waited, and
asked the same host again at each attempt. Later, only the stream and the queries of the catalog
left the old primary alone: a snapshot was read there, and the monitor wrote heartbeats there.

Commands asked the first host that answers: `walgate snapshot start` was sent to the old primary,
`walgate status` had no slot, and `walgate accept-gap` refused the old primary.

Scenario: the gateway has read the new primary, and starts with the old one in front of it. A
snapshot is taken, and commands are run with the gateway's settings.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.local import Kafka, Postgres, Registry
from gateway.names import APPLICATION_NAME
from tests.conftest import TEST_SETTINGS
from tests.support.gateway_process import ended
from tests.support.theatre import theatre

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"


async def test_the_next_host_is_tried_behind_an_old_primary(
    kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with Postgres(18, settings=TEST_SETTINGS) as old, Postgres(18, settings=TEST_SETTINGS, standby_of=old) as new:
        connection = await new.connect()
        await connection.execute("SELECT pg_promote()")
        await connection.close()
        settings = {"snapshot__mode": "on_command", "source__heartbeat_interval_s": "0.5"}
        async with theatre(topic_prefix, new, kafka, registry, tmp_path / "gateway.log", **settings) as stage:
            await stage.sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
            await stage.gateway.streaming()
            assert await stage.gateway.stop() == 0
            admin = await old.connect()
            await admin.execute(f"CREATE DATABASE {topic_prefix}")
            await admin.close()
            left_behind = await old.connect(topic_prefix)
            await left_behind.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
            await left_behind.close()
            own = new.database_dsn(topic_prefix)
            both = {"source__dsn": own.replace("@", f"@127.0.0.1:{old.port},")}
            environment = stage.gateway.environment(**both)
            await stage.gateway.streaming(**both)
            (again,) = stage.gateway.events("restarting")
            assert "is an old primary" in again["reason"]
            await stage.sql.execute("INSERT INTO t VALUES (1)")
            found = await asyncio.wait_for(stage.delivered(lambda found: bool(found.committed("t"))), 60)
            found.close()
            assert found.rows("t") == [{"id": 1}]
            sent = await ended(("snapshot", "start", "public.t"), environment)
            assert sent.returncode == 0, sent.stderr
            await stage.gateway.logged('"snapshot_done"')
            admin = await old.connect()
            assert await admin.fetchval(SESSIONS, APPLICATION_NAME) == 0
            await admin.close()
            assert await stage.gateway.stop() == 0
            status = json.loads((await ended(("status", "--json"), environment)).stdout)
            assert status["slot"] is not None and status["slot"]["active_pid"] is None, status
            checked = await ended(("check",), environment)
            assert checked.returncode == 0 and f"127.0.0.1:{new.port}" in checked.stdout, checked.stdout
            refused = await ended(("accept-gap",), environment)
            assert "can still be read through slot" in refused.stderr + refused.stdout, refused
