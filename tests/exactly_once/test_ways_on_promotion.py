"""Ways on after a promotion, without `synchronized_standby_slots`: where the standby had everything,
or lacked only WAL that had nothing for Kafka, the gateway goes on by itself, else a gap is
accepted."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import Database
from tests.exactly_once.test_ways_on import Place, _place
from tests.startup.test_standby_that_is_down import PRIMARY_SETTINGS, STANDBY_SETTINGS
from tests.support.slots import until_confirmed

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

_SYNCED = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1"


@pytest.mark.parametrize("lost", ["nothing", "idle WAL", "rows"])
async def test_a_standby_is_promoted(
    lost: str, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
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
            if lost != "nothing":
                await _has_everything(place)
                await standby.stop("fast")
            if lost == "rows":
                await place.insert()
                await place.insert()
            if lost == "idle WAL":
                for _ in range(3):
                    await place.sql.execute("SELECT pg_current_xact_id(); SELECT pg_switch_wal()")
            await until_confirmed(place.sql, place.slot)
            await place.stop()
            if lost == "nothing":
                await _has_everything(place)
            await primary.kill()
            await standby.start()
            place.database = Database(standby, "postgres")
            place.sql = await place.database.connect()
            await place.sql.execute("SELECT pg_promote()")
            place.set(source__dsn=place.database.dsn)
            if lost == "rows":
                await _go_on_behind_the_gap(place)
            if lost == "idle WAL":
                place.wrong.clear()
                await place.insert()  # before the old resume LSN
            await place.streams()
            await place.stop()


async def test_another_copy_of_the_server_is_left_for_the_primary(
    kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The old primary is promoted too, to a timeline that does not come from that of the new
    one."""
    async with (
        Postgres(18, settings={**PRIMARY_SETTINGS, "recovery_target_timeline": "current"}) as other,
        asynccontextmanager(_place)(Database(other, "postgres"), kafka, registry, topic_prefix, tmp_path) as place,
        Postgres(18, settings=PRIMARY_SETTINGS, standby_of=other) as primary,
    ):
        await place.sql.close()
        await other.stop("fast")
        place.sql = await primary.connect()
        await _promote(place.sql)
        await _write_wal(place)
        right = primary.dsn
        place.set(source__dsn=right)
        await place.streams()
        await place.stop()
        await place.insert()

        history = primary.data_folder / "pg_wal" / "00000002.history"
        signal, copy = other.data_folder / "standby.signal", other.data_folder / "pg_wal" / history.name
        signal.touch()
        shutil.chown(signal, other.data_folder.stat().st_uid)
        await other.start()
        copy.write_bytes(history.read_bytes())
        shutil.chown(copy, other.data_folder.stat().st_uid)
        of_primary, place.sql = place.sql, await other.connect()
        await _promote(place.sql)
        await place.sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", place.slot)
        for _ in range(2):
            await _write_wal(place)
        place.wrong["source__dsn"] = other.dsn
        said = await place.ends()
        assert "timeline 3 of the server is not a child of 2" in said, said
        assert "point source.dsn to the primary that succeeded the old one" in said
        place.wrong.clear()
        await place.sql.close()
        place.sql = of_primary
        await place.streams()
        await place.stop()
        await place.sql.close()


async def _promote(sql: asyncpg.Connection) -> None:
    assert await sql.fetchval("SELECT pg_promote()")


async def _write_wal(place: Place) -> None:
    """More than a few segments."""
    for _ in range(4):
        await place.sql.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")


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
    """What the new primary never had is in Kafka and stays there; what it wrote meanwhile is given
    up."""
    for _ in range(3):
        await place.sql.execute("INSERT INTO flows SELECT g FROM generate_series(1000, 1010) g ON CONFLICT DO NOTHING")
        await place.sql.execute("SELECT pg_switch_wal()")
    said = await place.ends()
    assert "the new primary forked off timeline 1" in said and "walgate accept-gap --until-now" in said, said
    await place.accept_gap("--until-now")
