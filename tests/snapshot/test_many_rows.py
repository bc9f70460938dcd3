"""Two million rows in 30 tables, read while they change, their shape too, and the gateway is killed
again and again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import asyncpg
import pytest
from confluent_kafka import Consumer, TopicPartition

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION, Load, set_up
from tests.snapshot.scene import Scene, open_scene
from tests.snapshot.target import Target, differences
from tests.support.delivered import partition_counts

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(3000)]

SHOP_ROWS = 4000
"""Of four tables."""
SIZES = {"big": 2_000_000, **{f"t{number:02}": 4_000 for number in range(1, 24)}}
KILLS = 20
ROWS_BETWEEN = 50_000
"""At least, of the large table, between two kills."""
SHAPES = (
    "ALTER TABLE shop.t01 ADD COLUMN extra text DEFAULT 'there'",
    "VACUUM FULL shop.t02",
    "ALTER TABLE shop.t03 ALTER n TYPE bigint",
    "ALTER TABLE shop.t04 DROP COLUMN word",
    "TRUNCATE shop.t05",
    "VACUUM FULL shop.t06",
    "ALTER TABLE shop.t07 ADD COLUMN made timestamptz DEFAULT clock_timestamp()",
)


async def test_what_is_read_of_many_rows_is_the_source(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    generator = random.Random(11)
    settings = {"source__two_phase": True, "snapshot__rows_per_s": 25_000, "snapshot__chunk_bytes": 250_000}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await set_up(scene.sql, SHOP_ROWS)
        await _fill(scene.sql)
        shop = Load(database, seed=9, row_count=SHOP_ROWS, pause_s=0.3)
        shop.start()
        stop = asyncio.Event()
        others = asyncio.create_task(_change(database, stop))
        shapes = list(SHAPES)
        for _ in range(KILLS):
            count = await _count(scene)
            await scene.gateway.streaming()
            await _goes_on(scene, count + ROWS_BETWEEN)
            await asyncio.sleep(generator.uniform(0.0, 1.0))
            if shapes:
                await scene.sql.execute(shapes.pop(0))
            await scene.gateway.kill()
        await scene.gateway.streaming(snapshot__rows_per_s=1_000_000)
        await scene.snapshot_done(timeout_s=900)
        stop.set()
        await others
        await shop.finish()
        target = await _is_equal(scene)
        print(f"read: {sum(target.read_count.values())}; stale: {sum(target.stale_count.values())}")
        print(
            f"begun more than once: { {t: n for t, n in target.begin_count.items() if n > 1} }; {shop.count} transactions"
        )
        assert target.begin_count[f"{topic_prefix}.shop.big"] == 1


async def _fill(sql: asyncpg.Connection) -> None:
    for name, count in SIZES.items():
        await sql.execute(f"CREATE TABLE shop.{name} (id int PRIMARY KEY, n int, word text)")
        await sql.execute(f"INSERT INTO shop.{name} SELECT i, i, 'row ' || i FROM generate_series(1, {count}) i")
    assert await sql.fetchval("SELECT count(*) FROM pg_publication_tables WHERE pubname = $1", PUBLICATION) == 30


async def _count(scene: Scene) -> int:
    """Records in the topic of the large table; 0 before there is one."""
    delivered = await asyncio.to_thread(partition_counts, scene.kafka.bootstrap_servers, scene.prefix)
    topic = f"{scene.prefix}.shop.big"
    places = [TopicPartition(topic, number) for number in range(delivered.get(topic, 0))]
    consumer = Consumer({"bootstrap.servers": scene.kafka.bootstrap_servers, "group.id": "count"})
    try:
        ends = [await asyncio.to_thread(consumer.get_watermark_offsets, place, timeout=30) for place in places]
    finally:
        consumer.close()
    return sum(end for _, end in ends)


async def _goes_on(scene: Scene, count: int) -> None:
    async with asyncio.timeout(120):
        while await _count(scene) < count:
            assert scene.gateway.is_running, scene.gateway.log_tail()
            await asyncio.sleep(0.2)


async def _change(database: Database, stop: asyncio.Event) -> None:
    generator = random.Random(12)
    sql = await database.connect()
    while not stop.is_set():
        name, count = generator.choice(list(SIZES.items()))
        key = generator.randrange(1, count)
        statement = generator.choice(
            [
                f"UPDATE shop.{name} SET n = n + 1 WHERE id BETWEEN {key} AND {key + 20}",
                f"DELETE FROM shop.{name} WHERE id = {key}",
                f"INSERT INTO shop.{name} (id, n) VALUES ({count + key}, 0)",
            ]
        )
        with contextlib.suppress(asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError):
            await sql.execute(statement)
        await asyncio.sleep(0.02)


async def _is_equal(scene: Scene) -> Target:
    target = await scene.judge()
    wrong = []
    for name in SIZES:
        topic = f"{scene.prefix}.shop.{name}"
        # A column that came or went when the table was complete is in later rows alone.
        target.tables[topic] = {key: {"id": row["id"], "n": row["n"]} for key, row in target.tables[topic].items()}
        wrong += await differences(scene.sql, target, topic, f"SELECT id, n FROM shop.{name}")
        assert topic in target.complete, name
    assert not wrong, "\n".join(wrong)
    return target
