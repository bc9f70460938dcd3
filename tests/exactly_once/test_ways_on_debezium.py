"""Ways on from the stops of Debezium's dialect, followed to a gateway that streams again with every
row."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from schemas.registry_client import RegistryClient
from schemas.topic_names import key_subject, value_subject
from tests.conftest import Database
from tests.debezium.scene import Reader
from tests.exactly_once.test_ways_on import Place, Walk, _place, _set_as_told, _with
from tests.exactly_once.test_ways_on_instead import begin_anew
from tests.runtime.test_error_context import SEEDED
from tests.support.slots import until_confirmed
from tests.support.written import walgate

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]


class DebeziumPlace(Place):
    async def streams(self) -> None:
        await self.gateway.streaming()
        await self.insert()
        await until_confirmed(self.sql, self.slot, timeout_s=60)
        last = max(self.inserted)
        reader = Reader(self.servers, str(self.gateway.settings["registry__url"]), [f"{self.prefix}.public.flows"])
        records = await reader.until(lambda record: record.value is not None and record.value["after"]["id"] == last)
        assert sorted(record.value["after"]["id"] for record in records if record.value) == sorted(self.inserted)


@pytest.fixture
async def place(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async for made in _place(database, kafka, registry, topic_prefix, tmp_path):
        made.__class__ = DebeziumPlace
        made.set(kafka__dialect="debezium", kafka__partitions=1)
        yield made


async def _two_tables_of_one_topic(place: Place) -> None:
    await place.sql.execute('CREATE TABLE a_b (id int PRIMARY KEY); CREATE TABLE "a b" (id int PRIMARY KEY)')
    await place.sql.execute('INSERT INTO a_b VALUES (1); INSERT INTO "a b" VALUES (1)')


async def _topic_of_its_own(place: Place, said: str) -> None:
    assert "give one of them a different topic with kafka.topic_names" in said
    place.set(kafka__topic_names=f'{{"public.a b": "{place.prefix}.other"}}')


async def _not_a_number(place: Place) -> None:
    place.set(debezium__event_converting_failure_handling_mode="fail")
    await place.sql.execute(
        "CREATE TABLE amounts (id int PRIMARY KEY, v numeric(10, 2)); INSERT INTO amounts VALUES (1, 'NaN')"
    )


async def _null_instead(place: Place, said: str) -> None:
    assert "or debezium.event_converting_failure_handling_mode = warn" in said
    place.set(debezium__event_converting_failure_handling_mode="warn")


async def _not_a_number_in_the_key(place: Place) -> None:
    await place.sql.execute("CREATE TABLE keyed (v numeric(10, 2) PRIMARY KEY); INSERT INTO keyed VALUES ('NaN')")


async def _text_key(place: Place, said: str) -> None:
    await _set_as_told(place, said)
    assert "also set schemas.on_incompatible = register" in said
    place.set(schemas__on_incompatible="register")


async def _no_key(place: Place) -> None:
    place.set(debezium__compacted_topics=True, debezium__tombstones_on_delete=True, debezium__skipped_operations="t")
    await place.sql.execute("CREATE TABLE keyless (v text); INSERT INTO keyless VALUES ('x')")


async def _key_with_null(place: Place) -> None:
    place.set(debezium__compacted_topics=True, debezium__tombstones_on_delete=True, debezium__skipped_operations="t")
    await place.sql.execute("CREATE TABLE keyless (v text UNIQUE); ALTER TABLE keyless REPLICA IDENTITY FULL")
    await place.sql.execute("INSERT INTO keyless VALUES (NULL), (NULL)")


async def _topic_not_compacted(place: Place, said: str) -> None:
    topic = f"{place.prefix}.public.keyless"
    assert "set cleanup.policy = delete for its topic, both with kafka-configs.sh and in kafka.topics" in said
    place.set(
        kafka__topics=f'[{{"pattern": "{re.escape(topic)}", "config": {{"cleanup.policy": "delete"}}}}]'.replace(
            "\\", "\\\\"
        )
    )
    await place.set_topic(topic, "cleanup.policy", "delete")


async def _prepared(place: Place) -> None:
    await place.sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", place.slot)
    place.set(source__adopt_slot=True)
    await place.sql.execute(f"BEGIN; CREATE TABLE p (id int); PREPARE TRANSACTION '{place.slot}'")
    await place.sql.execute(f"COMMIT PREPARED '{place.slot}'")


async def _two_phase_taken_away(place: Place, said: str) -> None:
    assert "ALTER_REPLICATION_SLOT" in said and "on PostgreSQL 18" in said
    server = place.database.server
    dsn = f"{place.database.dsn}?replication=database"
    command = f"ALTER_REPLICATION_SLOT {place.slot} (TWO_PHASE false)"
    psql = await asyncio.create_subprocess_exec(server.program("psql"), dsn, "-c", command)
    assert await psql.wait() == 0


async def _columns_of_one_name(place: Place) -> None:
    await place.sql.execute(
        'CREATE TABLE cols (id int PRIMARY KEY, a_b int, "a b" int); INSERT INTO cols VALUES (1, 2, 3)'
    )


async def _skipped_as_told(place: Place, said: str) -> None:
    assert "Renaming a column is not enough" in said and "quarantine" not in said, said
    await place.sql.execute('ALTER TABLE cols RENAME COLUMN "a b" TO b; INSERT INTO cols VALUES (2, 2, 3)')
    await _skip(place, said)


async def _key_of_an_unsupported_type(place: Place) -> None:
    await place.sql.execute(
        "CREATE TABLE places (id int, at pg_lsn, PRIMARY KEY (id, at)); INSERT INTO places VALUES (1, '0/1'), (1, '0/2')"
    )


async def _skip(place: Place, said: str) -> None:
    found = re.search(r"walgate (skip) (--lsn) (\S+)", said)
    assert found, said
    await walgate(place.gateway, *found.groups())


async def _date_beyond_nanoseconds(place: Place) -> None:
    place.set(debezium__time_precision_mode="nanoseconds")
    await place.sql.execute("CREATE TABLE dated (t timestamp PRIMARY KEY); INSERT INTO dated VALUES ('9999-01-01')")


async def _coarser(place: Place, said: str) -> None:
    assert "or a coarser debezium.time_precision_mode" in said, said
    assert "also set schemas.on_incompatible = register" in said, said
    place.set(debezium__time_precision_mode="microseconds", schemas__on_incompatible="register")


async def _slot_without_two_phase(place: Place, said: str) -> None:
    assert "use a new source.slot (created without two_phase) and a new kafka.prefix" in said, said
    await begin_anew(place)


async def _in_our_dialect(place: Place, said: str) -> None:
    assert re.search("kafka.dialect = walgate with another slot|or another kafka.prefix with another slot", said), said
    place.__class__ = Place
    for name in [name for name in place.gateway.settings if name.startswith("debezium__")]:
        del place.gateway.settings[name]
    place.set(kafka__dialect="walgate")
    await begin_anew(place)


async def _slot_dropped(place: Place) -> None:
    place.set(debezium__provide_transaction_metadata=True)
    await place.sql.execute("SELECT pg_drop_replication_slot($1)", place.slot)
    place.inserted.remove(max(place.inserted))  # committed since the gateway was stopped


async def _gap_accepted(place: Place, said: str) -> None:
    assert "run walgate accept-gap, which accepts the loss and records the gap" in said, said
    await place.accept_gap()
    await place.streams()
    await place.stop()
    reader = Reader(place.servers, str(place.gateway.settings["registry__url"]), [f"{place.prefix}.transaction"])
    records = await reader.until(lambda record: record.value is not None and record.value["status"] == "END")
    assert [record.value and record.value["status"] for record in records] == ["BEGIN", "END"]


async def _unreadable(place: Place) -> None:
    """To an encoder that is broken."""
    place.gateway.code = SEEDED.format(error="ValueError")
    await place.sql.execute(
        "CREATE TABLE poison (id int PRIMARY KEY, b bytea); INSERT INTO poison VALUES (1, 'too long')"
    )


async def _left_out_and_reported(place: Place, said: str) -> None:
    assert "report the error" in said and "do not drop the slot" in said, said
    await _skip(place, said)


WALKS: Mapping[str, Walk] = {
    "topic of two": Walk("both have the topic", _two_tables_of_one_topic, _topic_of_its_own),
    "not a number, as text": Walk("column v: ", _not_a_number, _set_as_told),
    "not a number, as null": Walk("column v: ", _not_a_number, _null_instead),
    "not a number, in a key": Walk("column v is part of the key: ", _not_a_number_in_the_key, _text_key),
    "no key": Walk("has no key of NOT NULL columns, but with", _no_key, _topic_not_compacted),
    "a key with NULL": Walk("has no key of NOT NULL columns, but with", _key_with_null, _topic_not_compacted),
    "prepared": Walk("prepared transactions are sent before they commit", _prepared, _two_phase_taken_away, first=True),
    "dialect": Walk("were written with kafka.dialect = debezium", _with(kafka__dialect="walgate"), _set_as_told),
    "unreadable": Walk("column b: the value at byte", _unreadable, _left_out_and_reported),
    "a gap": Walk("no longer exists; changes up to", _slot_dropped, _gap_accepted),
    "an unsupported type in a key": Walk("column at is part of the key", _key_of_an_unsupported_type, _set_as_told),
    "columns of one name": Walk("cols: ", _columns_of_one_name, _skipped_as_told),
    "columns of one name, in our dialect": Walk("cols: ", _columns_of_one_name, _in_our_dialect),
    "dialect, and a new prefix": Walk(
        "were written with kafka.dialect = debezium", _with(kafka__dialect="walgate"), _in_our_dialect
    ),
    "a date in a key": Walk("column t is part of the key: ", _date_beyond_nanoseconds, _coarser),
    "prepared, and a new slot": Walk(
        "prepared transactions are sent before they commit", _prepared, _slot_without_two_phase, first=True
    ),
}


@pytest.mark.parametrize("name", list(WALKS))
async def test_a_stop_of_the_dialect_is_left_as_the_message_says(name: str, place: Place) -> None:
    await WALKS[name].follow(place)


async def test_an_offset_that_is_no_use_leaves_everything_as_it_was(place: Place) -> None:
    path = place.folder / "offsets.json"

    async def said_of(**offset: object) -> str:
        path.write_text(json.dumps({"lsn": 1, "lsn_commit": 1, "txId": 1, **offset}))
        return await walgate(place.gateway, "adopt", "--from-debezium", str(path), code=78)

    said = await said_of()
    assert "the slot does not exist" in said and "source.slot to the connector's slot.name" in said, said
    await place.sql.fetchval(NEW_SLOT, place.slot)
    said = await said_of(snapshot="INITIAL")
    assert "has not finished its snapshot" in said and "start the connector again" in said, said
    said = await said_of(lsn=1 << 60)
    assert "belongs to another server" in said and "check source.dsn" in said, said
    await place.sql.execute("SELECT pg_drop_replication_slot($1)", place.slot)
    await place.streams()
    await place.stop()
    await place.insert()
    said = await said_of()
    assert "already has a resume LSN" in said and "start the gateway" in said, said
    await place.streams()
    await place.stop()


async def test_a_record_that_the_connector_did_not_write_leaves_everything_as_it_was(place: Place) -> None:
    lsn = await place.sql.fetchval(NEW_SLOT, place.slot)
    await place.insert()
    path, topic = offset_of_commit(place, lsn), f"{place.prefix}.public.flows"
    await place.new_topic(topic)
    await place.send(topic, "foreign", b"{}")
    said = await walgate(place.gateway, "adopt", "--from-debezium", str(path), code=78)
    assert f"the record at offset 0 of {topic} was not written by a Debezium connector" in said, said
    assert "use the topics that the connector wrote" in said, said
    await place.delete_topic(topic)
    await walgate(place.gateway, "adopt", "--from-debezium", str(path))
    await place.streams()
    await place.stop()


async def test_keys_that_would_change_leave_everything_as_it_was(place: Place) -> None:
    """Until the operator says that they may."""
    lsn = await place.sql.fetchval(NEW_SLOT, place.slot)
    await place.insert()
    topic, path = f"{place.prefix}.public.flows", offset_of_commit(place, lsn)
    registry = RegistryClient(str(place.gateway.settings["registry__url"]))
    for subject, name in ((value_subject(topic), "Envelope"), (key_subject(topic), "Key")):
        await registry.register(subject, {"type": "record", "name": name, "namespace": topic, "fields": []})
    await registry.close()
    said = await walgate(place.gateway, "adopt", "--from-debezium", str(path), code=78)
    assert f"{topic} (fields: [] in the connector's schema, [\"id\"] in the gateway's)" in said, said
    assert "set schemas.on_incompatible = register, and run the command again" in said, said
    place.set(schemas__on_incompatible="register")
    await walgate(place.gateway, "adopt", "--from-debezium", str(path))
    await place.streams()
    await place.stop()


async def test_a_slot_that_the_driver_has_advanced_is_adopted_as_it_is(place: Place) -> None:
    """Beyond the offset that its connector has stored. Nothing is read again."""
    place.set(snapshot__mode="on_command")
    lsn = await place.sql.fetchval(NEW_SLOT, place.slot)
    await place.insert()
    place.inserted.clear()  # the connector has written it
    await place.sql.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", place.slot)
    await place.insert()
    path = offset_of_commit(place, lsn)
    said = await walgate(place.gateway, "adopt", "--from-debezium", str(path), code=78)
    assert "is confirmed up to" in said and "lsn.flush.mode = connector_and_driver" in said, said
    assert "source.adopt_slot = true" in said and "snapshot.mode = on_command" in said, said
    place.set(source__adopt_slot=True)
    await place.streams()
    await place.stop()


NEW_SLOT = "SELECT (lsn - '0/0'::pg_lsn)::int8 FROM pg_create_logical_replication_slot($1, 'pgoutput')"


def offset_of_commit(place: Place, lsn: int) -> Path:
    path = place.folder / "offsets.json"
    path.write_text(json.dumps({"lsn": lsn, "lsn_commit": lsn, "txId": 1, "messageType": "COMMIT"}))
    return path
