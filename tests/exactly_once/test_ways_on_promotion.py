"""Ways on after a promotion, without `synchronized_standby_slots`: where the standby had everything the gateway goes on by
itself, where it had not a gap is accepted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.local import Kafka, Postgres, Registry
from tests.bugs.test_002_standby_that_is_down import PRIMARY_SETTINGS, STANDBY_SETTINGS
from tests.conftest import Database
from tests.exactly_once.test_ways_on import Place, _place
from tests.exactly_once.written import walgate
from tests.slots import until_confirmed

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

_SYNCED = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1"


@pytest.mark.parametrize("lost", [False, True])
async def test_a_standby_is_promoted(
    lost: bool, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with Postgres(18, settings=PRIMARY_SETTINGS) as primary:
        standby = Postgres(18, settings=STANDBY_SETTINGS, standby_of=primary)
        async with (
            standby,
            asynccontextmanager(_place)(
                Database(primary, "postgres"), kafka, registry, topic_prefix, tmp_path
            ) as place,
        ):
            place.set(source__failover=True)
            await place.streams()
            await _slot_is_synced(standby, place)
            if lost:
                await standby.stop("fast")
                await place.insert()
                await place.insert()
            await until_confirmed(place.sql, place.slot)
            await place.stop()
            if not lost:
                await _has_everything(place)
            await primary.kill()
            await standby.start()
            place.database = Database(standby, "postgres")
            place.sql = await place.database.connect()
            await place.sql.execute("SELECT pg_promote()")
            place.set(source__dsn=place.database.dsn)
            if lost:
                await _go_on_behind_the_gap(place)
            await place.streams()
            await place.stop()


async def _slot_is_synced(standby: Postgres, place: Place) -> None:
    sql = await standby.connect()
    async with asyncio.timeout(90):
        while not await sql.fetchval(_SYNCED, place.slot):
            await place.sql.execute("SELECT pg_log_standby_snapshot()")
            await asyncio.sleep(0.2)
    await sql.close()


async def _has_everything(place: Place) -> None:
    async with asyncio.timeout(30):
        while not await place.sql.fetchval(
            "SELECT flush_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication WHERE application_name = 'walreceiver'"
        ):
            await asyncio.sleep(0.1)


async def _go_on_behind_the_gap(place: Place) -> None:
    """What the new primary never had is in Kafka and stays there; what it wrote meanwhile is given up."""
    for _ in range(3):
        await place.sql.execute("INSERT INTO flows SELECT g FROM generate_series(1000, 1010) g ON CONFLICT DO NOTHING")
        await place.sql.execute("SELECT pg_switch_wal()")
    said = await place.ends()
    assert "the new primary left timeline 1" in said and "walgate accept-gap --until-now" in said, said
    assert "load the tables again" in await walgate(place.gateway, "accept-gap", "--until-now")
