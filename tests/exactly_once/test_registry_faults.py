"""The schema registry is away, slow, of another mind: nothing is sent without its schema, and the
slot stays alive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from gateway.local import Kafka, Registry
from gateway.local.ports import HOST
from tests.conftest import Database
from tests.exactly_once.conftest import WAL_SENDER_TIMEOUT_S
from tests.exactly_once.workload import PUBLICATION
from tests.support.proxy import FaultProxy
from tests.support.scene import Scene, open_scene
from tests.support.slots import until_free
from tests.support.written import checked

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class Place:
    def __init__(
        self, database: Database, kafka: Kafka, registry: Registry, proxy: FaultProxy, prefix: str, folder: Path
    ) -> None:
        self.database = database
        self.kafka = kafka
        self.registry = registry
        self.proxy = proxy
        self.prefix = prefix
        self.folder = folder

    @asynccontextmanager
    async def scene(self, **settings: Any) -> AsyncIterator[Scene]:
        url = self.registry.url.replace(f":{self.registry.port}", f":{self.proxy.port}")
        values: dict[str, Any] = {"registry__url": url, "registry__timeout_s": 3.0} | settings
        async with open_scene(
            self.database, self.kafka.bootstrap_servers, self.registry.url, self.prefix, self.folder, **values
        ) as scene:
            yield scene


@pytest.fixture
def place(
    own_database: Database,
    kafka: Kafka,
    registry: Registry,
    registry_proxy: FaultProxy,
    topic_prefix: str,
    tmp_path: Path,
) -> Place:
    return Place(own_database, kafka, registry, registry_proxy, topic_prefix, tmp_path)


def _bad(name: str, answer: bytes, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(answer, id=name, marks=marks)


async def test_a_registry_that_is_away_at_the_start_is_waited_for(place: Place) -> None:
    """R1."""
    await place.proxy.refuse()
    async with place.scene() as scene:
        scene.gateway.start()
        await scene.gateway.logged('"restarting"', times=2)
        await place.proxy.accept()
        await scene.gateway.logged('"streaming"')
        await scene.commits()
        await scene.finish()


async def test_a_registry_that_goes_away_holds_back_only_what_is_new(place: Place) -> None:
    """R1: known schemas go on; a relation that needs a new one waits, and is delivered when the
    registry is back."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await place.proxy.refuse()
        await scene.commits()
        await scene.connection.execute("ALTER TABLE work.plain ADD COLUMN extra int")
        xid = await scene.workload.one_transaction("plain", 10)
        await scene.gateway.logged('"restarting"', times=2)
        assert scene.gateway.is_running
        await place.proxy.accept()
        await scene.delivered(xid)
        await scene.finish()


async def test_a_slow_registry_does_not_cost_the_stream(place: Place) -> None:
    """R2: a call that takes longer than wal_sender_timeout."""
    async with place.scene(registry__timeout_s=60.0) as scene:
        await scene.streaming()
        await scene.commits()
        place.proxy.delay(WAL_SENDER_TIMEOUT_S * 1.25, "to_client")
        commits = asyncio.create_task(scene.commits("full", row_count=10))
        await asyncio.sleep(WAL_SENDER_TIMEOUT_S * 1.5)  # its first calls are under way
        place.proxy.heal()
        assert await commits > WAL_SENDER_TIMEOUT_S
        assert (await scene.finish()).epoch_count == 1


@pytest.mark.long  # the next test stops and goes on in the same way
async def test_an_incompatible_change_of_type_stops_with_table_column_and_types(place: Place) -> None:
    """R3: and nothing is lost: with on_incompatible=register, or after the column was changed back,
    it goes on."""
    async with place.scene() as scene:
        await scene.connection.execute("ALTER TABLE work.plain ADD COLUMN amount int")
        await scene.streaming()
        await scene.commits()
        await scene.connection.execute("ALTER TABLE work.plain ALTER COLUMN amount TYPE text")
        xid = await scene.workload.one_transaction("plain", 1)
        await scene.ends("work.plain", "amount", "on_incompatible")
        scene.gateway.start(schemas__on_incompatible="register")
        await scene.delivered(xid)
        await scene.finish()


async def test_what_was_committed_before_an_incompatible_change_is_delivered_first(place: Place) -> None:
    """R3: the stream arrives in one piece, and the person who must decide may take days."""
    async with place.scene() as scene:
        await scene.connection.execute("ALTER TABLE work.plain ADD COLUMN amount int")
        await scene.streaming()
        await scene.commits()
        await scene.gateway.stop()
        before = [await scene.workload.one_transaction("plain", 2) for _ in range(5)]
        await scene.connection.execute("ALTER TABLE work.plain ALTER COLUMN amount TYPE text")
        in_the_way = await scene.workload.one_transaction("plain", 1)
        scene.gateway.start()
        await scene.ends("work.plain", "amount", "on_incompatible")
        delivered = await scene.read()
        xids = [marker.value["xid"] for marker in delivered.markers if marker.value["kind"] == "COMMIT"]
        assert xids[-5:] == before
        await until_free(scene.connection, f"slot_{place.prefix}")  # its walsender has read the last answer
        flush = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = $1"
        assert await scene.sql(flush, f"slot_{place.prefix}") == delivered.markers[-1].value["end_lsn"]
        scene.gateway.start(schemas__on_incompatible="register")
        await scene.delivered(in_the_way)
        await scene.finish()


async def test_another_registry_behind_the_url_is_refused(place: Place) -> None:
    """R5: schema ids in records that are there would mean something else, or nothing. The other
    registry knows them all under other ids: here the id of the position's schema is asked for in
    vain, and then is that of something else."""
    async with place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.gateway.stop()
        for answer in (
            _answer("404 Not Found", {"error_code": 40403, "message": "no such schema"}),
            _answer("200 OK", {"schema": json.dumps({"type": "record", "name": "Order", "fields": []})}),
        ):
            server = await asyncio.start_server(_always(answer), HOST, 0)
            async with server:
                place.proxy.target_port = server.sockets[0].getsockname()[1]
                scene.gateway.start()
                await scene.ends("registry.url", "walgate.position")
        place.proxy.target_port = place.registry.port
        await scene.streaming()
        await scene.commits()
        await scene.finish()


@pytest.mark.long
async def test_a_registry_that_was_emptied_is_restored(place: Place) -> None:
    """From its backup: every schema has the id that it had."""
    async with Registry() as emptied, place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await scene.gateway.stop()
        backup = await asyncio.to_thread(_exported, place.registry)
        place.proxy.target_port = emptied.port
        scene.gateway.start()
        await scene.ends("registry.url", "restore the registry")
        await asyncio.to_thread(_import, emptied, backup)
        await scene.streaming()
        await scene.commits()
        await scene.finish()


async def test_a_registry_from_an_old_backup_gives_no_id_twice(place: Place) -> None:
    """R8: it lacks a schema that records name. Neither the running gateway nor the next start
    registers anything there: the new schema would get that id."""
    async with Registry() as older, place.scene() as scene:
        await scene.streaming()
        await scene.commits()
        await asyncio.to_thread(_import, older, await asyncio.to_thread(_exported, place.registry))
        await scene.connection.execute("ALTER TABLE work.plain ADD COLUMN extra int")
        await scene.commits()
        place.proxy.target_port = older.port
        place.proxy.cut()
        await scene.commits()
        backup = await asyncio.to_thread(_subjects, older)
        xid = await scene.workload.one_transaction("full", 1)  # its first row: its schema is new
        await scene.ends("has lost schemas", f"{place.prefix}.work.plain.Change", "restore the registry")
        assert "has lost schemas" in await checked(scene.gateway, 78)
        scene.gateway.start()
        await scene.ends("has lost schemas", f"{place.prefix}.work.plain.Change", "restore the registry")
        assert await asyncio.to_thread(_subjects, older) == backup
        place.proxy.target_port = place.registry.port
        await scene.streaming()
        await scene.delivered(xid)
        await scene.finish()


def _subjects(registry: Registry) -> list[str]:
    with urlopen(f"{registry.url}/subjects") as answer:
        return sorted(json.load(answer))


def _exported(registry: Registry) -> bytes:
    with urlopen(f"http://{HOST}:{registry.port}/apis/registry/v3/admin/export") as answer:
        found: bytes = answer.read()
        return found


def _import(registry: Registry, backup: bytes) -> None:
    url = f"http://{HOST}:{registry.port}/apis/registry/v3/admin/import"
    with urlopen(Request(url, backup, {"Content-Type": "application/zip"}, method="POST")) as answer:
        assert answer.status < 300


def _answer(status: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


def _always(answer: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that says the same to everybody."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return respond


async def test_a_registry_that_refuses_writes_for_a_while_costs_no_table(place: Place) -> None:
    """R7: a registry in read-only mode, a limit of a proxy: nothing that says anything about the
    schema."""
    answers = (
        b'HTTP/1.1 422 Unprocessable\r\ncontent-length: 49\r\n\r\n{"error_code": 42205, "message": "read-only now"}',
        b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 13\r\n\r\n<html></html>",
        b"HTTP/1.1 507 Insufficient Storage\r\ncontent-length: 0\r\n\r\n",
    )
    async with place.scene(errors__on_error="quarantine") as scene:
        await scene.streaming()
        await scene.commits()
        for number, answer in enumerate(answers):
            server = await asyncio.start_server(_always(answer), HOST, 0)
            async with server:
                place.proxy.target_port = server.sockets[0].getsockname()[1]
                place.proxy.cut()
                await scene.connection.execute(f"ALTER TABLE work.plain ADD COLUMN extra{number} int")
                before = len(scene.gateway.events("restarting"))
                xid = await scene.workload.one_transaction("plain", 2)
                await scene.gateway.logged('"restarting"', times=before + 1)
                refused = scene.gateway.events("restarting")[before]
                assert "the schema registry returned" in refused["reason"] and "tries again" in refused["hint"], refused
                place.proxy.target_port = place.registry.port
                place.proxy.cut()
            await scene.delivered(xid)
        assert not scene.gateway.events("table_quarantined")
        await scene.finish()


async def test_names_that_avro_and_kafka_do_not_know_pass(place: Place) -> None:
    """R4, T19: quotes, dots, emoji, capitals; two that differ only in such a character stay two."""
    names = ["a-b", "a_b", 'Q"uote', "dot.ted", "größe", "smile 😀", "SELECT", "x" * 63]
    async with place.scene() as scene:
        for name in names:
            quoted = '"' + name.replace('"', '""') + '"'
            await scene.connection.execute(f"CREATE TABLE work.{quoted} (id bigint PRIMARY KEY, {quoted} text)")
            await scene.connection.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE work.{quoted}")
        await scene.streaming()
        for number, name in enumerate(names):
            quoted = '"' + name.replace('"', '""') + '"'
            await scene.connection.execute(f"INSERT INTO work.{quoted} VALUES ({number}, $1)", name)
        await scene.commits()
        delivered = await scene.read()
        found = {record.value["after"]["id"]: record for record in delivered.events if "work.plain" not in record.topic}
        assert sorted(found) == list(range(len(names)))
        assert len({record.topic for record in found.values()}) == len(names)
        for number, name in enumerate(names):
            values = dict(found[number].value["after"])
            assert values.pop("id") == number
            assert list(values.values()) == [name]


@pytest.mark.parametrize(
    "answer",
    [
        _bad("401", b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", pytest.mark.long),
        _bad("403", b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"),
        _bad("404", b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", pytest.mark.long),
        _bad("429", b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n", pytest.mark.long),
        _bad("503", b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"),
        _bad(
            "redirect",
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            pytest.mark.long,
        ),
        _bad("not-json", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nnot JSON!"),
        _bad("not-http", b"rubbish\r\n\r\n", pytest.mark.long),
    ],
)
async def test_a_registry_with_bad_answers_is_never_half_believed(place: Place, answer: bytes) -> None:
    """R6: credentials are given back, an ingress gets its backend: what may pass is named and tried
    again."""
    server = await asyncio.start_server(_always(answer), HOST, 0)
    async with server, place.scene() as scene:
        place.proxy.target_port = server.sockets[0].getsockname()[1]
        scene.gateway.settings["registry__timeout_s"] = 5  # of the pauses at 429, too
        scene.gateway.start()
        await scene.gateway.logged('"restarting"', times=2)
        assert all("registry" in entry["reason"] for entry in scene.gateway.events("restarting"))
        place.proxy.target_port = place.registry.port
        place.proxy.cut()
        await scene.gateway.logged('"streaming"')
        assert "Traceback" not in scene.gateway.log()
