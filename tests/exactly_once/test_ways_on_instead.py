"""Where a message names more than one way on: those that test_ways_on*.py leave out, each to a
gateway that streams again."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from gateway.local.kafka import QUICK_START
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC
from tests.conftest import Database
from tests.exactly_once.test_ways_on import (
    Place,
    Walk,
    _key_sent_in_part,
    _load_again,
    _markers_of_two_partitions,
    _place,
    _position_lost,
    _topic_that_collides,
    _with,
)
from tests.support.gateway_process import COMMAND, OPTIONS
from tests.support.proxy import ProxiedKafka
from tests.support.slots import until_free
from tests.support.written import Written, checked

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

_CONFIG_OF_FLOWS = '[{"pattern": ".*flows", "config": {"no.such.setting": "1"}}]'


@pytest.fixture
async def place(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async for made in _place(database, kafka, registry, topic_prefix, tmp_path):
        yield made


# -- a new slot, a new prefix
# ------------------------------------------------------------------------------------------


async def _slot_dropped(place: Place) -> None:
    await place.sql.execute("SELECT pg_drop_replication_slot($1)", place.slot)


async def _slot_advanced(place: Place) -> None:
    await place.sql.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", place.slot)


async def _publication_dropped(place: Place) -> None:
    await place.sql.execute("DROP PUBLICATION walgate")
    await place.insert()
    await place.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")


async def _topic_deleted(place: Place) -> None:
    await place.delete_topic(f"{place.prefix}.public.flows")


async def begin_anew(place: Place) -> None:
    """Another slot and another prefix; the first snapshot loads the tables, and the old slot
    goes."""
    await until_free(place.sql, place.slot)
    old, new = place.slot, f"{place.slot}_new"
    place.set(source__slot=new, kafka__prefix=new, snapshot__mode="initial", source__adopt_slot=False)
    before = len(place.gateway.events("snapshot_done"))
    await place.gateway.streaming()
    await place.gateway.logged('"snapshot_done"', times=before + 1)
    await place.stop()
    await place.sql.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", old
    )
    await place.insert()


async def _anew(place: Place, said: str) -> None:
    assert re.search(
        "use a new source.slot and a new kafka.prefix.*take a new snapshot of the tables",
        said,
    ), said
    await begin_anew(place)


async def _prefix_and_a_new_slot(place: Place, said: str) -> None:
    assert "or use a new slot" in said, said
    place.set(source__slot=f"{place.slot}_other", kafka__prefix=f"{place.prefix}_other", snapshot__mode="initial")


async def _only_another_prefix(place: Place, said: str) -> None:
    assert re.search("(use|set) another kafka.prefix", said), said
    place.set(kafka__prefix=f"{place.prefix}_other")


async def _topics_deleted(place: Place, said: str) -> None:
    """Both hints, one after the other."""
    assert "or delete the topics with this prefix if their records are no longer needed" in said, said
    for topic in place.admin.list_topics(timeout=30).topics:
        if topic.startswith(f"{place.prefix}."):
            await place.delete_topic(topic)
    assert "choose another source.slot, or drop this slot" in await place.ends()
    place.set(source__slot=f"{place.slot}_other", snapshot__mode="initial")


# -- publications, topics, rules
# ---------------------------------------------------------------------------------------


async def _columns_published(place: Place, said: str) -> None:
    assert "add these columns to the column list" in said, said
    await place.sql.execute(
        "ALTER PUBLICATION walgate DROP TABLE parts; ALTER PUBLICATION walgate ADD TABLE parts (a, b)"
    )


async def _topic_made(place: Place, said: str) -> None:
    found = re.search(r"topic (\S+) could not be created", said)
    assert found and "or create the topic yourself" in said, said
    await place.new_topic(found[1])
    place.set(kafka__topics=_CONFIG_OF_FLOWS)


async def _topic_of_one_table_collides(place: Place) -> None:
    await place.sql.execute("CREATE TABLE second (id int PRIMARY KEY)")
    await place.new_topic(f"{place.prefix}_given")
    place.set(kafka__topic_names=f'{{"public.second": "{place.prefix}.given"}}')


async def _topic_named(place: Place, said: str) -> None:
    assert "for one table, another topic with kafka.topic_names" in said, said
    place.set(kafka__topic_names=f'{{"public.second": "{place.prefix}.another"}}')


async def _rule_that_empties_a_key(place: Place) -> None:
    place.set(columns__rules='[{"pattern": "public.keyed.*", "action": "null"}]')
    await place.sql.execute("CREATE TABLE keyed (v text PRIMARY KEY); INSERT INTO keyed VALUES ('a')")


async def _hashed(place: Place, said: str) -> None:
    assert "set action = hash and in_key = true" in said, said
    place.set(columns__rules='[{"pattern": "public.keyed.*", "action": "hash", "in_key": true}]')
    place.set(columns__hash_key="x" * 32)


async def _excluded(place: Place, said: str) -> None:
    assert "or exclude the column from the rule's pattern" in said, said
    place.set(columns__rules='[{"pattern": "public.keyed.w", "action": "null"}]')


WALKS: dict[str, Walk] = {
    "slot dropped": Walk("no longer exists", _slot_dropped, _anew),
    "slot advanced": Walk("another process advanced the slot by", _slot_advanced, _anew),
    "publication dropped": Walk("because a publication did not exist", _publication_dropped, _anew),
    "topic deleted": Walk("these topics were deleted: ", _topic_deleted, _anew),
    "prefix changed": Walk(
        "are written with the topic prefix", _with(kafka__prefix="{prefix}_other"), _prefix_and_a_new_slot
    ),
    "position lost": Walk("has been used before, but no resume LSN", _position_lost, _topics_deleted),
    "markers split": Walk("has 2 partitions", _markers_of_two_partitions, _only_another_prefix, first=True),
    "topic collides": Walk("could not be created", _topic_that_collides, _only_another_prefix, first=True),
    "topic of one table collides": Walk("could not be created", _topic_of_one_table_collides, _topic_named, first=True),
    "topic refused": Walk("could not be created", _with(kafka__topics=_CONFIG_OF_FLOWS), _topic_made, first=True),
    "key in part": Walk(", part of the replica identity of", _key_sent_in_part, _columns_published, first=True),
    "key emptied, then hashed": Walk("is part of the key", _rule_that_empties_a_key, _hashed),
    "key emptied, then left": Walk("is part of the key", _rule_that_empties_a_key, _excluded),
}


@pytest.mark.parametrize("name", list(WALKS))
async def test_the_other_way_that_a_message_names_leads_on_too(name: str, place: Place) -> None:
    await WALKS[name].follow(place)


async def _positions_split(place: Place) -> None:
    await place.add_partition(POSITION_TOPIC)


async def _positions_deleted(place: Place, said: str) -> None:
    assert "delete the topic" in said and "a new source.slot, a new kafka.prefix and a new snapshot" in said, said
    await place.delete_topic(POSITION_TOPIC)
    await begin_anew(place)


async def _snapshots_split(place: Place) -> None:
    place.set(snapshot__mode="initial")
    await place.streams()
    await place.stop()
    await place.insert()
    await place.add_partition(SNAPSHOT_TOPIC)


async def _snapshots_deleted(place: Place, said: str) -> None:
    assert "delete the topic" in said and "start the incomplete snapshots again: walgate snapshot start" in said, said
    await place.delete_topic(SNAPSHOT_TOPIC)
    await _load_again(place)


SPLIT: dict[str, Walk] = {
    "positions": Walk(f"{POSITION_TOPIC} has 2 partitions", _positions_split, _positions_deleted),
    "snapshots": Walk(f"{SNAPSHOT_TOPIC} has 2 partitions", _snapshots_split, _snapshots_deleted, first=True),
}


@pytest.mark.parametrize("name", list(SPLIT))
async def test_a_topic_of_the_gateway_that_was_given_partitions_is_made_again(
    name: str, database: Database, proxied_kafka: ProxiedKafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async for place in _place(database, proxied_kafka, registry, topic_prefix, tmp_path):
        await SPLIT[name].follow(place)


async def test_a_wrong_server_is_left_for_the_one_that_was_meant(place: Place, database_oldest: Database) -> None:
    await place.streams()
    await place.stop()
    await place.insert()
    other = await database_oldest.connect()
    await other.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
    place.wrong["source__dsn"] = database_oldest.dsn
    said = await place.ends()
    assert "belongs to slot" in said and "check source.dsn and source.slot" in said, said
    place.wrong.clear()
    await place.streams()
    await place.stop()


# -- a newer version
# ---------------------------------------------------------------------------------------------------

_NEWER = """
import schemas.records as records

def without(schema, name):
    schema["fields"] = [field for field in schema["fields"] if field["name"] != name]

def table(schema):
    return next(field["type"][1] for field in schema["fields"] if field["name"] == "table")

without({schema}, {field!r})

from gateway.snapshot import state
from gateway.transactions import position

read_position, read_table = position._from_record, state._table
position._from_record = lambda record: read_position({{"version": "", **record}})
state._table = lambda record: read_table({{"row_count": 0, **record}})

from gateway.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("schema", "field", "said"),
    [
        ("records.POSITION", "version", "does not contain a resume LSN that can be read: SchemaResolutionError"),
        (
            "table(records.SNAPSHOT_STATE)",
            "row_count",
            "does not contain the state of a snapshot: SchemaResolutionError",
        ),
    ],
    ids=["position", "snapshot"],
)
async def test_a_record_of_a_newer_version_is_read_by_that_version(
    schema: str,
    field: str,
    said: str,
    database: Database,
    proxied_kafka: ProxiedKafka,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    """It writes a field less, so that this version cannot read its records."""
    async with (
        Registry() as registry,
        asynccontextmanager(_place)(database, proxied_kafka, registry, topic_prefix, tmp_path) as place,
    ):
        newer = (sys.executable, "-P", "-c", _NEWER.format(schema=schema, field=field), *OPTIONS)
        place.set(snapshot__mode="initial")
        await place.streams()
        await place.gateway.logged('"snapshot_done"')
        await place.stop()
        await place.insert()
        place.gateway.command = newer
        await place.sql.execute("CREATE TABLE later (id int PRIMARY KEY)")
        await place.streams()
        await place.gateway.logged('"snapshot_done"', times=2)
        await place.stop()

        await place.insert()
        place.gateway.command = COMMAND
        found = await place.ends()
        assert said in found and "if a newer version of the gateway wrote it, use that version" in found, found
        place.gateway.command = newer
        await place.streams()
        await place.stop()
        await place.delete_topic("walgate.position")  # for whoever uses the broker next
        await place.delete_topic("walgate.snapshot")


# -- a column that is left out
# -----------------------------------------------------------------------------------------

_STAGING = """
CREATE TABLE huge (id int PRIMARY KEY, a text, b text, c text);
CREATE TABLE staging (LIKE huge); INSERT INTO staging VALUES (1);
UPDATE staging SET a = repeat('x', 400000000); UPDATE staging SET b = a; UPDATE staging SET c = a
"""
"""No statement but the last, which copies values as they are stored, can make such a row."""


async def test_a_row_that_is_too_large_in_binary_is_got_past_without_its_columns(place: Place) -> None:
    """1.2 GB, where PostgreSQL makes messages of at most 1 GB. What commits later is sent, also of
    that table."""
    await place.sql.execute(f"DROP PUBLICATION walgate; {_STAGING}", timeout=200)
    await place.sql.execute("CREATE PUBLICATION walgate FOR TABLE flows, huge")
    place.set(source__binary="on")
    await place.streams()
    await place.stop()
    await place.sql.execute("INSERT INTO huge SELECT * FROM staging")
    said = await place.ends()
    assert "Only if source.binary is already on, leave the large columns out of the publication" in said, said
    assert "ALTER PUBLICATION ... DROP TABLE t, then ADD TABLE t (columns)" in said
    assert "run walgate accept-gap --until-now" in said
    await place.sql.execute("ALTER PUBLICATION walgate DROP TABLE huge; ALTER PUBLICATION walgate ADD TABLE huge (id)")
    await place.accept_gap("--until-now")
    await place.streams()
    await place.sql.execute("INSERT INTO huge SELECT 2, a, b, c FROM staging")
    await Written(place.topics, place.prefix).has("huge", {2})
    await place.stop()


# -- brokers that allow more
# -------------------------------------------------------------------------------------------


async def test_brokers_are_made_to_allow_what_the_settings_ask_for(
    database: Database, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """`flows` has no limit of its own: that of the broker holds."""
    limits = {
        "transaction.max.timeout.ms": (600_000, 900_000),
        "socket.request.max.bytes": (8 << 20, 100 << 20),
        "message.max.bytes": (200_000, 1_000_000),
    }
    kafka = Kafka(settings={name: low for name, (low, _) in limits.items()}, jvm_options=[QUICK_START])
    async with kafka, asynccontextmanager(_place)(database, kafka, registry, topic_prefix, tmp_path) as place:
        small = {"kafka__transaction_timeout_s": 600, "kafka__max_record_bytes": 500_000}
        place.set(kafka__compression="none", **small)
        await place.new_topic(f"{place.prefix}.public.flows")
        await place.streams()
        await place.stop()
        await place.insert()
        place.wrong["kafka__transaction_timeout_s"] = 900
        assert "or raise the broker's transaction.max.timeout.ms" in await place.ends()
        said = await checked(place.gateway, 78, kafka__max_record_bytes=16 << 20, kafka__transaction_timeout_s=900)
        assert "or raise the brokers' socket.request.max.bytes" in said, said
        assert "or raise the brokers' transaction.max.timeout.ms" in said, said
        place.wrong.clear()
        await place.sql.execute("INSERT INTO flows VALUES (1000, repeat('x', 400000))")
        place.inserted.add(1000)
        said = await place.ends()
        assert "(or, if the topic does not set it, the broker's message.max.bytes) to kafka.max_record_bytes" in said

        await kafka.stop()
        properties = kafka.folder / "server.properties"
        text = properties.read_text()
        for name, (low, high) in limits.items():
            text = text.replace(f"{name}={low}\n", f"{name}={high}\n")
        properties.write_text(text)
        await kafka.start()
        place.set(kafka__max_record_bytes=16 << 20, kafka__transaction_timeout_s=900)
        await checked(place.gateway, 0)
        await place.streams()
        await place.stop()
