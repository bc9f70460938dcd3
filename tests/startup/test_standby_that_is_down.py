"""A standby that is restarted ends the gateway with the advice to drop the slot.

Story: for failover slots, docs/checklist.md asks for `synchronized_standby_slots`. While the
standby is down, the server warns within the stream, `WARNING 55000 ... does not have active_pid`,
and sends nothing. The gateway took every 55000 for a publication that was dropped: exit code 78,
"drop the slot and start anew", although nothing was lost. Where the standby's slot is gone, as it
is on a new primary after a failover, the warning is `22023 ... does not exist`.

Scenario: on 17 and 18, both warnings, a commit while the standby is down, and its delivery once the
standby is back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.local import Kafka, Postgres, Registry
from gateway.postgres.server import load_facts
from gateway.startup.facts import Expected
from gateway.startup.slot_checks import check_retention
from tests.conftest import TEST_SETTINGS, Database
from tests.support.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PRIMARY_SETTINGS: dict[str, str | int] = {**TEST_SETTINGS, "hot_standby_feedback": "on", "wal_sender_timeout": "5s"}
STANDBY_SETTINGS: dict[str, str | int] = {**PRIMARY_SETTINGS, "sync_replication_slots": "on"}


@pytest.fixture(params=[pytest.param(17, marks=pytest.mark.long), 18])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Postgres, Postgres]]:
    async with Postgres(request.param, settings=PRIMARY_SETTINGS) as primary:
        standby = Postgres(request.param, settings=STANDBY_SETTINGS, standby_of=primary)
        async with standby:
            yield primary, standby


async def wait_for_standby_slots(scene: Scene, names: str) -> None:
    await scene.connection.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{names}'")
    await scene.connection.execute("SELECT pg_reload_conf()")


async def told(scene: Scene) -> list[str]:
    facts = await load_facts(scene.connection, "none", [])
    return [finding.message for finding in check_retention(facts, Expected("none", (), failover=True))]


async def test_a_standby_that_is_down_or_has_no_slot_is_waited_for(
    pair: tuple[Postgres, Postgres], kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    primary, standby = pair
    database = Database(primary, "postgres")
    async with open_scene(
        database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path, source__failover=True
    ) as scene:
        await wait_for_standby_slots(scene, "standby")
        await scene.streaming()
        await scene.commits()

        await standby.stop("fast")
        xid = await scene.workload.one_transaction("plain", 1)
        await scene.gateway.logged("active_pid")
        await standby.start()
        await scene.delivered(xid)

        await wait_for_standby_slots(scene, "standby, gone")
        xid = await scene.workload.one_transaction("plain", 1)
        await scene.gateway.logged("22023")
        assert ["physical replication slots of this server: gone. " in said for said in await told(scene)] == [True]
        await scene.sql("SELECT pg_create_physical_replication_slot('gone', true)")
        assert await told(scene) == []
        await wait_for_standby_slots(scene, "standby")
        await scene.delivered(xid)

        assert len(scene.gateway.events("streaming")) == 1, "the session went on all the time"
        await scene.finish()
