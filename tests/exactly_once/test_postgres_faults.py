"""PostgreSQL restarts, crashes, falls silent, is another one, or somebody changed slot, publication
or rights."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.local import Kafka, Postgres, Registry
from gateway.postgres.connection import connect_replication
from gateway.postgres.start_replication import pgoutput_options
from schemas.lsn import Lsn
from tests.conftest import TEST_SETTINGS, Database
from tests.exactly_once.conftest import WAL_SENDER_TIMEOUT_S
from tests.exactly_once.shapes import Session
from tests.exactly_once.workload import PUBLICATION, WEIGHTS, Workload
from tests.support.proxy import DIRECTIONS, FaultProxy, ProxiedKafka
from tests.support.reset_wal import reset_wal
from tests.support.scene import Scene, open_scene
from tests.support.topics import Topics
from tests.support.written import Written, checked, walgate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

RECOVERY_S = 5.0
"""Promised, and held by the best of several tries: the machine of the tests is busy now and
then."""


class Place:
    """What every test here needs; the gateway reaches the server through `proxy`."""

    def __init__(
        self, database: Database, proxy: FaultProxy, kafka: Kafka, registry: Registry, prefix: str, folder: Path
    ) -> None:
        self.database = database
        self.server = database.server
        self.proxy = proxy
        self.kafka = kafka
        self.registry = registry
        self.prefix = prefix
        self.folder = folder
        self.slot = f"slot_{prefix}"

    def dsn(self, user: str = "postgres") -> str:
        return self.database.dsn_of(user).replace(f":{self.server.port}/", f":{self.proxy.port}/")

    @asynccontextmanager
    async def scene(self, **settings: Any) -> AsyncIterator[Scene]:
        values: dict[str, Any] = {"source__dsn": self.dsn(), "source__check_interval_s": 1.0} | settings
        async with open_scene(
            self.database, self.kafka.bootstrap_servers, self.registry.url, self.prefix, self.folder, **values
        ) as scene:
            yield scene


@pytest.fixture
def place(
    own_database: Database,
    postgres_proxy: FaultProxy,
    kafka: Kafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
) -> Place:
    return Place(own_database, postgres_proxy, kafka, registry, topic_prefix, tmp_path)


@pytest.mark.parametrize("mode", ["fast", "immediate", pytest.param("killed", marks=pytest.mark.long)])
async def test_a_restart_of_the_server_under_load_loses_nothing(place: Place, mode: str) -> None:
    """P1, P2: and its end is not delayed by us."""
    async with place.scene() as scene:
        await scene.streaming()
        scene.workload.start()
        ends, recoveries = [], []
        for _ in range(2):
            await scene.workload.run_transactions(15)
            begun = time.monotonic()
            await _end_server(place.server, mode)
            ends.append(time.monotonic() - begun)
            await place.server.start()
            await scene.reconnect()
            accepted = time.monotonic()
            await scene.commits()
            recoveries.append(time.monotonic() - accepted)
        print(
            f"{mode}: ended in {_seconds(ends)}, first new transaction readable {_seconds(recoveries)} after it accepts"
        )
        assert min(ends) < RECOVERY_S
        assert min(recoveries) < RECOVERY_S
        print(await scene.finish())


def _seconds(figures: list[float]) -> str:
    return ", ".join(f"{one:.1f} s" for one in figures)


async def _end_server(server: Postgres, mode: str) -> None:
    if mode == "killed":
        await server.kill()
    else:
        stop: Literal["fast", "immediate"] = "fast" if mode == "fast" else "immediate"
        await server.stop(stop)


async def test_a_fast_stop_is_not_delayed_while_kafka_is_down(
    own_database: Database,
    postgres_proxy: FaultProxy,
    proxied_kafka: ProxiedKafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    """P3: a reader that answers but cannot confirm would block the stop for as long as Kafka is
    down."""
    place = Place(own_database, postgres_proxy, proxied_kafka, registry, topic_prefix, tmp_path)
    async with place.scene(kafka__bootstrap_servers=proxied_kafka.proxied_servers) as scene:
        await scene.streaming()
        await scene.commits()
        await proxied_kafka.proxy.refuse()
        await scene.workload.one_transaction("plain", 100)
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        await place.server.stop("fast")
        seconds = time.monotonic() - begun
        await place.server.start()
        await proxied_kafka.proxy.accept()
        await scene.reconnect()
        print(f"fast stop with Kafka down took {seconds:.1f} s; {await scene.finish()}")
        assert seconds < RECOVERY_S


async def test_connections_to_the_server_that_are_cut_at_any_byte_lose_nothing(place: Place) -> None:
    """P18: no message is decoded in part."""
    generator = random.Random(18)
    async with place.scene() as scene:
        await scene.streaming()
        scene.workload.start()
        for number in range(9):
            await scene.workload.run_transactions(3)
            if number % 3:
                place.proxy.cut_after(generator.randint(1, 20_000), "to_client")
            else:
                place.proxy.cut()
        place.proxy.heal()
        print(await scene.finish())
        cautions = [event["message"] for event in scene.gateway.events("warning")]
        assert len(scene.gateway.events("streaming")) > 1
        assert len(cautions) == len(set(cautions)) > 0, "said again with every attempt"


@pytest.mark.parametrize("lost", [*(pytest.param(way, marks=pytest.mark.long) for way in DIRECTIONS), "both"])
async def test_a_black_hole_is_noticed_and_left(place: Place, lost: str) -> None:
    """P16, P17: no reset and no end, bytes just do not arrive."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        if lost == "both":
            place.proxy.black_hole()
        else:
            place.proxy.black_hole(lost)  # type: ignore[arg-type]
        xid = await scene.workload.one_transaction("plain", 10)
        begun = time.monotonic()
        await scene.gateway.logged('"restarting"', timeout_s=40)
        print(f"black hole ({lost}) noticed after {time.monotonic() - begun:.1f} s")
        place.proxy.heal()
        place.proxy.cut()
        await scene.delivered(xid)
        await scene.finish()
        assert time.monotonic() - begun < WAL_SENDER_TIMEOUT_S * 4 + 30


async def test_a_throttled_server_only_takes_longer(place: Place) -> None:
    async with place.scene() as scene:
        await scene.streaming()
        place.proxy.throttle(400_000, "to_client")
        await scene.delivered(await scene.workload.one_transaction("plain", 10_000))
        place.proxy.heal()
        assert (await scene.finish()).epoch_count == 1


async def test_one_huge_row_does_not_starve_the_keepalives(place: Place) -> None:
    """P19: a message that needs longer than wal_sender_timeout to arrive."""
    async with place.scene() as scene:
        await scene.streaming()
        place.proxy.throttle(1_000_000, "to_client")
        await scene.delivered(
            await scene.workload.one_transaction("plain", 1, filling=WAL_SENDER_TIMEOUT_S * 1_750_000)
        )
        place.proxy.heal()
        assert (await scene.finish()).epoch_count == 1


async def test_another_server_behind_the_address_is_refused(place: Place) -> None:
    """P8: also when it has a slot of the same name, which takes our position without a word."""
    async with Postgres(settings=TEST_SETTINGS, password=place.server.password) as other, place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.gateway.stop()
        stranger = await other.connect()
        await stranger.execute(f"CREATE DATABASE {place.database.name}")
        await stranger.close()
        stranger = await other.connect(place.database.name)
        await stranger.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        await stranger.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", place.slot)
        await stranger.close()
        place.proxy.target_port = other.port
        scene.gateway.start()
        await scene.ends("belongs to slot", "system")


async def test_a_slot_that_is_dropped_stops_the_start(place: Place) -> None:
    """P9, P5: and none is made in its place."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.stop()
        await scene.sql("SELECT pg_drop_replication_slot($1)", place.slot)
        scene.gateway.start()
        await scene.ends(place.slot)
        assert not await scene.sql("SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", place.slot)


async def test_a_slot_that_is_made_anew_stops_the_start(place: Place) -> None:
    """P9: PostgreSQL itself takes our old position for the new slot and is silent about the gap."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.stop()
        await scene.sql("SELECT pg_drop_replication_slot($1)", place.slot)
        await scene.workload.one_transaction("plain", 1)
        await scene.sql("SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", place.slot)
        scene.gateway.start()
        await scene.ends(place.slot, "is confirmed up to")


@pytest.mark.long  # the same comparison as for a slot that is made anew
async def test_a_slot_that_somebody_advanced_stops_the_start(place: Place) -> None:
    """P9: what lies between was never delivered."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.stop()
        await scene.workload.one_transaction("plain", 1)
        await scene.sql("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", place.slot)
        scene.gateway.start()
        await scene.ends(place.slot, "is confirmed up to")


async def test_a_slot_whose_wal_is_gone_stops_the_gateway(place: Place) -> None:
    """P10: max_slot_wal_keep_size."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.gateway.stop()
        try:
            await scene.connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'")
            await scene.connection.execute("SELECT pg_reload_conf()")
            for _ in range(6):
                await scene.connection.execute(
                    "INSERT INTO history.noise SELECT repeat('x', 2000) FROM generate_series(1, 6000)"
                )
                await scene.connection.execute("SELECT pg_switch_wal()")
            await scene.connection.execute("CHECKPOINT")
            lost = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1"
            assert await scene.sql(lost, place.slot) == "lost"
            scene.gateway.start()
            await scene.ends(place.slot)
        finally:
            await scene.connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            await scene.connection.execute("SELECT pg_reload_conf()")


async def test_a_publication_that_is_dropped_stops_the_gateway(place: Place) -> None:
    """P11: PostgreSQL 18 only warns, and leaves the changes out."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.connection.execute(f"DROP PUBLICATION {PUBLICATION}")
        await scene.workload.one_transaction("plain", 1)
        await scene.ends("publication")


async def test_a_publication_that_is_emptied_is_reported(place: Place) -> None:
    """P11: every light would be green, and nothing would ever arrive."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        tables = ("plain", "full", "bare", "large", "changing", "emptied")
        await scene.connection.execute(
            f"ALTER PUBLICATION {PUBLICATION} DROP TABLE " + ", ".join(f"work.{name}" for name in tables)
        )
        await scene.gateway.logged("has no tables")
        await scene.connection.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE work.plain")
        await scene.commits()


async def test_a_table_taken_out_of_the_publication_is_told(place: Place) -> None:
    """P11, P12: others go on, but somebody should know."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        told = scene.gateway.log().count("work.bare")
        await scene.connection.execute(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE work.bare")
        await scene.gateway.logged("work.bare", times=told + 1)
        await scene.commits()


async def test_a_server_restored_from_a_backup_stops_the_start(place: Place) -> None:
    """P7: our position lies beyond its WAL; PostgreSQL would accept it, and deliver nothing for a
    while. A start after that while stops too, until the gap is accepted."""
    written = Written(Topics(place.kafka.bootstrap_servers, place.registry.url), place.prefix)
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.gateway.stop()
        await place.server.stop("fast")
        data = place.server.data_folder
        backup = data.with_name("backup")
        shutil.copytree(data, backup, symlinks=True, copy_function=shutil.copy2)
        _give_as(data, backup)
        await place.server.start()
        await scene.reconnect()
        await scene.streaming()
        for _ in range(5):
            await scene.commits(row_count=100)
        await scene.gateway.stop()
        await place.server.stop("fast")
        shutil.rmtree(data)
        backup.rename(data)
        await place.server.start()
        await scene.reconnect()
        scene.gateway.start()
        await scene.ends("is after the end of the WAL")
        position = (await written.position())["resume_lsn"]
        while await scene.sql("SELECT pg_current_wal_flush_lsn() <= $1::text::pg_lsn", str(Lsn(position))):
            await scene.workload.one_transaction("plain", 1, 60)
            await scene.sql("SELECT pg_switch_wal()")
        assert "was after the end of the WAL" in await checked(scene.gateway, 78)
        scene.gateway.start()
        await scene.ends("was after the end of the WAL", '"exit_code": 78')
        await walgate(scene.gateway, "accept-gap", "--until-now")
        (gap,) = await written.markers("GAP")
        assert gap["marker_lsn"] == position and "earlier state" in gap["detail"]
        await scene.streaming()
        await scene.commits()


def _give_as(model: Path, copy: Path) -> None:
    """Owner of every file, as in the original."""
    for path in [copy, *copy.rglob("*")]:
        facts = (model / path.relative_to(copy)).lstat()
        shutil.chown(path, facts.st_uid, facts.st_gid)


async def test_a_role_without_replication_waits_until_it_has_it_again(place: Place) -> None:
    """P13: an open stream goes on; a new one is refused, slowly retried, and comes by itself."""
    role = f"reader_{place.prefix}"
    async with place.scene(source__dsn=place.dsn(role)) as scene:
        await scene.connection.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{place.server.password}'")
        try:
            await scene.streaming()
            await scene.commits()
            await scene.connection.execute(f"ALTER ROLE {role} NOREPLICATION")
            await scene.commits()
            place.proxy.cut()
            await scene.gateway.logged("REPLICATION", timeout_s=30)
            await scene.connection.execute(f"ALTER ROLE {role} REPLICATION")
            await scene.commits()
            await scene.finish()
        finally:
            await scene.gateway.kill()
            await scene.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_transaction_ids_that_wrap_lose_and_double_nothing(
    kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """T27: 400 transactions before the end of the 32 bits, one that is open across it, and a
    restart behind it. Without DDL, across which PostgreSQL itself does not decode then (XX000:
    could not map filenumber)."""
    async with Postgres(settings=TEST_SETTINGS) as server:
        for name in ("template1", "postgres"):
            connection = await server.connect(name)
            await connection.execute("VACUUM (FREEZE)")
            await connection.close()
        await server.stop("fast")
        await asyncio.to_thread(_set_next_xid, server, 2**32 - 400)
        await server.start()
        database = Database(server, "postgres")
        async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
            await scene.streaming()
            weights = {shape: weight for shape, weight in WEIGHTS.items() if shape not in ("altered", "truncated")}
            scene.workload = Workload(database.dsn, seed=27, weights=weights)
            scene.workload.start()
            across = Session(await database.connect(), scene.workload_random)
            await across.begin("across")
            await across.insert("plain", 1000)
            while await scene.sql("SELECT pg_current_xact_id()::text::bigint") < 2**32 + 100:
                await scene.workload.run_transactions(3)
                for _ in range(50):
                    await scene.sql("SELECT pg_current_xact_id()")
            await across.insert("plain", 1000)
            await across.end()
            await across.connection.close()
            await scene.gateway.kill()
            await scene.streaming()
            verdict = await scene.finish()
            xids = [marker.value["xid"] for marker in (await scene.read()).markers]
            assert max(xids) > 2**32 - 400
            assert 0 < min(filter(None, xids)) < 1000
            print(f"across the wrap: {verdict}")


def _set_next_xid(server: Postgres, next_xid: int) -> None:
    """pg_resetwal wants the piece of pg_xact where that transaction's state belongs."""
    folder = server.data_folder
    owner = folder.stat()
    pages = 32
    segment = folder / "pg_xact" / f"{next_xid // (4 * 8192 * pages):04X}"
    segment.write_bytes(bytes(8192 * pages))
    segment.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(segment, owner.st_uid, owner.st_gid)
    reset_wal(server, "-x", str(next_xid))


async def test_a_temporary_slot_of_the_same_name_is_waited_for(place: Place) -> None:
    """It is gone with the session that created it."""
    async with place.scene() as scene:
        other = await place.database.connect()
        await other.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)", place.slot)
        scene.gateway.start()
        await scene.gateway.logged("is in use by process")
        await other.close()
        await scene.gateway.logged('"streaming"')
        await scene.commits()
        await scene.finish()


@pytest.mark.long  # tests/runtime/test_modes.py: a second gateway waits for the first
async def test_a_slot_that_another_reader_holds_is_waited_for(place: Place) -> None:
    """G7 seen from PostgreSQL: 55006."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.stop()
        thief = await connect_replication(f"{place.database.dsn}?wal_sender_timeout=0")
        await thief.start(place.slot, Lsn(0), pgoutput_options(180000, [PUBLICATION]))
        scene.gateway.start()
        await scene.gateway.logged("is in use by process")
        await thief.close()
        await scene.commits()
        await scene.finish()
