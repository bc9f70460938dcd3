"""Comparison of the mirror with PostgreSQL: every value of every row, by PostgreSQL itself.

The mirror's values are text. They are copied into a temporary table of text columns in the source
database. There they are read by the input function of the source column's type (without its typmod,
so that nothing is rounded), and written again by its output function. Two values are equal if
PostgreSQL writes the same text for both: -0 is not 0, 1.50 is not 1.5, and whitespace in json
counts. Text that the type cannot read is compared as it is.

Tables with a primary key are joined by it; in other tables, equal rows are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import asyncpg

from gateway.demo.buyers import Connection

SHOWN_DIFFERENCES = 5  # per table
_COPY_ROWS = 20_000
_STATEMENT_TIMEOUT_S = 120.0

# Settings on which the text form of values depends (PostgreSQL manual, 20.11.2 Locale and
# Formatting).
_SESSION = {
    "application_name": "walgate demo: verdict",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
}
_COLUMNS = """
    SELECT a.attname::text AS name, format_type(a.atttypid, -1) AS type,
           coalesce(a.attnum = ANY (i.indkey), false) AS key
    FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
    WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """A table of the mirror. `rows` yields a tuple for each row, in the order of `columns`, with
    values as text that PostgreSQL can read, or None."""

    columns: tuple[str, ...]
    rows: Iterable[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference in one value, or of a whole row, which only one side has. In the second case,
    `column` is empty, and `source` and `mirror` are the numbers of such rows."""

    table: str
    key: str
    column: str
    source: str | None
    mirror: str | None

    def __str__(self) -> str:
        place = f"{self.table} {self.key}" + (f" column {self.column}" if self.column else "")
        return f"{place}: PostgreSQL {_shown(self.source)}, mirror {_shown(self.mirror)}"


@dataclass(frozen=True, slots=True)
class TableVerdict:
    table: str
    source_rows: int
    mirror_rows: int
    differing_rows: int
    differences: tuple[Difference, ...]
    missing_columns: tuple[str, ...]  # in PostgreSQL, not in the mirror

    @property
    def equal(self) -> bool:
        return not self.differing_rows and not self.missing_columns and self.source_rows == self.mirror_rows


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str
    key: bool


async def connect_for_verdict(dsn: str) -> Connection:
    return await asyncpg.connect(dsn, command_timeout=_STATEMENT_TIMEOUT_S, server_settings=_SESSION)


async def compare_table(connection: Connection, table: str, mirror: MirrorTable) -> TableVerdict:
    """Compare a table. `table` includes its schema, as PostgreSQL writes it; `connection` is from
    `connect_for_verdict`."""
    records = await connection.fetch(_COLUMNS, table)
    columns = [_Column(record["name"], record["type"], record["key"]) for record in records]
    async with connection.transaction():
        await _copy(connection, columns, mirror)
        return await _judge(connection, table, columns, mirror.columns)


async def _copy(connection: Connection, columns: Sequence[_Column], mirror: MirrorTable) -> None:
    """Copy the mirror's rows into the temporary table `mirrored`, with NULL for columns that the
    mirror does not have."""
    definition = ", ".join(f"{_quoted(column.name)} text" for column in columns)
    await connection.execute(f"CREATE TEMPORARY TABLE mirrored ({definition}) ON COMMIT DROP")
    places = {name: place for place, name in enumerate(mirror.columns)}
    chosen = [places[column.name] for column in columns if column.name in places]
    names = [column.name for column in columns if column.name in places]
    rows: Iterator[tuple[str | None, ...]] = (tuple(row[place] for place in chosen) for row in mirror.rows)
    while piece := list(islice(rows, _COPY_ROWS)):
        await connection.copy_records_to_table("mirrored", records=piece, columns=names)
    await connection.execute("ANALYZE mirrored")


async def _judge(
    connection: Connection, table: str, columns: Sequence[_Column], mirror_columns: Sequence[str]
) -> TableVerdict:
    source = f"SELECT ARRAY[{', '.join(f'{_quoted(c.name)}::text' for c in columns)}] AS row FROM {table}"
    mirrored = f"SELECT ARRAY[{', '.join(_as_written(c) for c in columns)}] AS row FROM mirrored"
    keys = [place for place, column in enumerate(columns, start=1) if column.key]
    join = _by_key(source, mirrored, keys) if keys else _by_content(source, mirrored)
    differing = await connection.fetch(f"{join} LIMIT {SHOWN_DIFFERENCES}")
    missing = tuple(column.name for column in columns if column.name not in mirror_columns)
    return TableVerdict(
        table=table,
        source_rows=await connection.fetchval(f"SELECT count(*) FROM {table}"),
        mirror_rows=await connection.fetchval("SELECT count(*) FROM mirrored"),
        differing_rows=differing[0]["differing"] if differing else 0,
        differences=tuple(difference for record in differing for difference in _differences(table, columns, record))[
            : 2 * SHOWN_DIFFERENCES
        ],
        missing_columns=missing,
    )


def _as_written(column: _Column) -> str:
    name, type_name = _quoted(column.name), column.type.replace("'", "''")
    return f"CASE WHEN pg_input_is_valid({name}, '{type_name}') THEN {name}::{column.type}::text ELSE {name} END"


def _by_key(source: str, mirrored: str, keys: Sequence[int]) -> str:
    on = " AND ".join(f"s.row[{place}] = m.row[{place}]" for place in keys)
    return (
        f"SELECT s.row AS source, m.row AS mirror, count(*) OVER () AS differing "
        f"FROM ({source}) s FULL JOIN ({mirrored}) m ON {on} WHERE s.row IS DISTINCT FROM m.row"
    )


def _by_content(source: str, mirrored: str) -> str:
    counted = "SELECT row, count(*) AS times FROM ({}) r GROUP BY row"
    return (
        f"SELECT coalesce(s.row, m.row) AS row, coalesce(s.times, 0) AS source_times, coalesce(m.times, 0) AS "
        f"mirror_times, count(*) OVER () AS differing FROM ({counted.format(source)}) s FULL JOIN "
        f"({counted.format(mirrored)}) m ON s.row = m.row WHERE s.times IS DISTINCT FROM m.times"
    )


def _differences(table: str, columns: Sequence[_Column], record: asyncpg.Record) -> list[Difference]:
    if "row" in record.keys():  # noqa: SIM118 - a Record iterates over its values
        content = ", ".join(_shown(value) for value in record["row"])
        times = f"{record['source_times']} times", f"{record['mirror_times']} times"
        return [Difference(table, f"({content})", "", *times)]
    source, mirror = record["source"], record["mirror"]
    key = _key(columns, source or mirror)
    if source is None or mirror is None:
        return [Difference(table, key, "", _times(source), _times(mirror))]
    pairs = zip(columns, source, mirror, strict=True)
    return [Difference(table, key, column.name, s, m) for column, s, m in pairs if s != m]


def _times(row: list[str | None] | None) -> str:
    return "no row" if row is None else "a row"


def _key(columns: Sequence[_Column], row: Sequence[str | None]) -> str:
    return ", ".join(f"{c.name}={_shown(value)}" for c, value in zip(columns, row, strict=True) if c.key)


def _shown(value: str | None) -> str:
    """Return a value for display, shortened if it is long. Unlike real data, demo data may be
    shown."""
    if value is None:
        return "null"
    return value if len(value) <= 60 else f"{value[:50]}... ({len(value)} characters)"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
