"""Large things: rows, transactions, savepoints, numbers of tables and of open transactions. Memory
stays flat."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.exactly_once.memory import Memory
from tests.exactly_once.shapes import Session
from tests.exactly_once.workload import PUBLICATION
from tests.support.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "row_count",
    [100_000, pytest.param(1_000_000, marks=pytest.mark.long), pytest.param(5_000_000, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("how", ["stream", pytest.param("whole", marks=pytest.mark.long)])
async def test_memory_is_flat_through_a_transaction_of_any_size(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, row_count: int, how: str
) -> None:
    """T1."""
    async with open_scene(
        database,
        kafka.bootstrap_servers,
        registry.url,
        topic_prefix,
        tmp_path,
        source__large_transactions=how,
        source__two_phase=False,
    ) as scene:
        await scene.streaming()
        await scene.commits(row_count=1000)
        memory = Memory(scene)
        begun = time.monotonic()
        await scene.delivered(await scene.workload.one_transaction("plain", row_count), timeout_s=600)
        seconds = time.monotonic() - begun
        print(f"{row_count} rows in one transaction ({how}): {seconds:.0f} s, {memory.end()}")
        if row_count < 1_000_000:
            await scene.finish()


async def test_a_kill_in_the_middle_of_a_large_transaction_voids_its_rows(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """G5, T1: rows of a savepoint are sent, the gateway dies, the savepoint is rolled back, the
    rest commits."""
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        await scene.streaming()
        connection = await database.connect()
        session = Session(connection, scene.workload_random)
        await session.begin("ghosts")
        await session.insert("plain", 2000)
        await connection.execute("SAVEPOINT s")
        await session.insert("full", 2000)
        await scene.sent("work.full", 100)
        await scene.gateway.kill()
        await connection.execute("ROLLBACK TO s")
        await session.insert("plain", 1)
        await session.end()
        await connection.close()
        await scene.streaming()
        verdict = await scene.finish()
        assert verdict.attempted_record_count > verdict.record_count or verdict.epoch_count == 2
        print(verdict)


async def test_a_message_of_a_savepoint_that_is_rolled_back_after_it_was_sent_is_no_ghost(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The server names the whole transaction on a streamed message, so that its STREAM_ABORT does
    not tell."""
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        await scene.streaming()
        connection = await database.connect()
        session = Session(connection, scene.workload_random)
        await session.begin("messages")
        await session.message()
        await session.insert("plain", 2000)
        await scene.sent("work.plain", 100)
        await connection.execute("SAVEPOINT s")
        await session.message()
        await session.insert("full", 2000)
        await scene.sent("work.full", 100)
        await connection.execute("ROLLBACK TO s")
        await session.message()
        await session.end()
        await connection.close()
        await scene.commits(row_count=2000)
        verdict = await scene.finish()
        assert verdict.epoch_count == 2, "one attempt in streams, one without"
        print(verdict)


async def test_ten_thousand_savepoints_of_which_every_tenth_is_rolled_back(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """T2."""
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        await scene.streaming()
        await scene.connection.execute(
            """
            DO $$
            DECLARE number bigint := nextval('history.number');
            BEGIN
                INSERT INTO history.transactions VALUES (number, pg_current_xact_id()::text::bigint & 4294967295, 'deep');
                FOR n IN 1..10000 LOOP
                    BEGIN
                        INSERT INTO work.plain VALUES (-n, number, number || '/' || -n || '/');
                        INSERT INTO history.statements VALUES (number, n, 'INSERT', 'work.plain', ARRAY[-n]);
                        IF n % 10 = 0 THEN RAISE EXCEPTION 'back'; END IF;
                    EXCEPTION WHEN raise_exception THEN NULL;
                    END;
                END LOOP;
            END $$
            """
        )
        verdict = await scene.finish()
        assert verdict.event_count == 9001


@pytest.mark.parametrize("count", [1_100, pytest.param(200_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
async def test_subtransactions_that_are_rolled_back_fill_a_marker_and_no_more(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, count: int
) -> None:
    """T32: a manifest names each of them, in three bytes or so. What does not fit into a record
    stops with the way out."""
    async with open_scene(
        database,
        kafka.bootstrap_servers,
        registry.url,
        topic_prefix,
        tmp_path,
        kafka__compression="none",
        kafka__batch_bytes=max(1024, count // 2),
        kafka__topics='[{"pattern": ".*[.]transaction", "config": {"max.message.bytes": "16777216"}}]',
    ) as scene:
        # Each change is sent at once, so also that of a subtransaction which is rolled back in the
        # next moment.
        await scene.connection.execute(
            f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = immediate"
        )
        await scene.streaming(kafka__max_record_bytes=count)
        await scene.connection.execute(
            f"""
            DO $$
            DECLARE number bigint := nextval('history.number');
            BEGIN
                INSERT INTO history.transactions VALUES (number, pg_current_xact_id()::text::bigint & 4294967295, 'wide');
                INSERT INTO work.plain VALUES (-1, number, number || '/-1/');
                INSERT INTO history.statements VALUES (number, 1, 'INSERT', 'work.plain', ARRAY[-1]);
                FOR n IN 2..{count} LOOP
                    BEGIN
                        INSERT INTO work.plain VALUES (-n, number, '');
                        RAISE EXCEPTION 'back';
                    EXCEPTION WHEN raise_exception THEN NULL;
                    END;
                END LOOP;
            END $$
            """
        )
        await scene.ends("the markers", "kafka.max_record_bytes", timeout_s=600)
        await scene.streaming()
        memory = Memory(scene)
        verdict = await scene.finish(timeout_s=900)
        print(f"{count} subtransactions, all but one rolled back: {memory.end()}; {verdict}")
        markers = (await scene.read()).markers
        manifests = [marker.value["manifest"] for marker in markers if marker.value["kind"] == "STREAM_COMMIT"]
        assert max(len(manifest["aborted_subxids"]) for manifest in manifests) == count - 1


@pytest.mark.parametrize("seconds", [0, pytest.param(90, marks=pytest.mark.long)])
async def test_fifty_interleaved_large_transactions_are_kept_apart(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, seconds: int
) -> None:
    """T3: every one is open while every other one sends; for so many seconds, but four times at
    least."""
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        await scene.streaming()
        await scene.commits(row_count=1000)
        memory = Memory(scene)
        sessions = [Session(await database.connect(), scene.workload_random) for _ in range(50)]
        for session in sessions:
            await session.begin("interleaved")
        row_count = 50 if seconds else 150
        begun = time.monotonic()
        turns = 0
        while turns < 4 or time.monotonic() - begun < seconds:
            for session in sessions:
                await session.insert("plain", row_count)
            turns += 1
        for number, session in enumerate(sessions):
            await session.end(commit=number % 5 != 0)
            await session.connection.close()
        behind_s = await scene.delivered(await scene.workload.finish(), timeout_s=600)
        print(
            f"50 interleaved transactions of {row_count * turns} rows, readable {behind_s:.0f} s after their end: "
            f"{memory.end()}; {await scene.judge()}"
        )


async def test_rows_of_ten_megabytes_pass(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        await scene.streaming()
        await scene.commits(row_count=5, filling=10_000_000)
        await scene.finish()


@pytest.mark.parametrize("table_count", [50, pytest.param(1000, marks=pytest.mark.long)])
async def test_many_tables_in_one_transaction(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, table_count: int
) -> None:
    """T5."""
    async with open_scene(
        database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path, kafka__partitions=1
    ) as scene:
        for start in range(0, table_count, 100):
            names = [f"work.many_{number}" for number in range(start, min(start + 100, table_count))]
            for name in names:
                await scene.connection.execute(
                    f"CREATE TABLE {name} (id bigint PRIMARY KEY, number bigint, payload text)"
                )
            await scene.connection.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {', '.join(names)}")
        await scene.streaming()
        session = Session(await database.connect(), scene.workload_random)
        begun = time.monotonic()
        await session.begin("many tables")
        for number in range(table_count):
            await session.insert(f"many_{number}", 2)
        await session.end()
        await session.connection.close()
        await scene.delivered(session.xid, timeout_s=400)
        print(f"{table_count} new tables in one transaction: {time.monotonic() - begun:.1f} s")
        await scene.finish()
