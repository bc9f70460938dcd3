"""A real registry: ids, compatibility, attributes, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx2
import pytest
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient, Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from gateway.config.debezium import DebeziumSettings
from gateway.config.kafka import KafkaSettings
from gateway.debezium.envelope_schema import connect_relation, envelope_schema
from gateway.events.row_encoder import RowEncoder
from gateway.kafka.topics import is_of_other_prefix
from gateway.local import Registry
from gateway.schema_errors import topics_with_schema
from schemas.change_schema import change_schema, key_schema
from schemas.compatibility_levels import LevelChange
from schemas.errors import (
    IncompatibleSchema,
    RegistryDenied,
    RegistryLostSchemas,
    RegistryMissing,
    RegistryRefused,
    RegistryUnavailable,
    RegistryUnwilling,
    SchemaError,
)
from schemas.records import LOGICAL_MESSAGE, POSITION, TRANSACTION_MARKER
from schemas.registry_client import RegistryClient
from schemas.relation import ColumnDescription, Protect, Protection
from schemas.schema_metadata import recorded_relation
from schemas.topic_names import debezium_topic, key_subject, value_subject
from schemas.used_schemas import UsedSchema
from tests.events.rows import EVERYDAY, wire_row
from tests.events.rows import relation as everyday_relation
from tests.events.test_row_encoder import CONTEXT, encode, new
from tests.schemas.relations import column, numeric_typmod, relation
from tests.support import stock_registry

INTEGER = relation(column("id", "int8", key=True), column("c", "int4"))
WIDER = relation(column("id", "int8", key=True), column("c", "int8"), column("more", "text"))
TEXT = relation(column("id", "int8", key=True), column("c", "text"))


@asynccontextmanager
async def client(url: str, **options: object) -> AsyncIterator[RegistryClient]:
    made = RegistryClient(url, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.integration
async def test_every_kind_of_schema_is_taken_and_comes_back_with_its_attributes(
    registry: Registry, topic_prefix: str
) -> None:
    everyday = change_schema(everyday_relation(), topic_prefix)
    key = key_schema(everyday_relation(), topic_prefix)
    assert key is not None
    async with client(registry.url) as schemas, client(registry.url) as reader:
        for number, schema in enumerate((everyday, key, POSITION, TRANSACTION_MARKER, LOGICAL_MESSAGE)):
            schema_id = await schemas.register(f"{topic_prefix}.{number}-value", schema)
            assert await schemas.register(f"{topic_prefix}.{number}-value", schema) == schema_id
            found = await reader.schema(schema_id)
            assert found.get("pg.relation") == schema.get("pg.relation")
            assert [field["name"] for field in found["fields"]] == [field["name"] for field in schema["fields"]]
        stored = await reader.schema(await schemas.register(f"{topic_prefix}.0-value", everyday))
    (before,) = (field["type"][1] for field in stored["fields"] if field["name"] == "before")
    (expected,) = (field["type"][1] for field in everyday["fields"] if field["name"] == "before")
    assert [field["pg.type"] for field in before["fields"]] == [field["pg.type"] for field in expected["fields"]]


@pytest.mark.integration
async def test_clients_that_make_a_subject_at_the_same_moment_get_one_id(registry: Registry, topic_prefix: str) -> None:
    """As gateways do with that of the position, when they start for the first time together."""
    schema = change_schema(INTEGER, topic_prefix)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(registry.url)) for _ in range(4)]
        for number in range(10):
            subject = f"{topic_prefix}.{number}-value"
            assert len(set(await asyncio.gather(*(one.register(subject, schema) for one in clients)))) == 1


@pytest.mark.integration
async def test_backward_compatibility_is_set_on_a_new_subject(registry: Registry, topic_prefix: str) -> None:
    subject = value_subject(f"{topic_prefix}.public.orders")
    async with client(registry.url) as schemas:
        first = await schemas.register(subject, change_schema(INTEGER, topic_prefix))
        second = await schemas.register(subject, change_schema(WIDER, topic_prefix))
    assert first != second
    async with AsyncSchemaRegistryClient(stock_registry.settings(registry.url)) as confluent:
        assert await confluent.get_compatibility(subject) == "BACKWARD"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (INTEGER, TEXT, r"column c changed from int4 \(int\) to text \(string\)"),
        (
            relation(column("c", "numeric", numeric_typmod(10, 2))),
            relation(column("c", "numeric", numeric_typmod(10, 4))),
            r"column c changed from numeric \(decimal\(10,2\)\) to numeric \(decimal\(10,4\)\)",
        ),
    ],
    ids=["refused by the registry", "refused by us alone"],
)
async def test_an_incompatible_change_stops_or_is_registered_as_settings_say(
    registry: Registry, topic_prefix: str, old: object, new: object, message: str
) -> None:
    subject = value_subject(f"{topic_prefix}.public.orders")
    old_schema, new_schema = (change_schema(each, topic_prefix) for each in (old, new))  # type: ignore[arg-type]
    async with client(registry.url) as strict, client(registry.url, on_incompatible="register") as lenient:
        first = await strict.register(subject, old_schema)
        with pytest.raises(IncompatibleSchema, match=r"public\.orders: .*" + message) as caught:
            await strict.register(subject, new_schema)
        assert "schemas.on_incompatible" in caught.value.hint
        second = await lenient.register(subject, new_schema)
        assert second != first
    async with client(registry.url) as restarted:
        # Rows of before are sent again after a restart: neither version may stop it.
        assert await restarted.register(subject, old_schema) == first
        assert await restarted.register(subject, new_schema) == second
    async with AsyncSchemaRegistryClient(stock_registry.settings(registry.url)) as confluent:
        assert await confluent.get_compatibility(subject) == "BACKWARD"


class Killed(Exception):
    pass


class KilledClient(RegistryClient):
    """Ends before its `last`-th request to change something, as by kill -9: nothing is sent any
    more."""

    last: int
    changes = 0

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.changes += method in ("PUT", "DELETE") or path.endswith("/versions")
        if self.changes >= self.last:
            raise Killed
        return await super()._ask(method, path, body)


@pytest.mark.integration
@pytest.mark.parametrize("level", ["BACKWARD", "FULL_TRANSITIVE", None])
async def test_a_level_that_a_killed_gateway_set_aside_is_restored(
    registry: Registry, topic_prefix: str, level: str | None
) -> None:
    """It ends before each of its requests, then the next one registers the version and leaves the
    level of before."""
    old, new = (change_schema(each, topic_prefix) for each in (INTEGER, TEXT))
    async with AsyncSchemaRegistryClient(stock_registry.settings(registry.url)) as confluent:
        for last in range(1, 7):
            subject = value_subject(f"{topic_prefix}.public.orders{last}")
            async with client(registry.url) as schemas:
                await schemas.register(subject, old)
                await _set_level(schemas, subject, level)
                before = await _level(schemas, subject)  # Apicurio says NONE where there is none
            killed = KilledClient(registry.url, on_incompatible="register")
            killed.last = last
            with contextlib.suppress(Killed):
                await killed.register(subject, new)
            await killed.close()
            async with client(registry.url, on_incompatible="register") as restarted:
                schema_id = await restarted.register(subject, new)
                assert await _level(restarted, subject) == before, last
                assert (await confluent.get_latest_version(subject)).schema_id == schema_id
                # What somebody sets from here on is no longer ours to repair.
                await _set_level(restarted, subject, "NONE")
            async with client(registry.url, on_incompatible="register") as restarted:
                await restarted.register(subject, change_schema(WIDER, topic_prefix))
                assert await _level(restarted, subject) == "NONE"


async def _level(schemas: RegistryClient, subject: str) -> str | None:
    answer = await schemas._find("GET", f"/config/{subject}")
    return None if answer is None else str(answer["compatibilityLevel"])


async def _set_level(schemas: RegistryClient, subject: str, level: str | None) -> None:
    if level is None:
        await schemas._ask("DELETE", f"/config/{subject}")
    else:
        await schemas._ask("PUT", f"/config/{subject}", {"compatibility": level})


@pytest.mark.integration
@pytest.mark.parametrize("level", ["NONE", "FULL_TRANSITIVE", "FORWARD", "BACKWARD_TRANSITIVE"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before the first version", "after it"])
async def test_a_level_of_the_user_stays(registry: Registry, topic_prefix: str, level: str, is_first: bool) -> None:
    subject = value_subject(f"{topic_prefix}.public.orders")
    old, wider, text = (change_schema(each, topic_prefix) for each in (INTEGER, WIDER, TEXT))
    changes: list[LevelChange] = []
    async with (
        client(registry.url) as strict,
        client(registry.url, on_incompatible="register", on_level_change=changes.append) as lenient,
    ):
        if is_first:
            await _set_level(strict, subject, level)
        await strict.register(subject, old)
        if not is_first:
            await _set_level(strict, subject, level)
        assert await _level(strict, subject) == level
        with pytest.raises(IncompatibleSchema) as caught:
            await strict.register(subject, text)
        assert f"set the compatibility back to {level}, and restart" in caught.value.hint
        await lenient.register(subject, wider)
        await lenient.register(subject, text)
        assert await _level(strict, subject) == level
    told = [(change.before, change.after) for change in changes]
    assert told[-2:] == ([] if level == "NONE" else [(level, "NONE"), ("NONE", level)])
    async with client(registry.url) as strict:
        # As the hint of the stop says, with the level that the hint names.
        await _set_level(strict, subject, "NONE")
        async with AsyncSchemaRegistryClient(stock_registry.settings(registry.url)) as confluent:
            date = change_schema(relation(column("id", "int8", key=True), column("c", "date")), topic_prefix)
            await confluent.register_schema(subject, Schema(json.dumps(date), "AVRO"))
        await strict.register(subject, date)
        assert await _level(strict, subject) == "NONE"


@pytest.mark.integration
async def test_a_version_that_is_not_in_force_does_not_bind(registry: Registry, topic_prefix: str) -> None:
    """What a rolled back transaction registered is the newest; the change is compatible with what
    rows really have."""
    subject = value_subject(f"{topic_prefix}.public.orders")
    narrow = relation(column("id", "int8", key=True))
    in_force, void, new = (change_schema(each, topic_prefix) for each in (narrow, INTEGER, TEXT))
    async with client(registry.url) as schemas:
        await schemas.register(subject, in_force)
        await schemas.register(subject, void, in_force)
        with pytest.raises(IncompatibleSchema):
            await schemas.register(subject, new)
        await schemas.register(subject, new, in_force)
        with pytest.raises(IncompatibleSchema):
            await schemas.register(subject, change_schema(WIDER, topic_prefix), new)
    async with AsyncSchemaRegistryClient(stock_registry.settings(registry.url)) as confluent:
        assert await confluent.get_compatibility(subject) == "BACKWARD"


@pytest.mark.integration
async def test_a_dropped_column_that_comes_back_is_compared_with_what_it_was(
    registry: Registry, topic_prefix: str
) -> None:
    """The version between lacks it: neither it nor the registry's BACKWARD, which looks at one
    version, forbids another type."""
    subject = value_subject(f"{topic_prefix}.public.orders")

    def schema(*columns: ColumnDescription) -> dict[str, Any]:
        return change_schema(relation(column("id", "int8", key=True), *columns), topic_prefix)

    note = column("note", "text")
    without = schema(note)
    async with client(registry.url) as schemas, client(registry.url, on_incompatible="register") as lenient:
        for version in (schema(column("c", "date")), schema(), without):
            await schemas.register(subject, version)
        for in_force in (None, without):
            with pytest.raises(IncompatibleSchema, match=r"column c changed from date \(date\) to int4 \(int\)"):
                await schemas.register(subject, schema(note, column("c", "int4")), in_force)
        unnamed = schema(note, column("c", "int4"))  # as Debezium's, once the rules of the columns are removed
        del unnamed["pg.relation"]
        with pytest.raises(IncompatibleSchema, match=r"column c changed from date"):
            await schemas.register(subject, unnamed)
        await schemas.register(subject, schema(note, column("other", "int4")), without)
        await schemas.register(subject, schema(note, column("other", "int4"), column("c", "date")))
        # Once let through, the newest version that has it counts.
        await lenient.register(subject, schema(note, column("c", "int4")))
        await schemas.register(subject, schema())
        await schemas.register(subject, schema(note, column("c", "int8")))


@pytest.mark.integration
async def test_a_column_is_not_compared_with_that_of_a_dropped_table_of_the_same_name(
    registry: Registry, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}.public.orders"
    former, c = column("code", "text", key=True), column("c", "date")
    described = [
        relation(former, c),
        replace(relation(column("id", "int8", key=True)), oid=2),
        replace(relation(column("id", "int8", key=True), column("c", "int4")), oid=2),
        replace(relation(column("id", "int8"), column("c", "int4"), column("code", "int4", key=True)), oid=2),
    ]
    async with client(registry.url) as schemas:
        for before, now in zip([None, *described], described, strict=False):
            for subject, schema_of in ((value_subject(topic), change_schema), (key_subject(topic), key_schema)):
                schema = schema_of(now, topic_prefix)
                in_force = None if before is None or before.oid != now.oid else schema_of(before, topic_prefix)
                assert schema is not None
                await schemas.register(subject, schema, in_force, regardless=before is described[0])
        without = replace(relation(column("code", "int4", key=True)), oid=2)
        await schemas.register(value_subject(topic), change_schema(without, topic_prefix))
        again = replace(relation(column("code", "int4", key=True), column("id", "text")), oid=2)
        with pytest.raises(IncompatibleSchema, match="column id changed from int8"):  # of the same table
            await schemas.register(value_subject(topic), change_schema(again, topic_prefix))


@pytest.mark.integration
async def test_the_newest_schema_of_a_renamed_table_is_found(registry: Registry, topic_prefix: str) -> None:
    """Among those of other tables, of other applications, of a gateway with a nested prefix and of
    topics without a schema, also one registered meanwhile. In Debezium's format, too."""
    names = ["a", "b", "c", "nothing", "proto", "text"]
    subjects = [value_subject(f"{topic_prefix}.public.{name}") for name in names]
    schemas_of = [
        change_schema(replace(relation(column("id", "int8", key=True), name=name), oid=oid), topic_prefix)
        for name, oid in zip(names, (7, 8, 7), strict=False)
    ]
    async with client(registry.url) as before:
        for subject, schema in zip(subjects[:2], schemas_of, strict=False):
            await before.register(subject, schema)
        foreign = (("PROTOBUF", 'syntax = "proto3"; message M { int32 id = 1; }'), ("AVRO", '"string"'))
        for subject, (form, text) in zip(subjects[4:], foreign, strict=True):
            await before._ask("POST", f"/subjects/{subject}/versions", {"schema": text, "schemaType": form})
        nested = f"{topic_prefix}.shop"
        subjects.append(value_subject(f"{nested}.public.other"))
        await before.register(
            subjects[-1], change_schema(replace(relation(column("id", "int8"), name="other"), oid=7), nested)
        )
        hidden = replace(column("email", "text"), protection=Protection(Protect.DROP))
        for prefix, name in ((topic_prefix, "own table"), (nested, "other table")):
            topic = debezium_topic(prefix, "public", name)
            described = replace(relation(column("id", "int8"), hidden, name=name), oid=10)
            subjects.append(value_subject(topic))
            await before.register(
                subjects[-1], envelope_schema(connect_relation(described, [], [], DebeziumSettings()), topic)
            )
    kafka = KafkaSettings(prefix=topic_prefix)
    is_of_other = partial(is_of_other_prefix, kafka)
    async with client(registry.url) as schemas:
        first = await schemas.find_relation(7, subjects, is_of_other)
        assert first is not None and recorded_relation(first) == ("public", "a")
        await schemas.register(subjects[2], schemas_of[2])
        second = await schemas.find_relation(7, subjects, is_of_other)
        assert second is not None and recorded_relation(second) == ("public", "c")
        assert await schemas.find_relation(9, subjects, is_of_other) is None
        own = await schemas.find_relation(10, subjects, is_of_other)
        assert own is not None and recorded_relation(own) == ("public", "own table")
    kafka.topic_names["public.other table"] = topic
    async with client(registry.url) as schemas:
        given = await schemas.find_relation(10, subjects, is_of_other)
        assert given is not None and recorded_relation(given) == ("public", "other table")


@pytest.mark.integration
async def test_a_deleted_subject_does_not_make_a_change_compatible(registry: Registry, topic_prefix: str) -> None:
    subject = value_subject(f"{topic_prefix}.public.orders")
    in_force, text, wider = (change_schema(each, topic_prefix) for each in (INTEGER, TEXT, WIDER))
    async with client(registry.url) as schemas, client(registry.url, on_incompatible="register") as lenient:
        await schemas.register(subject, in_force)
        async with httpx2.AsyncClient() as http:
            (await http.delete(f"{registry.url}/subjects/{subject}")).raise_for_status()
        with pytest.raises(IncompatibleSchema, match=r"public\.orders: .*column c changed from int4 \(int\) to text"):
            await schemas.register(subject, text, in_force)
        assert await schemas.latest(subject) is None
        await schemas.register(subject, wider, in_force)  # deleted is not lost: the id keeps its schema
        await lenient.register(subject, text, in_force)


@pytest.mark.integration
async def test_no_version_is_registered_after_the_registry_has_lost_schemas(
    registry: Registry, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schemas.registry_client._PAUSES_S", (0.0,))
    orders, others = (value_subject(f"{topic_prefix}.public.{name}") for name in ("orders", "others"))
    schema = change_schema(INTEGER, topic_prefix)
    async with client(registry.url) as schemas:
        there = await schemas.register(orders, schema)
        assert schemas.used.newest == UsedSchema(there, orders, f"{topic_prefix}.public.orders.Change")
        assert (await schemas.id_of(orders, schema)) == there
    lost = {
        "it does not have this id": UsedSchema(2**31 - 1, others, "lost.Change"),
        f"that id now has {topic_prefix}.public.orders.Change": UsedSchema(there, others, "lost.Change"),
    }
    for told, used in lost.items():
        async with client(registry.url) as schemas:
            schemas.used.add(used)
            with pytest.raises(RegistryLostSchemas, match=rf"schema {used.id}, lost\.Change, but {re.escape(told)}"):
                await schemas.register(others, change_schema(WIDER, topic_prefix))
            assert await schemas.latest(others) is None
    async with client(registry.url) as schemas:
        schemas.used.add(UsedSchema(there, others, "lost.Change"))
        with pytest.raises(RegistryLostSchemas, match="that id now has"):  # registered by another gateway
            await schemas.register(orders, schema)


class BusyRegistry(RegistryClient):
    """Answers a few requests between two pauses, and refuses some subjects."""

    left, asked = 2, 0

    async def _send(self, method: str, path: str, content: bytes | None, what: str) -> httpx2.Response:
        self.left, self.asked = self.left - 1, self.asked + 1
        subject = path.split("/")[2]
        if self.left < 0:
            return httpx2.Response(429, headers={"Retry-After": "7"})
        if "denied" in subject:
            return httpx2.Response(403)
        name = subject.removesuffix("-value")
        return httpx2.Response(200, json={"id": len(name), "version": 1, "schema": json.dumps(self.schema_of(name))})

    @staticmethod
    def schema_of(name: str) -> dict[str, Any]:
        return change_schema(replace(relation(column("id", "int8", key=True), name=name), oid=len(name)), "cdc")

    async def pause(self, pause_s: float) -> None:
        self.left = 2
        assert pause_s == 7


async def test_requests_go_on_where_the_registry_limited_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject of a topic that a table cannot have had may be denied, but none that may be a
    former name."""
    busy = BusyRegistry("http://127.0.0.1:1")
    monkeypatch.setattr("schemas.registry_client.asyncio.sleep", busy.pause)
    subjects = [f"{'t' * length}-value" for length in range(1, 40)]
    denied = "denied-value"
    is_of_other = partial(is_of_other_prefix, KafkaSettings(prefix="cdc"))
    found = await busy.find_relation(39, [*subjects, denied], is_of_other, {denied})
    assert found is not None and recorded_relation(found) == ("public", "t" * 39)
    assert busy.asked < 5 * len(subjects)
    assert await topics_with_schema(busy, ["t", "tt", "ttt"]) == ["t", "tt", "ttt"]
    assert await busy.register("tttt-value", busy.schema_of("tttt")) == 4
    with pytest.raises(RegistryDenied, match="403 .*other-denied-value") as caught:
        await busy.find_relation(39, [*subjects, denied, f"other-{denied}"], is_of_other, {denied})
    assert "allow the gateway's user to read it" in caught.value.hint
    await busy.close()


@pytest.mark.integration
async def test_a_stock_deserializer_reads_our_records(registry: Registry, topic_prefix: str) -> None:
    description = everyday_relation()
    topic = f"{topic_prefix}.public.orders"
    async with client(registry.url) as schemas:
        schema_id = await schemas.register(value_subject(topic), change_schema(description, topic_prefix))
    row = (5, None, "text", None, None, True, "")
    _, value, _ = encode(RowEncoder(description, schema_id, 1), "insert", new(wire_row(EVERYDAY, row, binary=True)))
    with SchemaRegistryClient(stock_registry.settings(registry.url)) as confluent:
        deserializer = AvroDeserializer(confluent)
        event = await asyncio.to_thread(deserializer, value, SerializationContext(topic, MessageField.VALUE))
    assert event["xid"] == CONTEXT.xid
    assert tuple(event["after"].values()) == row


class ScriptedRegistry:
    """As much as the settings of a subject need, which a PUT replaces all, in Confluent's words:
    Apicurio has only the level."""

    def __init__(self, settings: dict[str, Any] | None) -> None:
        self.settings = settings
        self.versions: dict[str, list[str]] = {}
        self.by_id: list[str] = []

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        subject = path.split("/")[2]
        if path.startswith("/config/"):
            if method == "PUT":
                self.settings = {name: value for name, value in body.items() if value is not None}
            if self.settings is None:
                return 404, {"error_code": 40408, "message": "no settings"}
            shown = {"compatibilityLevel" if name == "compatibility" else name: v for name, v in self.settings.items()}
            if method == "DELETE":
                self.settings = None
            return 200, shown
        if path.startswith("/schemas/ids/"):
            return 200, {"schema": self.by_id[int(path.rpartition("/")[2]) - 1]}
        versions = self.versions.setdefault(subject, [])
        if method == "GET":
            if not versions:
                return 404, {"error_code": 40401, "message": "no subject"}
            return 200, {"id": len(versions), "version": len(versions), "schema": versions[-1]}
        if not path.endswith("/versions"):
            return 404, {"error_code": 40403, "message": "no schema"}
        level = (self.settings or {}).get("compatibility", "BACKWARD")
        if versions and level != "NONE" and not subject.endswith("-compatibility"):
            return 409, {"error_code": 409, "message": "incompatible"}
        versions.append(body["schema"])
        self.by_id.append(body["schema"])
        return 200, {"id": len(self.by_id)}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                sizes = [line.split(":")[1] for line in head if line.lower().startswith("content-length")]
                body = json.loads(await reader.readexactly(int(sizes[0])) if sizes and int(sizes[0]) else "{}")
                method, path, _ = head[0].split()
                status, shown = self.answer(method, path, body)
                content = json.dumps(shown).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        writer.close()


@pytest.mark.parametrize(
    "settings",
    [
        None,
        {"compatibility": "FULL"},
        {"compatibility": "FORWARD", "normalize": True, "alias": "other"},
        {"alias": "a"},
    ],
)
async def test_other_settings_of_a_subject_stay_too(settings: dict[str, Any] | None) -> None:
    scripted = ScriptedRegistry(settings and dict(settings))
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    old, new = (change_schema(each, "cdc") for each in (INTEGER, TEXT))
    async with client(url, on_incompatible="register") as schemas:
        scripted.versions["t-value"] = [json.dumps(old)]
        await schemas.register("t-value", new)
        assert scripted.settings == settings
        assert json.loads(scripted.versions["t-value"][-1]) == new
        await schemas.register("u-value", old)
        assert scripted.settings == {"compatibility": "BACKWARD"} | (settings or {})
    server.close()


async def test_no_registry_there_means_try_again() -> None:
    async with client("http://127.0.0.1:1", timeout_s=2) as schemas:
        with pytest.raises(RegistryUnavailable):
            await schemas.register("t-value", POSITION)
        with pytest.raises(RegistryUnavailable):
            await schemas.schema(1)


@asynccontextmanager
async def answering(answer: bytes | None, seen: list[bytes] | None = None) -> AsyncIterator[str]:
    """An HTTP server that gives one answer, or none, to everything: no local registry can be made
    to give these."""
    end, served = asyncio.Event(), list[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        request = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(request)
        if answer is None:
            await end.wait()
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        end.set()
        server.close()
        await asyncio.gather(*(task for task in served if task is not None), return_exceptions=True)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("302 Found", RegistryMissing),
        ("401 Unauthorized", RegistryDenied),
        ("403 Forbidden", RegistryDenied),
        ("404 Not Found", RegistryMissing),
        ("413 Payload Too Large", RegistryUnwilling),
        ("422 Unprocessable", RegistryUnwilling),
        ("429 Too Many Requests", RegistryUnavailable),
        ("500 Internal Server Error", RegistryUnavailable),
        ("503 Service Unavailable", RegistryUnavailable),
        ("507 Insufficient Storage", RegistryUnwilling),
        ("520 Unknown Error", RegistryUnwilling),
    ],
)
async def test_an_answer_is_classed_by_its_status(
    status: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schemas.registry_client._PAUSES_S", (0.0,))
    answer = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    async with answering(answer) as url, client(url) as schemas:
        with pytest.raises(error, match=f"{url}/subjects/t-value") as caught:
            await schemas.register("t-value", POSITION)
    assert type(caught.value) is error


PAGE = b"<!DOCTYPE html><title>Sign in</title>"
NESTED = b"[" * 100_000


@pytest.mark.parametrize(
    ("answer", "error", "said", "remedy"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 37\r\n\r\n" + PAGE, RegistryMissing, "an HTML page", "login page"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + NESTED,
            RegistryMissing,
            "RecursionError",
            "login page",
        ),
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 100014\r\n\r\n{"schema": "' + NESTED + b'"}',
            RegistryMissing,
            "RecursionError",
            "login page",
        ),
        (b"HTTP/1.1 403 No\r\nContent-Length: 100000\r\n\r\n" + NESTED, RegistryDenied, "403", ""),
        (
            b"HTTP/1.1 403 No\r\nContent-Length: 37\r\n\r\n" + PAGE,
            RegistryDenied,
            "403",
            "is an HTML page, so it is not",
        ),
        (
            b"HTTP/1.1 302 Found\r\nLocation: https://u:geheim@login.example/?geheim=1\r\nContent-Length: 0\r\n\r\n",
            RegistryMissing,
            r"302, a redirect to login\.example",
            "login page",
        ),
        (
            b"SSH-2.0-OpenSSH_9.6\r\n",
            RegistryUnavailable,
            "does not answer",
            "the port in registry.url belongs to another",
        ),
        (b"", RegistryUnavailable, "without sending a response", "the port in registry.url belongs to another service"),
    ],
)
async def test_something_else_that_answers_is_named(
    answer: bytes, error: type[SchemaError], said: str, remedy: str
) -> None:
    async with answering(answer) as url, client(url) as schemas:
        with pytest.raises(error, match=said) as caught:
            await schemas.latest("t-value")
    assert type(caught.value) is error and remedy in caught.value.hint
    assert "geheim" not in str(caught.value)


async def test_a_proxy_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://u:geheim@127.0.0.1:1")
    async with client("http://registry.example:8081", timeout_s=2) as schemas:
        with pytest.raises(RegistryUnavailable, match=r"versions/latest through the proxy 127\.0\.0\.1:1\)") as caught:
            await schemas.latest("t-value")
    assert "add its host to NO_PROXY" in caught.value.hint and "geheim" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with client("http://127.0.0.1:1", timeout_s=2) as schemas:
        with pytest.raises(RegistryUnavailable) as caught:
            await schemas.latest("t-value")
    assert "proxy" not in (str(caught.value) + caught.value.hint).lower()


async def test_a_registry_without_its_path_says_which_one(registry: Registry) -> None:
    """Apicurio at its root: an answer of its own, which is no Confluent API's."""
    async with client(f"http://127.0.0.1:{registry.port}") as schemas:
        with pytest.raises(RegistryMissing, match="404, but not in the format") as caught:
            await schemas.latest("t-value")
    assert "/apis/ccompat/v7" in caught.value.hint and "{" not in caught.value.message


async def test_a_registry_that_does_not_answer_in_time_is_unavailable() -> None:
    async with answering(None) as url, client(url, timeout_s=0.2) as schemas:
        with pytest.raises(RegistryUnavailable):
            await schemas.register("t-value", POSITION)


async def test_credentials_are_sent_and_never_shown() -> None:
    seen: list[bytes] = []

    answer = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with answering(answer, seen) as url, client(url, username="me", password="hidden one") as schemas:
        with pytest.raises(RegistryRefused) as caught:
            await schemas.register("t-value", POSITION)
    assert base64.b64encode(b"me:hidden one") in seen[0]
    assert "hidden" not in str(caught.value)
