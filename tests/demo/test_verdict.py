"""The verdict is "equal" for a true copy and for nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest
import pytest_asyncio

from gateway.demo import scenes
from gateway.demo.buyers import Tally
from gateway.demo.verdict import MirrorTable, TableVerdict, compare_table, connect_for_verdict
from gateway.demo.workload import TABLES, create_shop, run_workload
from tests.conftest import Database

pytestmark = pytest.mark.integration

Rows = list[tuple[str | None, ...]]

_WIDE = """
    CREATE TABLE wide (id integer PRIMARY KEY, flag boolean, number numeric, price numeric(8,2), ratio float8, small real,
                       data bytea, at timestamptz, doc json, words text[], code character(4));
    INSERT INTO wide VALUES
        (1, true, 1.50, 1.50, 0.1, 0.1, '\\x00ff', '2026-01-02 03:04:05.000006+00', '{"a":  1}', '{a,NULL,"NULL"}', 'ab'),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""
_TRUE_COPY: Rows = [
    (
        "1",
        "true",
        "1.50",
        "1.50",
        "0.1",
        "0.1",
        "\\x00ff",
        "2026-01-02T03:04:05.000006Z",
        '{"a":  1}',
        '{a,NULL,"NULL"}',
        "ab  ",
    ),
    ("2", *[None] * 10),
]
_COLUMNS = ("id", "flag", "number", "price", "ratio", "small", "data", "at", "doc", "words", "code")
# What a wrong mirror might say of row 1, by column.
_ERRORS = {
    "flag": ("false", None),
    "number": ("1.5", "1.500", None),
    "price": ("1.504", "1.5", "NaN"),  # 1.504 would be rounded into place by numeric(8,2)
    "ratio": ("0.10000000000000002", "NaN", "-0.1"),
    "small": ("0.10000001", None),
    "data": ("\\x00fe", "\\x", "00ff"),
    "at": ("2026-01-02 03:04:05.000007+00", "2026-01-02 03:04:05.000006+01", "infinity"),
    "doc": ('{"a": 1}', "null", None),
    "words": ("{a,NULL,NULL}", "{a}", "[a]"),
    "code": ("ac  ", None),  # trailing blanks mean nothing in character(n)
}


@pytest_asyncio.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect_for_verdict(database.dsn)
    yield connection
    await connection.close()


async def compare_wide(connection: asyncpg.Connection, rows: Rows) -> TableVerdict:
    return await compare_table(connection, "public.wide", MirrorTable(_COLUMNS, rows))


async def test_a_true_copy_is_equal_however_its_values_are_written(connection: asyncpg.Connection) -> None:
    await connection.execute(_WIDE)
    verdict = await compare_wide(connection, _TRUE_COPY)
    assert verdict.equal
    assert (verdict.source_rows, verdict.mirror_rows) == (2, 2)


@pytest.mark.parametrize(("column", "value"), [(c, v) for c, values in _ERRORS.items() for v in values])
async def test_one_wrong_value_is_found_and_named(
    connection: asyncpg.Connection, column: str, value: str | None
) -> None:
    await connection.execute(_WIDE)
    wrong = list(_TRUE_COPY[0])
    wrong[_COLUMNS.index(column)] = value
    verdict = await compare_wide(connection, [tuple(wrong), _TRUE_COPY[1]])
    assert not verdict.equal
    assert verdict.differing_rows == 1
    (difference,) = verdict.differences
    assert (difference.table, difference.key, difference.column) == ("public.wide", "id=1", column)


async def test_a_missing_a_surplus_and_a_double_row_are_found(connection: asyncpg.Connection) -> None:
    await connection.execute(_WIDE)
    missing = await compare_wide(connection, _TRUE_COPY[:1])
    surplus = await compare_wide(connection, [*_TRUE_COPY, ("3", *[None] * 10)])
    double = await compare_wide(connection, [*_TRUE_COPY, _TRUE_COPY[1]])
    assert [str(one.differences[0]) for one in (missing, surplus)] == [
        "public.wide id=2: PostgreSQL a row, mirror no row",
        "public.wide id=3: PostgreSQL no row, mirror a row",
    ]
    assert not missing.equal
    assert not surplus.equal
    assert not double.equal


async def test_an_empty_or_unknown_mirror_is_not_equal(connection: asyncpg.Connection) -> None:
    await connection.execute(_WIDE)
    assert not (await compare_wide(connection, [])).equal
    assert not (await compare_table(connection, "public.wide", MirrorTable((), []))).equal


async def test_a_column_that_the_mirror_lacks_is_named_though_it_is_null_everywhere(
    connection: asyncpg.Connection,
) -> None:
    await connection.execute(_WIDE)
    await connection.execute("ALTER TABLE wide ADD COLUMN late integer")
    verdict = await compare_wide(connection, _TRUE_COPY)
    assert not verdict.equal
    assert verdict.missing_columns == ("late",)


async def test_a_column_that_was_dropped_in_postgresql_may_stay_in_the_mirror(connection: asyncpg.Connection) -> None:
    await connection.execute(_WIDE)
    await connection.execute("ALTER TABLE wide DROP COLUMN doc")
    assert (await compare_wide(connection, _TRUE_COPY)).equal


async def test_rows_without_a_key_are_counted_by_content(connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE TABLE seen (page text, at integer)")
    await connection.execute("INSERT INTO seen VALUES ('a', 1), ('a', 1), (NULL, NULL)")

    async def compare(*rows: tuple[str | None, ...]) -> TableVerdict:
        return await compare_table(connection, "public.seen", MirrorTable(("page", "at"), rows))

    assert (await compare((None, None), ("a", "1"), ("a", "1"))).equal
    assert not (await compare((None, None), ("a", "1"), ("b", "1"))).equal
    once = await compare((None, None), ("a", "1"), (None, None))
    assert not once.equal
    assert "public.seen (a, 1): PostgreSQL 2 times, mirror 1 times" in map(str, once.differences)


async def test_any_row_corrupted_or_dropped_in_a_copy_of_the_shop_is_found(
    connection: asyncpg.Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "BULK_ROWS", 20_000)
    await create_shop(database.dsn)
    await run_workload(database.dsn, Tally(), seconds=1.0, seed=3)
    for table in TABLES:
        copy = await true_copy(connection, table)
        rows = list(copy.rows)
        middle = len(rows) // 2
        assert (await compare_table(connection, table, copy)).equal
        assert not (
            await compare_table(connection, table, replace(copy, rows=rows[:middle] + rows[middle + 1 :]))
        ).equal
        corrupted = (*rows[middle][:-1], "2001-01-01")
        rows[middle] = corrupted
        assert not (await compare_table(connection, table, replace(copy, rows=rows))).equal


async def true_copy(connection: asyncpg.Connection, table: str) -> MirrorTable:
    columns = [
        record[0]
        for record in await connection.fetch(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped",
            table,
        )
    ]
    texts = ", ".join(f"{column}::text" for column in columns)
    return MirrorTable(tuple(columns), [tuple(row) for row in await connection.fetch(f"SELECT {texts} FROM {table}")])
