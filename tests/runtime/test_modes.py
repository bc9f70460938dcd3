"""Settings that change what is delivered, and starts that must be refused."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gateway.local.ports import free_port
from gateway.observe.http_client import ask_status
from tests.conftest import Database
from tests.monitoring.prometheus import NAME
from tests.runtime.test_gateway import committed
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics
from tests.support.watching import Recorded

NewGateway = Callable[..., GatewayProcess]
EXIT_CONFIGURATION = 78


async def test_whole_transactions_are_sent_after_their_commit_and_never_split(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY, pad text); CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway(
        source__large_transactions="whole",
        kafka__memory_bytes=str(1 << 20),
        kafka__batch_bytes="65536",
        kafka__compression="none",
    )
    await gateway.streaming()
    await sql.execute("INSERT INTO t SELECT n, repeat(md5(n::text), 8) FROM generate_series(1, 10000) n")  # 3 MB
    markers = await committed(topics, topic_prefix, 1)
    assert [m["kind"] for m in markers] == ["EPOCH", "BEGIN", "COMMIT"]
    rows = [value for _, value in await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")]
    assert {row["commit_lsn"] for row in rows} == {markers[-1]["marker_lsn"]}
    assert sorted(row["after"]["id"] for row in rows) == list(range(1, 10001))
    await sql.close()


async def test_at_least_once_delivers_without_kafka_transactions(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway(kafka__delivery="at_least_once")
    await gateway.streaming()
    await sql.execute("INSERT INTO t SELECT generate_series(1, 100)")
    await committed(topics, topic_prefix, 1)
    assert await gateway.stop() == 0
    await gateway.streaming()
    await sql.execute("INSERT INTO t VALUES (101)")
    markers = await committed(topics, topic_prefix, 2)
    assert [m["epoch"] for m in markers if m["kind"] == "EPOCH"] == [1, 2]
    await sql.close()


@pytest.mark.long  # tests/subscription/test_servers.py: the same server streams, commits and rolls back
async def test_the_oldest_server_is_read_in_its_own_protocol(
    database_oldest: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database_oldest.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION walgate FOR ALL TABLES")
    await new_gateway(source__dsn=database_oldest.dsn).streaming()
    await sql.execute("INSERT INTO t SELECT n, 'note' FROM generate_series(1, 5000) n")
    await sql.execute("UPDATE t SET note = 'new' WHERE id = 1")
    markers = await committed(topics, topic_prefix, 2)
    assert [m["kind"] for m in markers if "COMMIT" in m["kind"]] == ["STREAM_COMMIT", "COMMIT"]  # type: ignore[operator]
    rows = [value for _, value in await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")]
    assert sorted(row["after"]["id"] for row in rows if row["op"] == "INSERT") == list(range(1, 5001))
    await sql.close()


async def test_text_and_binary_tuples_make_equal_records(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, a int, b text, c numeric(12,2), d timestamptz, e bool, f float8, g date, h uuid,"
        " i jsonb, j bytea, k int[]); CREATE PUBLICATION walgate FOR ALL TABLES"
    )
    prefixes = {"on": f"{topic_prefix}b", "off": f"{topic_prefix}t"}
    for binary, prefix in prefixes.items():
        gateway = new_gateway(source__binary=binary, source__slot=prefix, kafka__prefix=prefix)
        await gateway.streaming()
    await sql.execute(
        "INSERT INTO t SELECT n, n * 7, 'text ' || n, n / 7.0, 'epoch'::timestamptz + n * interval '1 hour', n % 2 = 0,"
        " n / 3.0::float8, 'epoch'::date + n, gen_random_uuid(), jsonb_build_object('n', n), decode(md5(n::text), 'hex'),"
        " array[n, null, -n] FROM generate_series(1, 200) n"
    )
    found = []
    for prefix in prefixes.values():
        await committed(topics, prefix, 1)
        rows = await asyncio.to_thread(topics.read, f"{prefix}.public.t")
        found.append(sorted((value["after"]["id"], key, value["after"]) for key, value in rows))
    assert len(found[0]) == 200
    assert found[0] == found[1]
    await sql.close()


async def test_names_that_are_no_avro_names_keep_their_true_name(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute(
        'CREATE SCHEMA "Sch.ema"; CREATE TABLE "Sch.ema"."my ""table"" 🦉" ("the id" int PRIMARY KEY, "Über" text, "über" text);'
        ' CREATE PUBLICATION "my ""pub"" 🦉" FOR ALL TABLES'
    )
    await new_gateway(source__publications='my "pub" 🦉').streaming()
    await sql.execute("""INSERT INTO "Sch.ema"."my ""table"" 🦉" VALUES (1, 'upper', 'lower')""")
    await committed(topics, topic_prefix, 1)
    topic = f"{topic_prefix}.Sch-2eema.my-20-22table-22-20-f0-9f-a6-89"
    ((key, value),) = await asyncio.to_thread(topics.read, topic)
    assert list(key.values()) == [1]
    assert list(value["after"].values()) == [1, "upper", "lower"]
    await sql.close()


async def test_a_second_gateway_waits_and_takes_over(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    seen = Recorded(free_port())
    first, second = new_gateway(), new_gateway(http__port=str(seen.port))
    await first.streaming()
    second.start()
    await second.logged("is in use by process")
    await sql.execute("INSERT INTO t VALUES (1)")
    await committed(topics, topic_prefix, 1)
    async with asyncio.timeout(60):
        while (status := await asyncio.to_thread(ask_status, "127.0.0.1", seen.port) or {})["lag_seconds"] != 0.0:
            await asyncio.sleep(0.2)
    assert status["state"] == "standby" and status["delivered_lsn"] > 0
    await seen.scrape()
    values = {(dict(labels)[NAME], dict(labels).get("ended_by")): each[-1][1] for labels, each in seen.samples.items()}
    assert values["walgate_connected", None] == 0 and not seen.raised("WalgateNotStreaming")
    assert values["walgate_restarts_total", "SlotInUse"] > 0 and ("walgate_restarts_total", "Retry") not in values
    assert await first.stop() == 0
    await second.logged("streaming")
    await sql.execute("INSERT INTO t VALUES (2)")
    markers = await committed(topics, topic_prefix, 2)
    assert [m["epoch"] for m in markers if m["kind"] == "EPOCH"] == [1, 2]
    rows = await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")
    assert sorted(value["after"]["id"] for _, value in rows) == [1, 2]
    await sql.close()


async def test_only_messages_with_a_prefix_of_the_list_are_published(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway(source__message_prefixes="mine, also mine")
    await gateway.streaming()
    for prefix, size in (("other", 17_000_000), ("other", 1), ("mine", 1), ("also mine", 1)):
        await sql.execute("SELECT pg_logical_emit_message(false, $1, repeat('x', $2))", prefix, size)
        await sql.execute("SELECT pg_logical_emit_message(true, $1, repeat('x', $2))", prefix, size)
    async with sql.transaction():
        await sql.execute("INSERT INTO t VALUES (1)")
        await sql.execute("SELECT pg_logical_emit_message(true, 'other', 'x')")
    markers = await committed(topics, topic_prefix, 3)
    manifests: list[Any] = [marker["manifest"] for marker in markers if marker["kind"] == "COMMIT"]
    assert [manifest["event_count"] for manifest in manifests] == [1, 1, 1]
    assert [manifest["excluded"] for manifest in manifests] == [[], [], []]
    messages = [value for _, value in await asyncio.to_thread(topics.read, f"{topic_prefix}.message")]
    assert sorted(message["prefix"] for message in messages) == ["also mine"] * 2 + ["mine"] * 2
    assert gateway.events("message_excluded") == []
    await sql.close()


@pytest.mark.long  # tests/exactly_once/test_kafka_faults.py refuses it, too
async def test_a_prefix_of_another_slot_is_refused(
    database: Database, new_gateway: NewGateway, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
    first = new_gateway()
    await first.streaming()
    await first.stop()
    other = new_gateway(source__slot=f"{topic_prefix}_other")
    other.start()
    assert await other.wait() == EXIT_CONFIGURATION
    assert "belongs to slot" in other.log()
    await sql.close()


@pytest.mark.parametrize("both_see_the_other", [False, True])
async def test_of_two_first_starts_with_one_prefix_at_most_one_goes_on(
    both_see_the_other: bool, database: Database, new_gateway: NewGateway, topic_prefix: str
) -> None:
    """Both have found the prefix unused. A gateway that has to stop leaves nothing behind that
    would stop the other one."""
    sql = await database.connect()
    await sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
    first, late = new_gateway(), new_gateway(source__slot=f"{topic_prefix}_other")
    if both_see_the_other:
        for gateway in (first, late):
            gateway.start("before_slot_intent:stop, after_slot_intent:stop, after_position_read:stop:2")
        for _ in range(3):
            await _stopped(first, late)
            first.signal(signal.SIGCONT)
            late.signal(signal.SIGCONT)
        assert await first.wait() == EXIT_CONFIGURATION
        assert f"belongs to slot {topic_prefix}_other of" in first.last_words()
        assert "start the one that is meant to have this prefix again" in first.last_words()
    else:
        late.start("before_slot_intent:stop")
        await _stopped(late)
        await first.streaming()
        late.signal(signal.SIGCONT)
    assert await late.wait() == EXIT_CONFIGURATION
    assert f"belongs to slot {topic_prefix} of" in late.last_words()
    assert await first.stop() in (0, EXIT_CONFIGURATION)
    await first.streaming()
    late.start()
    assert await late.wait() == EXIT_CONFIGURATION
    slots = "SELECT array_agg(slot_name::text) FROM pg_replication_slots WHERE slot_name ^@ $1"
    assert await sql.fetchval(slots, topic_prefix) == [topic_prefix]
    await sql.close()


async def _stopped(*gateways: GatewayProcess) -> None:
    async with asyncio.timeout(30):
        while not all(gateway.is_stopped for gateway in gateways):
            await asyncio.sleep(0.02)


PUBLICATION = "CREATE PUBLICATION walgate FOR ALL TABLES"


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ([PUBLICATION, "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"], "adopt_slot"),
        ([PUBLICATION, "SELECT pg_create_physical_replication_slot('{slot}')"], "physical"),
    ],
)
async def test_a_start_that_can_not_go_well_says_what_to_do(
    prepare: list[str], says: str, database: Database, new_gateway: NewGateway, topic_prefix: str
) -> None:
    sql = await database.connect()
    for statement in prepare:
        await sql.execute(statement.format(slot=topic_prefix))
    gateway = new_gateway()
    gateway.start()
    assert await gateway.wait() != 0
    text = gateway.log()
    assert says in text
    assert '"hint": "' in text
    await sql.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", topic_prefix
    )
    await sql.close()


async def test_a_publication_that_is_missing_at_the_start_is_waited_for(
    database: Database, new_gateway: NewGateway, topic_prefix: str
) -> None:
    sql = await database.connect()
    gateway = new_gateway()
    gateway.start()
    await gateway.logged("publication walgate does not exist")
    await sql.execute(PUBLICATION)
    await gateway.logged('"streaming"')
    assert await gateway.stop() == 0
    await sql.close()


async def test_a_stop_ends_a_start_that_waits(database: Database, new_gateway: NewGateway) -> None:
    sql = await database.connect()
    await sql.execute(PUBLICATION)
    gateway = new_gateway(kafka__bootstrap_servers="127.0.0.1:9")
    gateway.start()
    await gateway.logged("restarting")
    assert await gateway.stop() == 0
    await sql.close()
