"""The decoder against a running server: what a subscriber rebuilds equals what the server's own
SELECT says."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from gateway.pgoutput.decode import decode
from gateway.pgoutput.stream import StreamStart, StreamStop
from gateway.pgoutput.tuple_data import Binary, Text, TupleData, TupleValue
from tests.conftest import Database
from tests.pgoutput.replica import Replica
from tests.pgoutput.writer import write

pytestmark = pytest.mark.integration

SLOT = "decode"
SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy')",
    """CREATE TABLE item (id int PRIMARY KEY, amount numeric, name text, ratio double precision, data bytea, moment timestamptz,
        token uuid, doc jsonb, numbers int[], mood mood, stay daterange, big text)""",
    "ALTER TABLE item ALTER big SET STORAGE EXTERNAL",
    # The key and the whole row at once: under FULL every column is of the key.
    "CREATE TABLE entry (id int, name text, big text)",
    "ALTER TABLE entry REPLICA IDENTITY FULL",
    "ALTER TABLE entry ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE scratch (id int PRIMARY KEY)",
    "CREATE PUBLICATION pub FOR TABLE item, entry, scratch",
)
ENDS = ("COMMIT", "COMMIT", "ROLLBACK", "COMMIT PREPARED", "ROLLBACK PREPARED")
RANDOM_ITEM = """INSERT INTO item SELECT id, CASE WHEN random() < 0.1 THEN 'NaN' ELSE (random() * 1e6)::numeric(20, 4) END,
    CASE WHEN random() < 0.2 THEN NULL ELSE md5(random()::text) || ' ü' END, random() * 1e9, decode(md5(random()::text), 'hex'),
    now() - random() * interval '1000 days', md5(random()::text)::uuid, jsonb_build_object('k', random()),
    ARRAY[1, NULL, (random() * 100)::int], (enum_range(NULL::mood))[1 + (random() * 2)::int],
    daterange(current_date, current_date + (random() * 100)::int),
    CASE WHEN random() < 0.3 THEN repeat(md5(random()::text), 100) END
    FROM generate_series({first}, {last}) id"""


async def work(database: Database, number: int, seed: int) -> None:
    """One writer with keys of its own: small and large transactions, savepoints, rollbacks, key
    changes."""
    choose = random.Random(seed + number)
    connection = await database.connect()
    next_id = number * 1_000_000
    for _ in range(8):
        first = next_id
        size = choose.choice([1, 3, 300])  # 300 rows are more than the server keeps in memory
        next_id += 3 * size
        mine = f"id BETWEEN {number * 1_000_000} AND {next_id}"
        await connection.execute("BEGIN")
        await connection.execute(RANDOM_ITEM.format(first=first, last=first + size - 1))
        await connection.execute("SAVEPOINT inner_one")
        await connection.execute(RANDOM_ITEM.format(first=first + size, last=first + 2 * size - 1))
        await connection.execute(f"DELETE FROM item WHERE {mine} AND random() < 0.3")
        await connection.execute(choose.choice(["ROLLBACK TO inner_one", "RELEASE inner_one"]))
        await connection.execute(f"UPDATE item SET amount = amount + 1, mood = 'ok' WHERE {mine} AND random() < 0.3")
        await connection.execute(f"UPDATE item SET id = -id - 1 WHERE {mine} AND random() < 0.2")
        await connection.execute(
            f"INSERT INTO entry SELECT id, 'n', repeat(md5(id::text), 100) FROM generate_series({first}, {first + size}) id"
        )
        await connection.execute(f"UPDATE entry SET name = md5(random()::text) WHERE {mine} AND random() < 0.5")
        await connection.execute(f"DELETE FROM entry WHERE {mine} AND random() < 0.3")
        # The same gid each time: it may be used again after its transaction has ended.
        await end(connection, choose.choice(ENDS), f"{database.name} {number}")
        await connection.execute(f"INSERT INTO scratch VALUES ({first})")
        if number == 0 and choose.random() < 0.3:
            await connection.execute("TRUNCATE scratch")
    await connection.close()


async def end(connection: Any, how: str, gid: str) -> None:
    if how.endswith("PREPARED"):
        await connection.execute(f"PREPARE TRANSACTION '{gid}'")
        how += f" '{gid}'"
    await connection.execute(how)


async def source_rows(connection: Any, table: str, binary: bool) -> set[TupleData]:
    """The table as the server's own output functions write it: typoutput by `format('%s')`, typsend
    by name."""
    columns = await connection.fetch(
        """SELECT quote_ident(attname) AS name, typsend::text AS send FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
            WHERE attrelid = $1::text::regclass AND attnum > 0 ORDER BY attnum""",
        table,
    )
    cells = [
        f"{column['send']}({column['name']})"
        if binary
        else f"CASE WHEN {column['name']} IS NOT NULL THEN convert_to(format('%s', {column['name']}), 'UTF8') END"
        for column in columns
    ]
    wrap = Binary if binary else Text
    rows = await connection.fetch(f"SELECT {', '.join(cells)} FROM {table}")
    return {tuple([None if cell is None else wrap(cell) for cell in row]) for row in rows}


async def check(database: Database, seed: int) -> None:
    connection = await database.connect()
    for name, value in (("extra_float_digits", "3"), ("intervalstyle", "iso_8601"), ("bytea_output", "hex")):
        await connection.execute(f"SET {name} = {value}")
    for statement in SETUP:
        await connection.execute(statement)
    major = connection.get_server_version().major
    two_phase = major >= 15  # pgoutput of 14 sends a prepared transaction when it is committed
    await connection.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', false, {two_phase})")
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work(database, number, seed))
    streaming: list[dict[str, str]] = [{"proto_version": "1"}, {"proto_version": "2", "streaming": "on"}]
    if major >= 16:
        streaming.append({"proto_version": "4", "streaming": "parallel"})
    for options in streaming:
        for binary in (False, True):
            await check_reading(connection, {**options, "binary": str(binary), "publication_names": "pub"}, binary)
    await connection.close()


async def check_reading(connection: Any, options: dict[str, str], binary: bool) -> None:
    messages = await connection.fetch(
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL, VARIADIC $1)",
        [word for option in options.items() for word in option],
    )
    replica = Replica()
    kinds: Counter[str] = Counter()
    in_stream = False
    for (payload,) in messages:
        message = decode(payload, in_stream=in_stream, protocol_version=int(options["proto_version"]))
        assert write(message) == payload
        in_stream = isinstance(message, StreamStart) or (in_stream and not isinstance(message, StreamStop))
        kinds[type(message).__name__] += 1
        replica.apply(message)
    assert {"Insert", "Update", "Delete", "Relation", "Begin"} <= set(kinds)
    assert ("StreamCommit" in kinds) == ("streaming" in options)
    assert ("CommitPrepared" in kinds) == (connection.get_server_version().major >= 15)
    for table in ("item", "entry", "scratch"):
        expected = await source_rows(connection, table, binary)
        assert rebuilt(replica, table) == expected, f"{table} with {options}"
        assert table == "scratch" or len(expected) > 100


def rebuilt(replica: Replica, table: str) -> set[TupleData]:
    rows = replica.tables[table].values()
    assert all(is_value(value) for row in rows for value in row)
    return set(rows)


def is_value(value: TupleValue) -> bool:
    return value is None or isinstance(value, Text | Binary)


@pytest.mark.parametrize("seed", [1])
async def test_tables_rebuilt_from_the_stream_equal_the_source(database: Database, seed: int) -> None:
    await check(database, seed)


@pytest.mark.parametrize("seed", [2])
async def test_tables_rebuilt_from_the_oldest_server_equal_the_source(database_oldest: Database, seed: int) -> None:
    await check(database_oldest, seed)
