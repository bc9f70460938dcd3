"""PostgreSQL's scenarios about large, nested, prepared transactions and messages: 015 to 021 and
023.

`logical_decoding_work_mem` is 64 kB, so a few hundred rows are sent while their transaction is
open.
"""

from __future__ import annotations

import pytest

from tests.subscription.conftest import Publisher
from tests.support.delivered import read_delivered

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

FILL = "INSERT INTO test_tab SELECT n, sha256(n::text::bytea)::text FROM generate_series({}, {}) n"


async def _test_tab(publisher: Publisher, columns: str = "a int PRIMARY KEY, b text") -> str:
    schema = await publisher.schema()
    await publisher.execute(f"CREATE TABLE test_tab ({columns})")
    await publisher.publish("test_tab")
    return schema


async def _kinds(publisher: Publisher, schema: str) -> set[str]:
    """Of the markers that end something in this schema's topic."""
    delivered = await publisher.delivered(schema)
    topic = f"{publisher.prefix}.{schema}.test_tab"
    return {
        marker.value["kind"]
        for marker in delivered.markers
        if marker.value["manifest"] and any(one["topic"] == topic for one in marker.value["manifest"]["ranges"])
    }


async def test_015_two_streamed_transactions_do_not_leak_into_each_other(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    other = await publisher.database.connect()
    await other.execute(f"SET search_path = {schema}")
    await publisher.execute(FILL.format(1, 2))
    await publisher.execute("BEGIN; " + FILL.format(3, 3000))
    await other.execute("BEGIN; " + FILL.format(3001, 6000))
    await publisher.execute(
        "UPDATE test_tab SET b = 'even' WHERE a % 2 = 0 AND a < 3000; DELETE FROM test_tab WHERE a % 3 = 0 AND a < 3000"
    )
    await other.execute("UPDATE test_tab SET b = 'five' WHERE a % 5 = 0 AND a > 3000; COMMIT")
    await publisher.execute("COMMIT")
    await other.execute("BEGIN; " + FILL.format(7001, 9000) + "; ROLLBACK")
    await publisher.execute("UPDATE test_tab SET b = 'small' WHERE a = 1")
    await other.close()
    await publisher.equal(schema, "test_tab")
    assert await _kinds(publisher, schema) >= {"COMMIT", "STREAM_COMMIT"}


async def test_016_five_levels_of_savepoints(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    body = ""
    for level in range(6):
        start = 1 + level * 500
        body += f"SAVEPOINT s{level}; {FILL.format(start, start + 499)}; "
        body += (
            f"UPDATE test_tab SET b = 'u' || a WHERE a % 2 = 0 AND a >= {start}; DELETE FROM test_tab WHERE a % 7 = 0;"
        )
    await publisher.execute(f"BEGIN; {body} COMMIT")
    await publisher.equal(schema, "test_tab")


async def test_017_columns_added_within_a_streamed_transaction(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    await publisher.execute(
        """
        BEGIN;
        INSERT INTO test_tab SELECT n, 'first' FROM generate_series(1, 1000) n;
        ALTER TABLE test_tab ADD COLUMN c int;
        INSERT INTO test_tab SELECT n, 'second', -n FROM generate_series(1001, 2000) n;
        SAVEPOINT s;
        ALTER TABLE test_tab ADD COLUMN d int;
        INSERT INTO test_tab SELECT n, 'third', -n, 4 * n FROM generate_series(2001, 2500) n;
        COMMIT;
        """
    )
    await publisher.execute("INSERT INTO test_tab VALUES (3000, 'small', 1, 2)")
    await publisher.execute(
        "BEGIN; ALTER TABLE test_tab ADD COLUMN e int; INSERT INTO test_tab VALUES (3001, 'x', 1, 1, 1); COMMIT"
    )
    await publisher.execute("INSERT INTO test_tab VALUES (3002, 'y', 2, 2, 2)")
    await publisher.equal(schema, "test_tab")


async def test_018_rows_of_rolled_back_savepoints_never_become_visible(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    await publisher.execute(
        f"""
        BEGIN; {FILL.format(1, 500)};
        SAVEPOINT s1; {FILL.format(501, 1000)};
        SAVEPOINT s2; {FILL.format(1001, 1500)};
        SAVEPOINT s3; {FILL.format(1501, 2000)};
        ROLLBACK TO s2; {FILL.format(2001, 2500)};
        ROLLBACK TO s1; {FILL.format(2501, 3000)};
        SAVEPOINT s4; {FILL.format(3001, 3500)};
        SAVEPOINT s5; {FILL.format(3501, 4000)};
        COMMIT;
        """
    )
    replicas = await publisher.equal(schema, "test_tab")
    assert len(replicas["test_tab"].keyed) == 2000
    await publisher.execute(
        f"""
        BEGIN; {FILL.format(4001, 4500)};
        SAVEPOINT s1; {FILL.format(5001, 5500)};
        SAVEPOINT s2; {FILL.format(6001, 6500)};
        RELEASE s2; {FILL.format(6501, 7000)};
        ROLLBACK TO s1;
        COMMIT;
        """
    )
    assert len((await publisher.equal(schema, "test_tab"))["test_tab"].keyed) == 2500
    await publisher.execute(f"BEGIN; {FILL.format(8001, 8500)}; SAVEPOINT s1; {FILL.format(8501, 9000)}; ROLLBACK")
    assert len((await publisher.equal(schema, "test_tab"))["test_tab"].keyed) == 2500


async def test_019_a_column_added_in_a_rolled_back_savepoint_is_forgotten(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    await publisher.execute(
        """
        BEGIN;
        INSERT INTO test_tab SELECT n, 'before' FROM generate_series(1, 500) n;
        ALTER TABLE test_tab ADD COLUMN c int;
        SAVEPOINT s1;
        INSERT INTO test_tab SELECT n, 'kept', -n FROM generate_series(501, 1000) n;
        ALTER TABLE test_tab ADD COLUMN d int;
        SAVEPOINT s2;
        INSERT INTO test_tab SELECT n, 'gone', -n, n FROM generate_series(1001, 1500) n;
        ALTER TABLE test_tab ADD COLUMN e int;
        SAVEPOINT s3;
        INSERT INTO test_tab SELECT n, 'gone', -n, n, n FROM generate_series(1501, 2000) n;
        ALTER TABLE test_tab DROP COLUMN c;
        ROLLBACK TO s1;
        INSERT INTO test_tab SELECT n, 'after', -n FROM generate_series(2001, 2500) n;
        COMMIT;
        """
    )
    await publisher.execute("INSERT INTO test_tab VALUES (3000, 'small', 7)")
    replicas = await publisher.equal(schema, "test_tab")
    assert len(replicas["test_tab"].keyed) == 1001
    assert set(replicas["test_tab"].all_rows()[-1]) == {"a", "b", "c"}


async def test_020_messages_inside_and_outside_of_transactions(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    mark = schema.encode()
    emit = f"SELECT pg_logical_emit_message({{}}, 'scenario', '{schema} {{}}')"
    await publisher.execute(
        "BEGIN; INSERT INTO test_tab VALUES (1, 'x'); " + emit.format("true", "inside") + "; COMMIT"
    )
    await publisher.execute(emit.format("false", "outside"))
    await publisher.execute(
        "BEGIN; " + emit.format("true", "rolled back") + "; " + emit.format("false", "stays") + "; ROLLBACK"
    )
    await publisher.execute(
        "BEGIN; " + FILL.format(2, 1500) + "; " + emit.format("true", "streamed") + "; SAVEPOINT s; "
        + emit.format("true", "undone") + "; ROLLBACK TO s; COMMIT"
    )  # fmt: skip
    delivered = await publisher.delivered(schema)
    await publisher.caught_up()
    everything = read_delivered(publisher.kafka.bootstrap_servers, publisher.registry.url, publisher.prefix)
    messages = [
        r.value for r in everything.events if r.topic.endswith(".message") and r.value["content"].startswith(mark)
    ]
    aborted = {
        (marker.value["xid"], subxid)
        for marker in delivered.markers
        if marker.value["manifest"]
        for subxid in marker.value["manifest"]["aborted_subxids"]
    }
    kept = {
        value["content"].decode().removeprefix(f"{schema} "): value
        for value in messages
        if (value["xid"], value["subxid"]) not in aborted
    }
    assert kept.keys() == {"inside", "outside", "stays", "streamed"}
    assert len(messages) <= 5
    assert {name: value["transactional"] for name, value in kept.items()} == {
        "inside": True, "outside": False, "stays": False, "streamed": True,
    }  # fmt: skip
    assert kept["outside"]["xid"] == 0 and kept["outside"]["prefix"] == "scenario"


async def test_021_prepared_transactions_are_ended_once_and_only_then_visible(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    gid = f"gid {schema} '"
    quoted = gid.replace("'", "''")
    await publisher.execute(f"BEGIN; INSERT INTO test_tab VALUES (1, 'one'); PREPARE TRANSACTION '{quoted}'")
    assert not (await publisher.replicas(schema)).get("test_tab")
    await publisher.execute(f"COMMIT PREPARED '{quoted}'")
    await publisher.equal(schema, "test_tab")
    await publisher.execute(f"BEGIN; INSERT INTO test_tab VALUES (2, 'two'); PREPARE TRANSACTION '{quoted}'")
    await publisher.caught_up()  # PostgreSQL sends no rows of a transaction that is rolled back before it decodes them
    await publisher.execute(f"ROLLBACK PREPARED '{quoted}'")
    await publisher.equal(schema, "test_tab")
    assert await _kinds(publisher, schema) == {"PREPARE", "COMMIT_PREPARED", "ROLLBACK_PREPARED"}


@pytest.mark.parametrize(
    "rows", [pytest.param(1, marks=pytest.mark.long, id="small"), pytest.param(2000, id="streamed")]
)
async def test_021_what_is_rolled_back_before_it_is_decoded_leaves_no_rows(publisher: Publisher, rows: int) -> None:
    schema = await _test_tab(publisher)
    await publisher.gateway.kill()
    await publisher.execute(f"BEGIN; {FILL.format(1, rows)}; PREPARE TRANSACTION '{schema}'")
    await publisher.execute(f"ROLLBACK PREPARED '{schema}'")
    await publisher.execute("INSERT INTO test_tab VALUES (1, 'after')")
    publisher.gateway.start()
    replicas = await publisher.equal(schema, "test_tab")
    assert replicas["test_tab"].operations == ["INSERT"]
    assert await _kinds(publisher, schema) == {"COMMIT"}


@pytest.mark.parametrize("while_away", ["prepare", "commit", "both"])
async def test_021_a_reader_that_crashes_between_prepare_and_commit(publisher: Publisher, while_away: str) -> None:
    schema = await _test_tab(publisher)
    prepare = (
        "BEGIN; INSERT INTO test_tab VALUES (1, 'one'); SAVEPOINT s; INSERT INTO test_tab VALUES (2, 'gone'); "
        f"ROLLBACK TO s; PREPARE TRANSACTION '{schema}'"
    )
    commit = f"COMMIT PREPARED '{schema}'"
    if while_away == "commit":
        await publisher.execute(prepare)
        await publisher.caught_up()
    await publisher.gateway.kill()
    if while_away != "commit":
        await publisher.execute(prepare)
    if while_away == "prepare":
        publisher.gateway.start()
        await publisher.caught_up()
        await publisher.gateway.kill()
    await publisher.execute(commit)
    publisher.gateway.start()
    replicas = await publisher.equal(schema, "test_tab")
    assert replicas["test_tab"].operations == ["INSERT"]


async def test_023_a_streamed_prepare_with_other_inserts_before_its_end(publisher: Publisher) -> None:
    schema = await _test_tab(publisher)
    await publisher.execute(
        f"BEGIN; {FILL.format(1, 2000)}; UPDATE test_tab SET b = 'even' WHERE a % 2 = 0; DELETE FROM test_tab WHERE a % 3 = 0; "
        f"PREPARE TRANSACTION '{schema}'"
    )
    await publisher.execute("INSERT INTO test_tab VALUES (99999, 'between')")
    assert len((await publisher.replicas(schema))["test_tab"].keyed) == 1
    await publisher.execute(f"COMMIT PREPARED '{schema}'")
    await publisher.equal(schema, "test_tab")
    await publisher.execute(f"BEGIN; {FILL.format(3001, 5000)}; PREPARE TRANSACTION '{schema}'")
    await publisher.caught_up()
    await publisher.execute("DELETE FROM test_tab WHERE a = 99999")
    await publisher.execute(f"ROLLBACK PREPARED '{schema}'")
    await publisher.equal(schema, "test_tab")
    assert {"STREAM_PREPARE", "COMMIT_PREPARED", "ROLLBACK_PREPARED"} <= await _kinds(publisher, schema)
