"""After a loss, and after pg_upgrade: the command that the stop names, and a gateway that streams
again under the same prefix."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.local import Kafka, Postgres, Registry
from schemas.topic_names import POSITION_TOPIC
from tests.conftest import TEST_SETTINGS, Database
from tests.support.gateway_process import GatewayProcess
from tests.support.lost_tail import lose_tail
from tests.support.proxy import ProxiedKafka
from tests.support.scene import end_offsets
from tests.support.slots import until_confirmed, until_free
from tests.support.topics import Topics
from tests.support.written import Written, checked, walgate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

TABLE = "CREATE TABLE flows (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES"


@dataclass
class Place:
    sql: asyncpg.Connection
    slot: str
    gateway: GatewayProcess
    written: Written

    async def insert(self, *ids: int) -> None:
        for row_id in ids:
            await self.sql.execute("INSERT INTO flows VALUES ($1)", row_id)

    async def stop(self) -> None:
        assert await self.gateway.stop() == 0
        await until_free(self.sql, self.slot)

    async def ends(self, said: str, command: str) -> None:
        """Exit code 78 that says this, and names the command."""
        assert await self.gateway.wait(120) == 78
        told = self.gateway.log().rpartition("walgate: ")[2]
        assert said in told and command in told, told


@pytest.fixture
async def place(
    own_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async with _place(own_database, kafka, registry, topic_prefix, tmp_path) as place:
        yield place


@pytest.fixture
async def proxied_place(
    own_database: Database, proxied_kafka: ProxiedKafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async with _place(own_database, proxied_kafka, registry, topic_prefix, tmp_path) as place:
        yield place


@asynccontextmanager
async def _place(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path
) -> AsyncIterator[Place]:
    sql = await database.connect()
    await sql.execute(TABLE)
    gateway = GatewayProcess(folder / "gateway.log", _settings(database.dsn, kafka, registry, prefix))
    yield Place(sql, prefix, gateway, Written(Topics(kafka.bootstrap_servers, registry.url), prefix))
    await gateway.end()


def _settings(dsn: str, kafka: Kafka, registry: Registry, prefix: str) -> dict[str, str]:
    return {
        "source__dsn": dsn,
        "source__slot": prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "registry__url": registry.url,
    }


Loss = Callable[[Place], Awaitable[None]]


async def _slot_dropped(place: Place) -> None:
    await place.sql.execute("SELECT pg_drop_replication_slot($1)", place.slot)


async def _slot_created_anew(place: Place) -> None:
    await _slot_dropped(place)
    await place.insert(10)
    await place.sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", place.slot)


async def _slot_advanced(place: Place) -> None:
    await place.sql.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", place.slot)


async def _wal_removed(place: Place) -> None:
    await place.sql.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    await place.sql.execute("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            await place.sql.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
        await place.sql.execute("CHECKPOINT")
        status = await place.sql.fetchval(
            "SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", place.slot
        )
        assert status == "lost"
    finally:
        await place.sql.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        await place.sql.execute("SELECT pg_reload_conf()")


async def _publication_dropped(place: Place) -> None:
    await place.sql.execute("DROP PUBLICATION walgate")
    await place.insert(11)
    await place.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")


@pytest.mark.parametrize(
    ("loss", "said", "option"),
    [
        (_slot_dropped, "no longer exists", ""),
        pytest.param(_slot_created_anew, "by another process, or the slot was dropped", "", marks=pytest.mark.long),
        pytest.param(_slot_advanced, "by another process, or the slot was dropped", "", marks=pytest.mark.long),
        pytest.param(_wal_removed, "has been invalidated: wal_removed", "", marks=pytest.mark.long),
        (_publication_dropped, "a publication did not exist", " --until-now"),
    ],
)
async def test_a_gap_is_accepted_and_marked_and_the_stream_goes_on(
    loss: Loss, said: str, option: str, place: Place
) -> None:
    await place.gateway.streaming()
    await place.insert(1)
    await place.written.has("flows", {1})
    await place.stop()
    before = await place.written.position()
    await place.insert(2)
    await loss(place)

    place.gateway.start()
    await place.ends(said, f"walgate accept-gap{option},")
    delivered = {1}
    if option:  # what was committed before is delivered first
        delivered = {1, 2}
        before = await place.written.position()
        refused = await walgate(place.gateway, "accept-gap", code=78)
        assert "can still be read through slot" in refused
    assert "take a new snapshot of the tables" in await walgate(place.gateway, "accept-gap", *option.split())
    await place.insert(3)
    await place.gateway.streaming()
    await place.written.has("flows", {*delivered, 3})

    (gap,) = await place.written.markers("GAP")
    assert gap["detail"] and gap["marker_lsn"] == before["resume_lsn"] < gap["end_lsn"]
    lsns = await place.written.commit_lsns()
    assert all(a < b for a, b in pairwise(lsns)) and lsns[0] < gap["marker_lsn"] < gap["end_lsn"] <= lsns[-1]
    await place.stop()
    assert "can still be read through slot" in await walgate(place.gateway, "accept-gap", code=78)


async def _without_tail(topic: str, place: Place, broker: ProxiedKafka) -> Any:
    """The newest records of the topic are lost, those of two rows. The position before."""
    await place.gateway.streaming()
    await place.insert(1)
    await place.written.has("flows", {1})
    await place.stop()
    kept = await asyncio.to_thread(end_offsets, broker.bootstrap_servers, topic, "read_uncommitted")
    await place.gateway.streaming()
    await place.insert(2, 3)
    await place.written.has("flows", {1, 2, 3})
    await place.stop()
    position = await place.written.position()
    await broker.stop()
    lose_tail(broker, topic, kept)
    await broker.start()
    return position


async def test_markers_that_kafka_has_lost_are_a_gap(proxied_place: Place, proxied_kafka: ProxiedKafka) -> None:
    """K15: consumers would wait for nothing, and never see the rows."""
    place = proxied_place
    before = await _without_tail(f"{place.slot}.transaction", place, proxied_kafka)
    (newest,) = await place.written.commit_lsns()
    said = "Kafka has lost the newest markers"
    assert said in await checked(place.gateway, 78)
    place.gateway.start()
    await place.ends(said, "walgate accept-gap,")
    await place.insert(4)
    assert "take a new snapshot of the tables" in await walgate(place.gateway, "accept-gap")
    await place.gateway.streaming()
    await place.written.has("flows", {1, 4})
    (gap,) = await place.written.markers("GAP")
    assert (gap["marker_lsn"], gap["end_lsn"]) == (
        newest,
        before["resume_lsn"],
    ) and "Kafka had lost the markers" in gap["detail"]
    await place.stop()
    assert "can still be read through slot" in await walgate(place.gateway, "accept-gap", code=78)


async def test_positions_that_kafka_has_lost_are_told_from_a_slot_that_was_advanced(
    proxied_place: Place, proxied_kafka: ProxiedKafka
) -> None:
    place = proxied_place
    await _without_tail(POSITION_TOPIC, place, proxied_kafka)
    place.gateway.start()
    await place.ends(f"Kafka has lost the newest records of {POSITION_TOPIC}", "walgate accept-gap,")
    await place.insert(4)
    await walgate(place.gateway, "accept-gap")
    await place.gateway.streaming()
    await place.written.has("flows", {1, 2, 3, 4})
    lsns = await place.written.commit_lsns()
    assert len(lsns) == 4 and all(a < b for a, b in pairwise(lsns))


async def test_a_prepared_transaction_that_ended_within_a_gap_is_forgotten_and_one_that_ends_later_is_not(
    place: Place,
) -> None:
    place.gateway.settings["source__two_phase"] = "true"
    await place.gateway.streaming()
    for row_id in (1, 2):
        prepare = f"PREPARE TRANSACTION '{place.slot} {row_id}'"
        await place.sql.execute(f"BEGIN; INSERT INTO flows VALUES ({row_id}); {prepare}")
    await place.insert(3)
    await place.written.has("flows", {3})
    await place.stop()
    await place.sql.execute(f"COMMIT PREPARED '{place.slot} 1'")
    await _slot_advanced(place)
    await walgate(place.gateway, "accept-gap")
    await place.sql.execute(f"COMMIT PREPARED '{place.slot} 2'")
    await place.gateway.streaming()
    await place.insert(4)
    await place.written.has("flows", {2, 3, 4})
    await place.stop()
    assert (await place.written.position())["prepared"] == []
    assert [each["gid"] for each in place.gateway.events("prepared_transaction_forgotten")] == [f"{place.slot} 1"]


async def test_a_position_is_adopted_after_pg_upgrade_and_nothing_is_lost_or_doubled(
    kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with (
        Postgres(17, settings=TEST_SETTINGS) as old,
        Postgres(18, settings=TEST_SETTINGS, password=old.password) as new,
    ):
        sql = await old.connect()
        await sql.execute(TABLE)
        gateway = GatewayProcess(tmp_path / "gateway.log", _settings(old.dsn, kafka, registry, topic_prefix))
        written = Written(Topics(kafka.bootstrap_servers, registry.url), topic_prefix)
        place = Place(sql, topic_prefix, gateway, written)
        try:
            await gateway.streaming()
            await place.insert(*range(200))
            from_system = await sql.fetchval("SELECT system_identifier::text FROM pg_control_system()")
            await until_confirmed(sql, topic_prefix)
            await sql.close()
            await old.stop("fast")
            await gateway.end()
            await new.stop("fast")
            await asyncio.to_thread(_upgrade, old, new, tmp_path)
            await new.start()
            place.sql = sql = await new.connect()
            await place.insert(*range(200, 400))

            gateway.settings["source__dsn"] = new.dsn
            gateway.start()
            command = f"walgate adopt --from-system {from_system}"
            await place.ends("belongs to slot", command)
            assert "resumes at" in await walgate(gateway, *command.split()[1:])
            await gateway.streaming()
            await place.insert(400)
            await written.has("flows", set(range(401)))
            lsns = await written.commit_lsns()
            assert len(lsns) == 401 and all(a < b for a, b in pairwise(lsns))
            epochs = [marker["detail"] for marker in await written.markers("EPOCH")]
            assert epochs == [None, f"adopted from system identifier {from_system}", None]
            await place.stop()
            await gateway.streaming()
            await place.stop()
            assert "no resume LSN is stored" in await walgate(gateway, *command.split()[1:], code=78)
        finally:
            await gateway.end()


def _upgrade(old: Postgres, new: Postgres, folder: Path) -> None:
    """pg_upgrade --link, as the account that owns the data."""
    work = new.folder / "upgrade"
    work.mkdir()
    account = new.account
    if account is not None:
        os.chown(work, account.uid, account.gid)
    # Checksums are the default from 18 on, and must be the same in both.
    _run(old.program("pg_checksums"), "--enable", "--no-sync", "-D", old.data_folder, of=old, work=work)
    _run(
        *(new.program("pg_upgrade"), "--link"),
        *("--old-bindir", old.program("postgres").parent, "--new-bindir", new.program("postgres").parent),
        *("--old-datadir", old.data_folder, "--new-datadir", new.data_folder),
        *("--username", "postgres", "--socketdir", work),
        *("--old-options", _OPTIONS, "--new-options", _OPTIONS),
        of=new,
        work=work,
    )


def _run(*command: str | Path, of: Postgres, work: Path) -> None:
    account = of.account
    done = subprocess.run(
        command,
        cwd=work,
        env={"PGPASSWORD": of.password, "PATH": "/usr/bin:/bin"},
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


_OPTIONS = "-c wal_level=logical -c max_replication_slots=64 -c dynamic_shared_memory_type=mmap -c fsync=off"
