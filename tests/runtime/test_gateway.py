"""The whole gateway on real parts: what PostgreSQL did, as stock clients read it from Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics

NewGateway = Callable[..., GatewayProcess]


async def committed(topics: Topics, prefix: str, count: int) -> list[dict[str, object]]:
    """The markers that end a committed transaction, once there are `count`."""
    kinds = ("COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED")

    def enough(values: list[dict[str, object]]) -> bool:
        return sum(value["kind"] in kinds for value in values) >= count

    records = await asyncio.to_thread(topics.read, f"{prefix}.transaction", until=enough)
    return [value for _, value in records]


async def test_rows_of_every_operation_arrive_with_their_transaction(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION walgate FOR ALL TABLES")
    await new_gateway().streaming()
    async with sql.transaction():
        xid = await sql.fetchval("SELECT pg_current_xact_id()::text::int8")
        await sql.execute("INSERT INTO t SELECT n, 'note ' || n FROM generate_series(1, 10) n")
        await sql.execute(
            "UPDATE t SET note = 'new' WHERE id = 1; UPDATE t SET id = 20 WHERE id = 2; DELETE FROM t WHERE id = 3"
        )
    markers = await committed(topics, topic_prefix, 1)
    assert [m["kind"] for m in markers] == ["EPOCH", "BEGIN", "COMMIT"]
    commit = markers[-1]
    assert (commit["xid"], commit["manifest"]["event_count"]) == (xid, 13)  # type: ignore[index]
    records = await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")
    assert len(records) == 14  # the key change is two records
    assert {value["xid"] for _, value in records} == {xid}
    assert {value["commit_lsn"] for _, value in records} == {commit["marker_lsn"]}
    by_ordinal = sorted((value["ordinal"], value["op"], key) for key, value in records if not value["key_change"])
    assert [op for _, op, _ in by_ordinal] == ["INSERT"] * 10 + ["UPDATE", "UPDATE", "DELETE"]
    assert by_ordinal[-1][2] == {"id": 3}
    await sql.close()


async def test_a_killed_gateway_goes_on_without_loss_or_doubles(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway()
    await gateway.streaming()
    count = 0
    for _ in range(2):  # more, and under load: tests/exactly_once
        for _ in range(20):
            await sql.execute("INSERT INTO t SELECT $1 + n FROM generate_series(1, 50) n", count)
            count += 50
        await gateway.kill()
        await gateway.streaming()
    await committed(topics, topic_prefix, 40)
    records = await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")
    assert sorted(value["after"]["id"] for _, value in records) == list(range(1, count + 1))
    await sql.close()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_large_transaction_is_readable_before_its_end(
    end: str, database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    await new_gateway().streaming()
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("INSERT INTO t SELECT generate_series(1, 5000)")
    early = await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")
    assert {value["commit_lsn"] for _, value in early} == {None}
    await (transaction.commit() if end == "COMMIT" else transaction.rollback())
    await sql.execute("INSERT INTO t VALUES (-1)")
    markers = await committed(topics, topic_prefix, 2 if end == "COMMIT" else 1)
    ends = [m for m in markers if m["kind"] in ("STREAM_COMMIT", "STREAM_ABORT")]
    assert [m["kind"] for m in ends] == ["STREAM_COMMIT" if end == "COMMIT" else "STREAM_ABORT"]
    manifest = ends[0]["manifest"]
    assert manifest["event_count"] >= 5000 if end == "COMMIT" else manifest["event_count"] > 0  # type: ignore[index]
    assert sum(r["record_count"] for r in manifest["ranges"]) == manifest["event_count"]  # type: ignore[index]
    await sql.close()


async def test_a_stop_drains_and_ends_with_zero(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway()
    await gateway.streaming()
    await sql.execute("INSERT INTO t VALUES (1)")
    (commit,) = [marker for marker in await committed(topics, topic_prefix, 1) if marker["kind"] == "COMMIT"]
    assert await gateway.stop() == 0
    assert await sql.fetchval(  # not all of the WAL: the server writes for itself too
        "SELECT confirmed_flush_lsn - '0/0' >= $2 FROM pg_replication_slots WHERE slot_name = $1",
        topic_prefix,
        commit["end_lsn"],
    )
    await sql.close()
