"""The parts together, as the demo gets them; and what the tests' own fixtures promise."""

from __future__ import annotations

import pytest

from gateway.local import Kafka, LocalParts, PartFailed, Postgres
from gateway.local.ports import answers
from tests.conftest import Database

pytestmark = pytest.mark.integration


async def test_a_failing_part_takes_the_others_down() -> None:
    kafka = Kafka(settings={"log.segment.bytes": "no number"})
    parts = LocalParts(kafka=kafka, postgres=Postgres())
    with pytest.raises(PartFailed, match=r"log\.segment\.bytes"):
        await parts.start()
    for port in (parts.postgres.port, parts.kafka.port, parts.registry.port):
        assert not await answers(port)


async def test_a_database_is_ready_for_logical_decoding(database: Database) -> None:
    connection = await database.connect()
    assert await connection.fetchval("SHOW logical_decoding_work_mem") == "64kB"
    await connection.execute("SELECT pg_create_logical_replication_slot('ready', 'pgoutput', false, true)")
    await connection.execute("CREATE TABLE t AS SELECT 1")
    await connection.execute("BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'it''s left open'")


async def test_the_oldest_database_is_14(database_oldest: Database) -> None:
    connection = await database_oldest.connect()
    assert (await connection.fetchval("SHOW server_version")).startswith("14.")
    await connection.close()
