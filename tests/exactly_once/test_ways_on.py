"""Each way on that a stop names, followed to the letter: a gateway is stopped, its advice is taken,
and it streams again with nothing lost.

Settings and SQL are taken from the message where it has them. docs/stops.md names the test of each
stop (tests/stops.py).
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import asyncpg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from gateway.local import Kafka, Postgres, Registry
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC
from schemas.wire_format import frame
from tests.conftest import Database
from tests.exactly_once.test_postgres_faults import _give_as as give_as
from tests.support.gateway_process import GatewayProcess
from tests.support.proxy import ProxiedKafka
from tests.support.slots import until_free
from tests.support.topics import Topics
from tests.support.written import Written, checked, command, walgate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

_TABLE = "CREATE TABLE flows (id int PRIMARY KEY, v text); CREATE PUBLICATION walgate FOR ALL TABLES"
_SQL = re.compile(r"SELECT pg_drop_replication_slot\('\w+'\)")
_SETTING = re.compile(r"set (\w+)\.(\w+) = ([^\s,;]+)")
_TOPIC_CONFIG = re.compile(r"--entity-type topics --entity-name (\S+) --add-config ([\w.]+)=(\S+)")


@dataclass
class Place:
    """A database, a gateway for it, and what it has written. `wrong`: settings of the start that is
    to stop; None: unset."""

    database: Database
    sql: asyncpg.Connection
    servers: str
    topics: Topics
    gateway: GatewayProcess
    folder: Path
    registry_port: int

    def __post_init__(self) -> None:
        self.wrong: dict[str, object] = {}
        self.inserted: set[int] = set()
        self.numbers = count()
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    @property
    def slot(self) -> str:
        return str(self.gateway.settings["source__slot"])

    @property
    def prefix(self) -> str:
        return str(self.gateway.settings["kafka__prefix"])

    async def insert(self) -> None:
        number = next(self.numbers)
        await self.sql.execute("INSERT INTO flows VALUES ($1)", number)
        self.inserted.add(number)

    async def streams(self) -> None:
        """One row more, and every row is in Kafka, once it has been started."""
        await self.gateway.streaming()
        await self.insert()
        await Written(self.topics, self.prefix).has("flows", self.inserted)

    async def stop(self) -> None:
        assert await self.gateway.stop() == 0
        await until_free(self.sql, self.slot)

    async def ends(self) -> str:
        """With exit code 78, and what it says."""
        failpoints = str(self.wrong.pop("failpoints", ""))
        self.gateway.start(failpoints, **self.wrong)
        assert await self.gateway.wait(60) == 78, self.gateway.log_tail()
        last = self.gateway.log_tail(1)
        if not last.startswith("{"):  # there was no log yet
            return self.gateway.log().rpartition("walgate: ")[2]
        stopped = json.loads(last)
        return f"{stopped['reason']}\n{stopped['hint']}"

    def set(self, **settings: object) -> None:
        self.gateway.settings |= settings

    async def new_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        new = NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})
        await asyncio.to_thread(self.admin.create_topics([new])[topic].result, 30)

    async def add_partition(self, topic: str) -> None:
        await asyncio.to_thread(self.admin.create_partitions([NewPartitions(topic, 2)])[topic].result, 30)

    async def delete_topic(self, topic: str) -> None:
        await asyncio.to_thread(self.admin.delete_topics([topic])[topic].result, 30)
        while topic in (await asyncio.to_thread(self.admin.list_topics, timeout=30)).topics:
            await asyncio.sleep(0.1)

    async def accept_gap(self, *options: str) -> None:
        await until_free(self.sql, self.slot)
        assert "take a new snapshot of the tables" in await walgate(self.gateway, "accept-gap", *options)

    async def set_topic(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        await asyncio.to_thread(self.admin.incremental_alter_configs([resource])[resource].result, 30)

    async def key(self) -> str:
        """Of the position."""
        system = await self.sql.fetchval("SELECT system_identifier::text FROM pg_control_system()")
        return f"{system}/{self.database.name}/{self.slot}"

    async def send(self, topic: str, key: str, value: bytes | None) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(topic, value, key)
        assert await asyncio.to_thread(producer.flush, 30) == 0


@pytest.fixture
async def place(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async for made in _place(database, kafka, registry, topic_prefix, tmp_path):
        yield made


@pytest.fixture
async def old_place(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async for made in _place(database_oldest, kafka, registry, topic_prefix, tmp_path):
        yield made


async def _place(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path
) -> AsyncIterator[Place]:
    sql = await database.connect()
    await sql.execute(_TABLE)
    settings = {
        "source__dsn": database.dsn,
        "source__slot": prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "registry__url": registry.url,
        "snapshot__mode": "never",
    }
    gateway = GatewayProcess(folder / "gateway.log", settings)
    topics = Topics(kafka.bootstrap_servers, registry.url)
    yield Place(database, sql, kafka.bootstrap_servers, topics, gateway, folder, registry.port)
    await gateway.end()


Cause = Callable[[Place], Awaitable[None]]
Way = Callable[[Place, str], Awaitable[None]]


@dataclass(frozen=True)
class Walk:
    """`first`: the cause is there before the first start."""

    said: str
    cause: Cause
    way: Way
    first: bool = False

    async def follow(self, place: Place) -> None:
        if not self.first:  # what commits before the slot is there is not in its stream
            await place.streams()
            await place.stop()
            await place.insert()
        await self.cause_and_leave(place)

    async def cause_and_leave(self, place: Place) -> None:
        await self.cause(place)
        said = await place.ends()
        assert self.said in said, said
        place.wrong.clear()
        await self.way(place, said)
        await place.streams()
        await place.stop()


def _with(**settings: object) -> Cause:
    """A setting that is wrong; `{prefix}`, `{dsn}` and `{folder}` are filled in."""

    async def cause(place: Place) -> None:
        for name, value in settings.items():
            if isinstance(value, str):
                for word, what in (
                    ("{prefix}", place.prefix),
                    ("{dsn}", place.database.dsn),
                    ("{folder}", place.folder),
                ):
                    value = value.replace(word, str(what))
            place.wrong[name] = value

    return cause


async def _left_out(place: Place, said: str) -> None:
    """The setting, or the part of it, that the message complains of is taken back."""


async def _set_as_told(place: Place, said: str) -> None:
    """`set section.name = value` of the hint."""
    found = _SETTING.search(said)
    assert found, said
    place.set(**{f"{found[1]}__{found[2]}": found[3]})


async def _run_as_told(place: Place, said: str) -> None:
    found = _SQL.search(said)
    assert found, said
    await place.sql.execute(found[0])


async def _topic_as_told(place: Place, said: str) -> None:
    found = _TOPIC_CONFIG.search(said)
    assert found, said
    await place.set_topic(*found.groups())


# -- states of servers
# --------------------------------------------------------------------------------------------------


async def _slot_without_position(place: Place) -> None:
    await place.sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", place.slot)


async def _physical_slot(place: Place) -> None:
    await place.sql.execute("SELECT pg_create_physical_replication_slot($1)", place.slot)


async def _slot_of_another_plugin(place: Place) -> None:
    await place.sql.execute("SELECT pg_create_logical_replication_slot($1, 'test_decoding')", place.slot)


async def _slot_of_another_database(place: Place) -> None:
    other = await place.database.server.connect()
    await other.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", place.slot)
    await other.close()


async def _another_slot(place: Place, said: str) -> None:
    assert "choose another source.slot" in said
    first = place.slot
    place.set(source__slot=f"{place.slot}_other")
    server = await place.database.server.connect()
    await server.execute("SELECT pg_drop_replication_slot($1)", first)
    await server.close()


async def _position_lost(place: Place) -> None:
    await place.send(POSITION_TOPIC, await place.key(), None)


async def _another_prefix(place: Place, said: str) -> None:
    """The hints of both stops, one after the other. What the slot had confirmed stays under the
    first prefix."""
    assert "set another kafka.prefix" in said
    place.inserted = {max(place.inserted)}
    place.set(kafka__prefix=f"{place.prefix}_other")
    assert "set source.adopt_slot = true" in await place.ends()
    place.set(source__adopt_slot=True)


async def _prefix_of_another_slot(place: Place) -> None:
    place.set(source__slot=f"{place.slot}_other")


async def _prefix_of_its_own(place: Place, said: str) -> None:
    """The other slot begins now."""
    assert "set another kafka.prefix" in said
    place.inserted.clear()
    place.set(kafka__prefix=f"{place.prefix}_other")


async def _topic_that_collides(place: Place) -> None:
    await place.new_topic(f"{place.prefix}_transaction")


async def _colliding_topic_deleted(place: Place, said: str) -> None:
    assert "or delete the other topic" in said
    await place.delete_topic(f"{place.prefix}_transaction")


async def _markers_of_two_partitions(place: Place) -> None:
    await place.new_topic(f"{place.prefix}.transaction", 2)


async def _topic_deleted_as_told(place: Place, said: str) -> None:
    found = re.search(r"topic (\S+) has 2 partitions", said)
    assert found and "you can instead delete the topic" in said, said
    await place.delete_topic(found[1])


async def _positions_may_be_deleted(place: Place) -> None:
    await place.set_topic(POSITION_TOPIC, "cleanup.policy", "delete")


async def _states_may_be_deleted(place: Place) -> None:
    place.set(snapshot__mode="initial")
    await place.streams()
    await place.stop()
    await place.insert()
    await place.set_topic(SNAPSHOT_TOPIC, "cleanup.policy", "delete")


async def _markers_deleted(place: Place) -> None:
    await place.delete_topic(f"{place.prefix}.transaction")
    await place.new_topic(f"{place.prefix}.transaction")


async def _loaded_again(place: Place, said: str) -> None:
    """A snapshot loads the tables."""
    assert re.search("use a new source.slot and a new kafka.prefix, .*take a new snapshot of the tables", said), said
    refused = await walgate(place.gateway, "accept-gap", code=78)
    assert "is empty" in refused and "take a new snapshot of the tables" in refused
    new = f"{place.prefix}_new"
    place.set(source__slot=new, kafka__prefix=new, snapshot__mode="initial")


async def _refused_config(place: Place) -> None:
    place.wrong["kafka__topics"] = '[{"pattern": ".*", "config": {"no.such.setting": "1"}}]'


async def _refused_config_of_a_new_table(place: Place) -> None:
    """The first by its name is tried."""
    await place.sql.execute("CREATE TABLE accounts (id int PRIMARY KEY)")
    await _refused_config(place)


async def _key_sent_in_part(place: Place) -> None:
    await place.sql.execute("CREATE TABLE parts (a int, b int, PRIMARY KEY (a, b))")
    await place.sql.execute(
        "DROP PUBLICATION walgate; CREATE PUBLICATION walgate FOR TABLE flows, parts (a) WITH (publish = 'insert')"
    )


async def _identity_full_as_told(place: Place, said: str) -> None:
    found = re.search(r"ALTER TABLE \S+ REPLICA IDENTITY FULL", said)
    assert found, said
    await place.sql.execute(found[0])


async def _table_given_the_topic_of_another(place: Place) -> None:
    await place.sql.execute("CREATE TABLE first (id int PRIMARY KEY)")
    place.set(kafka__topic_names=f'{{"public.first": "{place.prefix}.given"}}')
    await place.gateway.streaming()
    await place.sql.execute("INSERT INTO first VALUES (1)")
    await asyncio.to_thread(place.topics.read, f"{place.prefix}.given")
    await place.stop()
    await place.sql.execute("CREATE TABLE second (id int PRIMARY KEY); INSERT INTO second VALUES (1)")
    place.set(kafka__topic_names=f'{{"public.second": "{place.prefix}.given"}}')


async def _topic_of_its_own(place: Place, said: str) -> None:
    assert "give the table a topic that no other table has ever used" in said
    place.set(kafka__topic_names=f'{{"public.second": "{place.prefix}.second_given"}}')


async def _rule_for_a_key(place: Place) -> None:
    place.set(columns__rules='[{"pattern": "public.keyed.v", "action": "hash"}]', columns__hash_key="x" * 32)
    await place.sql.execute("CREATE TABLE keyed (v text PRIMARY KEY); INSERT INTO keyed VALUES ('a')")


async def _in_key_as_told(place: Place, said: str) -> None:
    assert "in_key = true in the rule" in said
    place.set(columns__rules='[{"pattern": "public.keyed.v", "action": "hash", "in_key": true}]')


def _junk_position(value: bytes) -> Cause:
    async def cause(place: Place) -> None:
        await place.send(POSITION_TOPIC, await place.key(), value)

    return cause


async def _taken_away_as_told(place: Place, said: str) -> str:
    """`send a record with the key ... and a null value to ...`"""
    found = re.search(
        r"send a record with the key (\S+) and a null value to (\S+) \(docs/gap.md, Delete an unreadable record\),",
        said,
    )
    assert found, said
    await place.send(found[2], found[1], None)
    return said.partition(found[0])[2]


async def _adopted_and_loaded(place: Place, said: str) -> None:
    rest = await _taken_away_as_told(place, said)
    assert (
        "set another kafka.prefix and source.adopt_slot = true, start the gateway, and take a new snapshot of the tables"
        in rest
    )
    place.set(kafka__prefix=f"{place.prefix}_other", source__adopt_slot=True, snapshot__mode="initial")


async def _junk_state(place: Place) -> None:
    place.set(snapshot__mode="initial")
    await place.insert()
    await place.streams()
    await place.stop()
    await place.insert()
    oid = await place.sql.fetchval("SELECT 'flows'::regclass::oid::int8")
    await place.send(SNAPSHOT_TOPIC, f"{await place.key()}#{oid}", b"junk")


async def _read_again(place: Place, said: str) -> None:
    assert (
        "start the gateway, and take a new snapshot of the tables: walgate snapshot start"
        in await _taken_away_as_told(place, said)
    )
    await _load_again(place)


async def _prepared_in_a_gap(place: Place) -> None:
    place.set(source__two_phase=True)
    await place.streams()
    await place.stop()
    await place.sql.execute(f"BEGIN; INSERT INTO flows VALUES (1000); PREPARE TRANSACTION '{place.slot}'")
    await place.sql.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", place.slot)
    said = await place.ends()
    assert "another process advanced the slot by" in said and "run walgate accept-gap," in said, said
    await place.accept_gap()
    await place.sql.execute(f"COMMIT PREPARED '{place.slot}'")


async def _gap_up_to_now(place: Place, said: str) -> None:
    """What was prepared is in the table, so that a load of it has it."""
    assert "run walgate accept-gap --until-now" in said and "take a new snapshot of the tables" in said, said
    await place.accept_gap("--until-now")
    place.set(snapshot__mode="on_command")
    place.inserted.add(1000)
    await _load_again(place)


async def _load_again(place: Place) -> None:
    await place.gateway.streaming()
    before = len(place.gateway.events("snapshot_done"))
    assert "not published by" in await walgate(place.gateway, "snapshot", "start", "public.nothing", code=78)
    await walgate(place.gateway, "snapshot", "start")
    await place.gateway.logged('"snapshot_done"', times=before + 1)
    await place.stop()


STATES: dict[str, Walk] = {
    "slot dropped": Walk(
        "so it is not known which changes have been consumed through it",
        _slot_without_position,
        _run_as_told,
        first=True,
    ),
    "slot adopted": Walk(
        "so it is not known which changes have been consumed through it",
        _slot_without_position,
        _set_as_told,
        first=True,
    ),
    "physical": Walk("is physical, not logical", _physical_slot, _another_slot, first=True),
    "plugin": Walk("has the output plugin", _slot_of_another_plugin, _another_slot, first=True),
    "database": Walk("belongs to database", _slot_of_another_database, _another_slot, first=True),
    "position lost": Walk("has been used before, but no resume LSN", _position_lost, _another_prefix),
    "prefix of another": Walk("belongs to slot", _prefix_of_another_slot, _prefix_of_its_own),
    "topic collides": Walk("could not be created", _topic_that_collides, _colliding_topic_deleted, first=True),
    "markers split": Walk("has 2 partitions", _markers_of_two_partitions, _topic_deleted_as_told, first=True),
    "markers deleted": Walk("the topic was deleted and recreated", _markers_deleted, _loaded_again),
    "topic refused": Walk("could not be created", _refused_config, _left_out, first=True),
    "key in part": Walk(", part of the replica identity of", _key_sent_in_part, _identity_full_as_told, first=True),
    "topic given": Walk("but the topic contains changes of", _table_given_the_topic_of_another, _topic_of_its_own),
    "prepared in a gap": Walk(
        "but its PREPARE TRANSACTION was never received", _prepared_in_a_gap, _gap_up_to_now, first=True
    ),
    "key protected": Walk("is part of the key", _rule_for_a_key, _in_key_as_told),
}


# In topics that all gateways of a broker share: on a broker of their own.
SHARED: dict[str, Walk] = {
    "position of no frame": Walk("does not contain a resume LSN", _junk_position(b"junk"), _adopted_and_loaded),
    "position of no schema": Walk(
        "was not written with a schema of this registry", _junk_position(frame(1 << 30) + b"junk"), _adopted_and_loaded
    ),
    "snapshot": Walk("does not contain the state of a snapshot", _junk_state, _read_again, first=True),
    "positions deletable": Walk("retention would delete the resume LSNs", _positions_may_be_deleted, _topic_as_told),
    "states deletable": Walk(
        "retention would delete the progress of snapshots", _states_may_be_deleted, _topic_as_told, first=True
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", list(SHARED))
async def test_what_all_gateways_share_is_mended_as_the_message_says(
    name: str, database: Database, proxied_kafka: ProxiedKafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async for place in _place(database, proxied_kafka, registry, topic_prefix, tmp_path):
        await SHARED[name].follow(place)
        await place.delete_topic(POSITION_TOPIC)  # whoever reads it would stumble over what was done to it
        if name == "snapshot":
            await place.delete_topic(SNAPSHOT_TOPIC)


@pytest.mark.long
@pytest.mark.parametrize("name", list(STATES))
async def test_a_state_that_stops_the_gateway_is_left_as_the_message_says(name: str, place: Place) -> None:
    await STATES[name].follow(place)


@pytest.mark.long
@pytest.mark.parametrize(("name", "value"), [("source__failover", True), ("source__origin", "none")])
async def test_what_an_older_server_does_not_know_is_set_back(name: str, value: object, old_place: Place) -> None:
    await old_place.streams()
    await old_place.stop()
    await old_place.insert()
    old_place.wrong[name] = value
    said = await old_place.ends()
    assert "or newer" in said
    old_place.wrong.clear()
    await _set_as_told(old_place, said)
    await old_place.streams()
    await old_place.stop()


@pytest.mark.long
async def test_a_lost_slot_of_an_older_server_is_left_behind(old_place: Place) -> None:
    await old_place.streams()
    await old_place.stop()
    await old_place.insert()
    lost = max(old_place.inserted)
    sql = old_place.sql
    await sql.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    await sql.execute("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            await sql.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
        await sql.execute("CHECKPOINT")
    finally:
        await sql.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        await sql.execute("SELECT pg_reload_conf()")
    said = await old_place.ends()
    assert "has been invalidated: WAL that it needs was removed" in said and "run walgate accept-gap" in said
    await old_place.accept_gap()
    old_place.inserted.discard(lost)
    await old_place.gateway.streaming()
    await sql.execute("INSERT INTO flows VALUES (100)")
    await Written(old_place.topics, old_place.prefix).has("flows", old_place.inserted | {100})
    await old_place.stop()


@pytest.mark.long
async def test_a_slot_that_is_older_than_its_publication_is_made_again(old_place: Place) -> None:
    await old_place.sql.execute("DROP PUBLICATION walgate")
    await old_place.sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", old_place.slot)
    await old_place.insert()
    await old_place.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
    old_place.wrong["source__adopt_slot"] = True
    said = await old_place.ends()
    assert "was created before its publication" in said, said
    old_place.wrong.clear()
    assert "walgate accept-gap --until-now" in said, said
    await old_place.accept_gap("--until-now")
    old_place.inserted.clear()
    await old_place.streams()
    await old_place.stop()


@pytest.mark.long
@pytest.mark.parametrize("was_promoted", [False, True])
async def test_a_server_that_was_set_back_is_read_on(
    was_promoted: bool, own_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Restored from a backup: what it has lost stays in Kafka, marked, and LSNs go on rising.

    `was_promoted`: the backup is on an earlier timeline.
    """
    server = own_database.server
    async for place in _place(own_database, kafka, registry, topic_prefix, tmp_path):
        await place.streams()
        await place.stop()
        await server.stop("fast")
        data = server.data_folder
        backup = data.with_name("backup")
        shutil.copytree(data, backup, symlinks=True)
        give_as(data, backup)
        if was_promoted:
            (data / "standby.signal").touch()
            give_as(data, data / "standby.signal")
        await server.start()
        place.sql = await own_database.connect()
        if was_promoted:
            assert await place.sql.fetchval("SELECT pg_promote()")
        await place.streams()
        await place.stop()
        await server.stop("fast")
        shutil.rmtree(data)
        backup.rename(data)
        await server.start()
        place.sql = await own_database.connect()

        if was_promoted:
            place.gateway.start()
            await place.gateway.logged("this server is an old primary")
            assert await place.gateway.stop() == 0
            assert "walgate accept-gap --until-now" in place.gateway.events("restarting")[-1]["hint"]
        else:
            said = await place.ends()
            assert "the server is in an earlier state" in said and "walgate accept-gap --until-now" in said
        while (
            "before the resume LSN"
            in (told := await command(place.gateway.settings, "accept-gap", "--until-now")).stderr
        ):
            assert told.returncode == 78 and "SELECT pg_switch_wal(), which switches" in told.stderr
            await place.sql.execute("CREATE TABLE IF NOT EXISTS written (); INSERT INTO written DEFAULT VALUES")
            await place.sql.execute("SELECT pg_switch_wal()")
        assert told.returncode == 0 and "take a new snapshot of the tables" in told.stdout
        await place.streams()
        await place.stop()


@pytest.mark.long
async def test_a_server_whose_wal_was_removed_is_read_on_behind_it(
    own_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async for place in _place(own_database, kafka, registry, topic_prefix, tmp_path):
        await place.streams()
        await place.stop()
        await place.insert()
        lost = max(place.inserted)
        segment = await place.sql.fetchval(
            "SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots WHERE slot_name = $1", place.slot
        )
        for _ in range(2):
            await place.sql.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
        await place.sql.execute("CHECKPOINT")
        (own_database.server.data_folder / "pg_wal" / segment).unlink()
        said = await place.ends()
        assert "the server has removed WAL that slot" in said and "run walgate accept-gap --until-now" in said, said
        await place.accept_gap("--until-now")
        place.inserted.discard(lost)
        await place.streams()
        await place.stop()


@pytest.mark.long
async def test_a_database_that_is_renamed_is_read_on(place: Place) -> None:
    """With the snapshots that it has taken; by a gateway, and by a command that comes before it."""
    place.set(snapshot__mode="initial")
    await place.streams()
    await place.gateway.logged('"snapshot_done"')
    await place.stop()
    await place.insert()
    former, renamed = place.database, Database(place.database.server, f"{place.database.name}_renamed")
    await rename(place, renamed)
    try:
        assert "the gateway would start" in await checked(place.gateway, 0)
        await place.streams()
        assert (await Written(place.topics, place.prefix).position())["database"] == renamed.name
        await place.stop()
        kept = set(place.inserted)
        await place.insert()
    finally:
        await place.gateway.end()
        await rename(place, former)
    await place.accept_gap("--until-now")
    place.inserted = kept
    await place.streams()
    assert (await Written(place.topics, place.prefix).position())["database"] == former.name
    assert len(place.gateway.events("snapshot_done")) == 1 and not place.gateway.events("tables_not_read")
    await place.stop()


async def rename(place: Place, database: Database) -> None:
    await place.sql.close()
    server = await database.server.connect()
    await server.execute(f"ALTER DATABASE {place.database.name} RENAME TO {database.name}")
    await server.close()
    place.database, place.sql = database, await database.connect()
    place.set(source__dsn=database.dsn)


@pytest.mark.long
async def test_what_postgresql_14_cannot_print_is_sent_in_binary(old_place: Place) -> None:
    old_place.set(source__binary="off")
    await old_place.streams()
    await old_place.stop()
    await old_place.sql.execute("CREATE TABLE lengths (id int PRIMARY KEY, v interval)")
    await old_place.sql.execute("INSERT INTO lengths VALUES (1, interval '-2000000000 hours' * 1.2)")
    await old_place.insert()
    said = await old_place.ends()
    assert "PostgreSQL 14 cannot convert intervals above 2^31 hours to text" in said, said
    await _set_as_told(old_place, said)
    await old_place.streams()
    await Written(old_place.topics, old_place.prefix).has("lengths", {1})
    await old_place.stop()


async def _row_corrected(place: Place) -> None:
    await place.sql.execute("UPDATE flows SET v = '' WHERE id = 1000")


async def _column_left_out(place: Place) -> None:
    await place.sql.execute("DROP PUBLICATION walgate; CREATE PUBLICATION walgate FOR TABLE flows (id)")


@pytest.mark.long
@pytest.mark.parametrize("remove", [_row_corrected, _column_left_out])
async def test_text_that_cannot_be_sent_is_given_up(
    remove: Cause, postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """A byte that is no character of the database's encoding, and that no check refuses."""
    server = await postgres.connect()
    await server.execute(
        f"CREATE DATABASE {topic_prefix} ENCODING 'WIN1252' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        async for place in _place(Database(postgres, topic_prefix), kafka, registry, topic_prefix, tmp_path):
            await place.streams()
            await place.stop()
            await place.sql.execute("INSERT INTO flows VALUES (1000, chr(129))")
            said = await place.ends()
            assert "the server cannot convert a text value to UTF8" in said, said
            assert "leave its column out of the publication" in said, said
            await remove(place)
            assert "run walgate accept-gap --until-now" in said
            await place.accept_gap("--until-now")
            await place.streams()
            value = "chr(129)" if remove is _column_left_out else "''"
            await place.sql.execute(f"INSERT INTO flows VALUES (1001, {value})")
            await Written(place.topics, place.prefix).has("flows", place.inserted | {1001})
            await place.stop()
            await place.sql.execute("SELECT pg_drop_replication_slot($1)", place.slot)
    finally:
        await server.execute(f"DROP DATABASE {topic_prefix} WITH (FORCE)")
        await server.close()


@pytest.mark.long
async def test_a_database_of_unknown_encoding_is_moved_to_one_of_utf8(place: Place) -> None:
    await place.sql.execute(
        f"CREATE DATABASE {place.prefix} ENCODING SQL_ASCII TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    place.wrong["source__dsn"] = place.database.server.database_dsn(place.prefix)
    try:
        said = await place.ends()
        assert "has the encoding SQL_ASCII" in said and "ENCODING 'UTF8'" in said
    finally:
        await place.sql.execute(f"DROP DATABASE {place.prefix} WITH (FORCE)")
    place.wrong.clear()
    await place.streams()
    await place.stop()


# -- commands
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_command_that_is_refused_leaves_everything_as_it_was(place: Place) -> None:
    system = await place.sql.fetchval("SELECT system_identifier::text FROM pg_control_system()")
    commands = {
        "has already been delivered": ("skip", "--lsn", "0/1"),
        "nothing has been committed at": ("skip", "--lsn", "FFFF/1"),
        "is not in quarantine": ("readmit", "public.flows"),
        "can still be read through slot": ("accept-gap",),
        "adopt: no resume LSN is stored for slot": ("adopt", "--from-system", "1"),
        "already has a resume LSN": ("adopt", "--from-system", system),
    }
    await place.streams()
    await place.stop()
    for said, words in commands.items():
        await place.insert()
        assert said in await walgate(place.gateway, *words, code=78)
        await place.streams()
        await place.stop()
    for said, content in {
        "cannot be read": None,
        "this is not an offset of a Debezium connector": b"{}",
        "found 0 offsets for topic prefix": offsets("another"),
    }.items():
        await place.insert()
        path = place.folder / "offsets.json"
        if content is not None:
            path.write_bytes(content)
        debezium = {**place.gateway.settings, "kafka__dialect": "debezium"}
        told = await command(debezium, "adopt", "--from-debezium", str(path))
        assert told.returncode == 78 and said in told.stderr, told.stderr
        await place.streams()
        await place.stop()
    right = dict(place.gateway.settings)
    for said, wrong in {
        "are written with the topic prefix": {"kafka__prefix": f"{place.prefix}_other"},
        "no resume LSN is stored for slot": {"source__slot": f"{place.slot}_other"},
    }.items():
        await place.insert()
        place.set(**wrong)
        assert said in await walgate(place.gateway, "readmit", "public.flows", code=78)
        place.gateway.settings = dict(right)
        await place.streams()
        await place.stop()


def offsets(server: str) -> bytes:
    """The response of Kafka Connect."""
    offset = {"lsn": 1 << 60, "lsn_commit": 1, "txId": 1, "messageType": "INSERT"}
    return json.dumps({"offsets": [{"partition": {"server": server}, "offset": offset}]}).encode()


@pytest.mark.long
async def test_a_verification_that_is_refused_is_asked_for_as_the_message_says(place: Place) -> None:
    """As far as one gets without a mirror: to no verdict."""
    place.set(snapshot__mode="initial")
    await place.streams()
    (place.folder / "pyarrow.py").write_text("raise ImportError")
    folder, url = ("--mirror", str(place.folder)), ("--mirror", f"file://{place.folder}")
    for said, hint, words, environment in (
        ("is not a directory", "the path that was given to walgate mirror", (*folder[:1], "/none"), {}),
        ("PyArrow cannot open it", "use a path or a URL that pyarrow.fs knows (file, ", (*folder[:1], "none://x"), {}),
        ("reading it needs PyArrow", "or mount the directory", url, {"PYTHONPATH": str(place.folder)}),
        ("no published table matches --table", "a pattern is schema.table or table", (*folder, "--table", "none"), {}),
    ):
        refused = await command(place.gateway.settings, "verify", *words, environment=environment)
        assert refused.returncode == 78 and said in refused.stderr and hint in refused.stderr, refused.stderr
    for words in (folder, url, (*folder, "--table", "public.flows"), (*folder, "--table", "fl?w*")):
        begun = await command(place.gateway.settings, "verify", "--timeout", "1", *words)
        assert begun.returncode == 2, begun.stderr
    await place.stop()
    await place.streams()
    await place.stop()


# -- the check
# ----------------------------------------------------------------------------------------------------------


async def _markers_compacted(place: Place) -> None:
    await place.set_topic(f"{place.prefix}.transaction", "cleanup.policy", "compact")


CHECKS: dict[str, Walk] = {
    "tls": Walk("does not use TLS", _with(kafka__security_protocol="SSL"), _set_as_told),
    "login": Walk(
        "does not use SASL",
        _with(kafka__security_protocol="SASL_PLAINTEXT", kafka__sasl_username="u", kafka__sasl_password="p"),
        _set_as_told,
    ),
    "transactions": Walk("allows a transaction timeout of", _with(kafka__transaction_timeout_s=1000), _set_as_told),
    "refused": Walk("Kafka would reject the request to create", _refused_config_of_a_new_table, _left_out),
    "requests": Walk("accept requests of at most", _with(kafka__max_record_bytes=200 << 20), _left_out),
    "markers": Walk("is compacted", _markers_compacted, _topic_as_told),
}


@pytest.mark.long
async def test_what_the_check_says_lets_the_gateway_stream(place: Place) -> None:
    await place.streams()
    original = dict(place.gateway.settings)
    for walk in CHECKS.values():
        await place.stop()
        await place.insert()
        await walk.cause(place)
        said = await checked(place.gateway, 78, **place.wrong)
        assert walk.said in said, said
        place.wrong.clear()
        await walk.way(place, said)
        await checked(place.gateway, 0)
        await place.streams()
        place.gateway.settings = dict(original)
