"""Each of the 19 pgoutput messages: a real server produced it, and its effect is seen in Kafka by
stock clients.

The scenes run once; a test for each message looks at what they left. Begin, Message, Commit,
Origin, Relation, Type, Insert, Update, Delete, Truncate, Stream Start, Stream Stop, Stream Commit,
Stream Abort, Begin Prepare, Prepare, Commit Prepared, Rollback Prepared, Stream Prepare.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio
from confluent_kafka.schema_registry import SchemaRegistryClient

from gateway.local import Kafka, Postgres, Registry
from tests.support import stock_registry
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_free
from tests.support.topics import Topics

PREFIX = f"messages_{uuid4().hex[:8]}"
Values = list[dict[str, Any]]

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE t (id int PRIMARY KEY, note text, feels mood);
CREATE TABLE other (id int PRIMARY KEY);
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
BIG = "INSERT INTO t SELECT n, 'streamed', 'sad' FROM generate_series({0}, {0} + 1999) n"


async def streamed(sql: asyncpg.Connection, watcher: asyncpg.Connection, statement: str) -> None:
    """Run it, and go on when the server has decoded all of it: an abort that comes earlier leaves
    nothing to stream."""
    await sql.execute(statement)
    await watcher.execute("SELECT pg_logical_emit_message(true, 'flush', '')")  # else its last page may wait
    end_lsn = await sql.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    query = f"""SELECT sent_lsn >= '{end_lsn}' FROM pg_stat_replication AS r
        JOIN pg_replication_slots AS s ON s.active_pid = r.pid WHERE s.slot_name = 'messages'"""
    while not await watcher.fetchval(query):
        await asyncio.sleep(0.05)


async def play(sql: asyncpg.Connection, watcher: asyncpg.Connection) -> None:
    """All scenes; the last transaction inserts id -1 so that a reader knows when everything is
    there."""
    await sql.execute("BEGIN; INSERT INTO t VALUES (1, 'one', 'glad'), (2, 'two', 'sad'); COMMIT")
    await sql.execute("UPDATE t SET note = 'uno' WHERE id = 1")
    await sql.execute("DELETE FROM t WHERE id = 2")
    await sql.execute("TRUNCATE t, other")
    await sql.execute("BEGIN; SELECT pg_logical_emit_message(true, 'in', 'a transaction'); COMMIT")
    await sql.execute("BEGIN; SELECT pg_logical_emit_message(false, 'of', 'nobody'); ROLLBACK")
    await sql.execute("SELECT pg_replication_origin_create('elsewhere')")
    await sql.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
    await sql.execute("INSERT INTO t VALUES (3, 'from elsewhere', NULL)")
    await sql.execute("SELECT pg_replication_origin_session_reset()")
    await streamed(sql, watcher, f"BEGIN; {BIG.format(1000)}")
    await streamed(sql, watcher, f"SAVEPOINT s; {BIG.format(4000)}")
    await sql.execute(f"ROLLBACK TO s; {BIG.format(7000)}; COMMIT")
    await streamed(sql, watcher, f"BEGIN; {BIG.format(10000)}")
    await sql.execute("ROLLBACK")
    await sql.execute("BEGIN; INSERT INTO t VALUES (4, 'p', NULL); PREPARE TRANSACTION 'kept'")
    await sql.execute("COMMIT PREPARED 'kept'")
    await streamed(sql, watcher, "BEGIN; INSERT INTO t VALUES (5, 'r', NULL); PREPARE TRANSACTION 'dropped'")
    await sql.execute("ROLLBACK PREPARED 'dropped'")
    await streamed(sql, watcher, f"BEGIN; {BIG.format(20000)}")
    await sql.execute("PREPARE TRANSACTION 'streamed'")
    await sql.execute("COMMIT PREPARED 'streamed'")
    await sql.execute("INSERT INTO t VALUES (-1, 'the end', NULL)")


class Played:
    """What the scenes left in Kafka."""

    def __init__(self, topics: Topics) -> None:
        self.registry_url = topics.registry_url
        rows = topics.read(f"{PREFIX}.public.t", until=lambda values: any(after_id(v) == -1 for v in values))
        self.keys = [key for key, _ in rows]
        self.rows: Values = [value for _, value in rows]
        self.markers: Values = [value for _, value in topics.read(f"{PREFIX}.transaction")]
        self.messages: Values = [value for _, value in topics.read(f"{PREFIX}.message")]
        self.other: Values = [value for _, value in topics.read(f"{PREFIX}.public.other")]

    def marker(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The only marker of that kind with these fields."""
        found = [
            m for m in self.markers if m["kind"] == kind and all(m[name] == value for name, value in fields.items())
        ]
        assert len(found) == 1, (kind, fields, len(found))
        return found[0]

    def row(self, row_id: int, op: str = "INSERT") -> dict[str, Any]:
        (found,) = [row for row in self.rows if row["op"] == op and after_id(row) == row_id]
        return found


def after_id(row: dict[str, Any]) -> int | None:
    return None if row["after"] is None else row["after"]["id"]


@pytest_asyncio.fixture(scope="session")
async def played(
    postgres: Postgres, kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Played]:
    admin = await postgres.connect()
    await admin.execute("CREATE DATABASE messages")
    sql = await postgres.connect("messages")
    await sql.execute(SCHEMA)
    log: Path = tmp_path_factory.mktemp("messages") / "gateway.log"
    gateway = GatewayProcess(
        log,
        {
            "source__dsn": postgres.database_dsn("messages"),
            "source__slot": "messages",
            "source__two_phase": "true",
            "kafka__bootstrap_servers": kafka.bootstrap_servers,
            "kafka__prefix": PREFIX,
            "registry__url": registry.url,
        },
    )
    await gateway.streaming()
    await play(sql, admin)
    yield await asyncio.to_thread(Played, Topics(kafka.bootstrap_servers, registry.url))
    assert await gateway.stop() == 0, log.read_text()
    await sql.close()
    await until_free(admin, "messages")
    await admin.execute("SELECT pg_drop_replication_slot('messages')")
    await admin.execute("DROP DATABASE messages WITH (FORCE)")
    await admin.close()


async def test_begin_and_commit_frame_a_transaction(played: Played) -> None:
    insert = played.row(1)
    begin = played.marker("BEGIN", xid=insert["xid"])
    commit = played.marker("COMMIT", xid=insert["xid"])
    assert begin["marker_lsn"] == commit["marker_lsn"] == insert["commit_lsn"]
    assert begin["time"] == commit["time"] == insert["commit_time"]
    assert commit["end_lsn"] > commit["marker_lsn"]
    assert commit["manifest"]["event_count"] == 2


async def test_insert_update_and_delete_are_change_events(played: Played) -> None:
    assert played.row(1)["after"] == {"id": 1, "note": "one", "feels": "glad"}
    assert played.row(1, "UPDATE")["after"] == {"id": 1, "note": "uno", "feels": "glad"}
    (delete,) = [row for row in played.rows if row["op"] == "DELETE"]
    assert (delete["old_key"], delete["after"]) == ({"id": 2}, None)


async def test_truncate_is_in_every_partition_of_every_relation(played: Played) -> None:
    truncates = [row for row in played.rows if row["op"] == "TRUNCATE"]
    assert len(truncates) == 3
    assert len({(row["xid"], row["ordinal"]) for row in truncates}) == 1
    assert [row["op"] for row in played.other] == ["TRUNCATE"] * 3
    assert played.marker("COMMIT", xid=truncates[0]["xid"])["manifest"]["event_count"] == 2


async def test_relation_is_the_schema_in_the_registry(played: Played) -> None:
    with SchemaRegistryClient(stock_registry.settings(played.registry_url)) as client:
        text = client.get_latest_version(f"{PREFIX}.public.t-value").schema.schema_str
    assert text is not None
    assert '"pg.relation"' in text and '"replica_identity":"DEFAULT"' in text.replace(" ", "")


async def test_type_names_the_type_of_a_column(played: Played) -> None:
    with SchemaRegistryClient(stock_registry.settings(played.registry_url)) as client:
        text = client.get_latest_version(f"{PREFIX}.public.t-value").schema.schema_str
    assert text is not None and '"mood"' in text


async def test_messages_come_with_a_transaction_and_without_one(played: Played) -> None:
    inside, outside = sorted(played.messages, key=lambda message: message["change_lsn"])
    assert (inside["prefix"], inside["content"], inside["transactional"]) == ("in", b"a transaction", True)
    assert played.marker("COMMIT", xid=inside["xid"])["manifest"]["event_count"] == 1
    assert (outside["prefix"], outside["content"], outside["xid"]) == ("of", b"nobody", 0)


async def test_origin_is_on_rows_and_markers(played: Played) -> None:
    row = played.row(3)
    assert row["origin"] == "elsewhere"
    assert played.marker("COMMIT", xid=row["xid"])["origin"] == "elsewhere"
    assert played.row(1)["origin"] is None


async def test_stream_start_and_stop_frame_segments(played: Played) -> None:
    kinds = [m["kind"] for m in played.markers if m["kind"] in ("STREAM_START", "STREAM_STOP")]
    assert len(kinds) > 4
    assert kinds == ["STREAM_START", "STREAM_STOP"] * (len(kinds) // 2)


async def test_stream_commit_ends_rows_in_progress_and_stream_abort_takes_some_away(played: Played) -> None:
    first = played.row(1000)
    assert (first["commit_lsn"], first["subxid"]) == (None, -1)
    end = played.marker("STREAM_COMMIT", xid=first["xid"])
    abort = played.marker("STREAM_ABORT", xid=first["xid"])
    rolled_back = [row for row in played.rows if row["subxid"] == abort["subxid"]]
    assert rolled_back and all(4000 <= row["after"]["id"] < 6000 for row in rolled_back)
    assert end["manifest"]["aborted_subxids"] == [abort["subxid"]]
    assert abort["time"] is not None  # protocol 4, streaming parallel
    kept = [row for row in played.rows if row["xid"] == first["xid"] and row["subxid"] != abort["subxid"]]
    assert sorted(row["after"]["id"] for row in kept) == [*range(1000, 3000), *range(7000, 9000)]


async def test_stream_abort_ends_a_transaction_that_was_rolled_back(played: Played) -> None:
    (xid,) = {row["xid"] for row in played.rows if 10000 <= (after_id(row) or 0) < 12000}
    assert played.marker("STREAM_ABORT", xid=xid, subxid=xid)["manifest"]["event_count"] > 0
    assert not [m for m in played.markers if m["kind"] == "STREAM_COMMIT" and m["xid"] == xid]


async def test_begin_prepare_and_prepare_frame_rows_that_commit_prepared_commits(played: Played) -> None:
    row = played.row(4)
    begin, prepare, commit = (played.marker(k, gid="kept") for k in ("BEGIN_PREPARE", "PREPARE", "COMMIT_PREPARED"))
    assert row["commit_lsn"] is None
    assert begin["xid"] == prepare["xid"] == commit["xid"] == row["xid"]
    assert commit["manifest"] == prepare["manifest"]
    assert commit["marker_lsn"] > prepare["marker_lsn"]


async def test_rollback_prepared_drops_rows_that_were_prepared(played: Played) -> None:
    row = played.row(5)
    assert played.marker("ROLLBACK_PREPARED", gid="dropped")["xid"] == row["xid"]
    assert not [m for m in played.markers if m["kind"] == "COMMIT_PREPARED" and m["xid"] == row["xid"]]


async def test_stream_prepare_prepares_rows_in_progress(played: Played) -> None:
    prepare = played.marker("STREAM_PREPARE", gid="streamed")
    commit = played.marker("COMMIT_PREPARED", gid="streamed")
    assert commit["manifest"] == prepare["manifest"]
    assert commit["manifest"]["event_count"] == 2000


async def test_every_manifest_adds_up_to_what_is_in_the_topics(played: Played) -> None:
    committed = [m for m in played.markers if m["kind"] in ("COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED")]
    for marker in committed:
        manifest = marker["manifest"]
        records = [
            row
            for row in [*played.rows, *played.other, *played.messages]
            if (row["xid"], row["epoch"]) == (marker["xid"], manifest["epoch"])
        ]
        assert sum(piece["record_count"] for piece in manifest["ranges"]) == len(records)
        assert len({row["ordinal"] for row in records}) == manifest["event_count"]
    lsns = [marker["marker_lsn"] for marker in committed]
    assert lsns == sorted(set(lsns))
