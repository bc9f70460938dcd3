"""What is kept of relations does not grow with those that were dropped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from gateway.local import Kafka, Registry
from gateway.pgoutput.relation import Relation
from gateway.postgres.publication import PublicationLoader
from gateway.snapshot.coordinator import SnapshotCoordinator
from gateway.snapshot.stored_state import decode_states
from gateway.transactions.native_record_writer import EventVersion
from schemas.lsn import Lsn
from schemas.records import SNAPSHOT_STATE
from schemas.relation import ReplicaIdentity
from schemas.wire_format import frame
from tests.conftest import Database
from tests.runtime.test_session import settings_of
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import Scene, open_scene
from tests.transactions.stream import RecordingEncoder, Stream

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NOT_ASKED: Any = None
KEY = b"123/shop/walgate"
TABLE_COUNT, ROUNDS = 3, 3
MAKE = "CREATE TABLE public.{t} (id int PRIMARY KEY, v text); INSERT INTO public.{t} VALUES ({n}, 'of {n}')"


def kept(scene: Scene) -> set[str]:
    """The ends of the slot's keys in the topic, as a stock client reads them."""
    consumer = Consumer(
        {"bootstrap.servers": scene.kafka.bootstrap_servers, "group.id": scene.prefix, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition("walgate.snapshot", 0, OFFSET_BEGINNING)])
    keys: set[str] = set()
    try:
        while (record := consumer.poll(30)) is not None and record.error() is None:
            key = (record.key() or b"").decode()
            (keys.add if record.value() is not None else keys.discard)(key)
    finally:
        consumer.close()
    slot = f"/slot_{scene.prefix}#"
    return {key.partition(slot)[2] for key in keys if slot in key}


async def keeps_only_what_exists(scene: Scene) -> None:
    oids = [oid for (oid,) in await scene.sql.fetch("SELECT oid::int8 FROM pg_class WHERE relname ~ '^m[0-9]$'")]
    wanted = {f"{oid}{part}" for oid in oids for part in ("", ".content")}
    assert len(wanted) == 2 * TABLE_COUNT
    async with asyncio.timeout(60):
        while (found := await asyncio.to_thread(kept, scene)) != wanted:
            print(sorted(found))
            await asyncio.sleep(0.5)


async def test_records_of_dropped_relations_are_removed(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """One relation comes and goes between two checks. The tables are reloaded under their names,
    and changed when their former relations are gone."""
    names = [f"m{number}" for number in range(TABLE_COUNT)]
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path) as scene:
        await scene.sql.execute(";".join(MAKE.format(t=name, n=0) for name in names))
        await scene.sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        await scene.gateway.streaming()
        await scene.snapshot_done()
        for number in range(1, ROUNDS + 1):
            again = ";".join(f"DROP TABLE public.{name}; {MAKE.format(t=name, n=number)}" for name in names)
            await scene.sql.execute(again)
            await scene.snapshot_done(times=number + 1)
            for statement in (*MAKE.format(t="passing", n=number).split(";"), "DROP TABLE public.passing"):
                await scene.sql.execute(statement)
        await keeps_only_what_exists(scene)
        await scene.sql.execute(";".join(f"INSERT INTO public.{name} VALUES (100, 'kept')" for name in names))
        await scene.delivered()
        assert await scene.gateway.stop() == 0
        await scene.sql.execute(f"DROP TABLE public.m0; {MAKE.format(t='m0', n=200)}")
        scene.gateway.start()
        await scene.snapshot_done(times=ROUNDS + 2)
        await keeps_only_what_exists(scene)
        for name in names:  # the rows of former relations are the consumer's to remove
            await scene.sql.execute(f"TRUNCATE public.{name}; INSERT INTO public.{name} VALUES (300, 'last')")
        await scene.judge({f"public.{name}": f"SELECT * FROM public.{name}" for name in names}, keyless=())
        assert await scene.gateway.stop() == 0


class Session:
    """A session whose stream is given by the test, and what it has stored."""

    def __init__(self, sql: asyncpg.Connection, values: dict[bytes, bytes] | None = None) -> None:
        self.sql = sql
        self.values = values or {}
        self.stream = Stream()
        states = decode_states(self.values, {1: SNAPSHOT_STATE})
        self.snapshot = SnapshotCoordinator(
            settings_of(publications=[PUBLICATION]), sql, self.stream.machine, NOT_ASKED, NOT_ASKED, states,
            login=NOT_ASKED, position_key=KEY, frame=frame(1), is_first=values is None, text_only=False,
            publications=PublicationLoader([PUBLICATION]),
        )  # fmt: skip

    async def start(self) -> Self:
        await self.snapshot.prepare()
        self._store()
        return self

    async def check(self, times: int = 1) -> None:
        for _ in range(times):
            await self.snapshot._check_catalog()
            self._store()

    def _store(self) -> None:
        for key, value in self.snapshot.take_states().items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def relation_received(self, oid: int, name: str) -> None:
        relation = Relation(None, oid, "public", name, ReplicaIdentity.DEFAULT, ())
        self.snapshot.relation_received(relation, is_again=False, is_excluded=False)
        encoder: Any = RecordingEncoder()
        self.stream.machine.announce(oid, None, EventVersion(name, 7, encoder, self.stream.rows))

    async def receives_all(self) -> None:
        """An empty transaction is received that ends where the WAL does."""
        end_lsn = Lsn.parse(await self.sql.fetchval("SELECT pg_logical_emit_message(false, 'test', '')::text"))
        self.stream.machine.begin(end_lsn - 1, 0, 1)
        self.stream.machine.commit(end_lsn - 1, end_lsn, 0)

    def has_record(self, oid: int) -> bool:
        return KEY + b"#%d" % oid in self.values

    def has_version(self, oid: int) -> bool:
        return self.stream.machine.relations.in_force(oid, None) is not None

    def purpose(self, oid: int) -> str:
        return self.snapshot._tasks.by_oid[oid].state.purpose


async def made(sql: asyncpg.Connection, *names: str) -> list[int]:
    await sql.execute(";".join(f"CREATE TABLE public.{name} (id int)" for name in names))
    return [int(await sql.fetchval("SELECT $1::text::regclass::oid::int8", f"public.{name}")) for name in names]


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
async def test_a_relation_is_kept_while_a_transaction_may_still_create_it(database: Database, outcome: str) -> None:
    """PostgreSQL sends changes of a transaction before its commit is visible."""
    sql, other = await database.connect(), await database.connect()
    await sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    session = await Session(sql).start()
    await other.execute("BEGIN")
    (oid,) = await made(other, "late")
    session.relation_received(oid, "late")
    for _ in range(3):
        await session.receives_all()
        await session.check()
        assert session.has_record(oid) and session.has_version(oid)
    await other.execute(outcome)
    await session.check(times=2)
    if outcome == "COMMIT":
        assert session.purpose(oid) == "FILL" and session.has_version(oid)
        await sql.execute("DROP TABLE public.late")
        await session.check(times=3)
    assert not session.has_record(oid)


async def test_the_version_of_a_dropped_relation_is_kept_until_the_stream_has_passed_the_check(
    database: Database,
) -> None:
    sql = await database.connect()
    await sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    oid, kept = await made(sql, "behind", "kept")
    session = await Session(sql).start()
    await session.receives_all()
    await sql.execute("DROP TABLE public.behind")
    await session.check(times=2)
    session.relation_received(oid, "behind")  # the gateway lags behind
    session.relation_received(kept, "kept")
    await session.check(times=3)
    assert session.has_version(oid) and not session.has_record(oid)
    await session.receives_all()
    await session.check()
    assert not session.has_version(oid) and session.has_version(kept)


async def test_a_relation_with_an_oid_that_was_dropped_replaces_the_rows_that_consumers_have(
    database: Database,
) -> None:
    """The relation between two that were dropped stands for one that has the oid of either."""
    sql = await database.connect()
    first, reused, last = await made(sql, "first", "reused", "last")
    await sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.first, public.last")
    session = await Session(sql).start()
    assert [session.purpose(oid) for oid in (first, last)] == ["FILL", "FILL"]
    await sql.execute("DROP TABLE public.first, public.last")
    await session.check(times=3)
    assert list(session.values) == [KEY]
    (newer,) = await made(sql, "newer")
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.reused, public.newer")
    for each in (await Session(sql, dict(session.values)).start(), session):
        await each.check()
        assert (each.purpose(reused), each.purpose(newer)) == ("REPLACE", "FILL")


async def test_a_relation_that_leaves_the_publications_and_exists_is_read_again(database: Database) -> None:
    sql = await database.connect()
    (oid,) = await made(sql, "away")
    await sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.away")
    session = await Session(sql).start()
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE public.away")
    await session.check(times=3)
    session = await Session(sql, session.values).start()
    await session.check(times=3)
    assert session.has_record(oid)
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.away")
    await session.check()
    assert session.purpose(oid) == "REPLACE"
