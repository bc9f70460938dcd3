"""Tables rebuilt from Kafka, by oid, and those of the source, both as PostgreSQL writes them.

A name may be that of several tables one after another, and a table may get another name: only the
oid tells them apart.
"""

from __future__ import annotations

import datetime
import struct
import uuid
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import asyncpg

from tests.subscription.replica import PostgresText, Replica, apply, array_text
from tests.support.delivered import Decoder, Delivered, Record
from tests.support.markers import read_story

Shape = tuple[Any, ...]
Picture = Counter[tuple[str | None, ...]]

SESSION: Final = """
    SET search_path = pg_catalog; SET DateStyle = ISO; SET IntervalStyle = iso_8601; SET TimeZone = UTC;
    SET extra_float_digits = 3; SET bytea_output = hex
"""
_TABLES: Final = """
    SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid >= 16384 AND n.nspname <> 'information_schema'
    ORDER BY 2
"""
_COLUMNS: Final = """
    SELECT a.attname AS name, a.atttypid AS type, coalesce(nullif(t.typbasetype, 0), t.oid) AS base,
        array(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder)
        || array(SELECT p.attname::text FROM pg_attribute p
                 WHERE t.typtype = 'c' AND p.attrelid = t.typrelid AND p.attnum > 0 ORDER BY p.attnum) AS parts
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attnum
"""
_FLOATS: Final = frozenset({700, 701})
_ARRAYS_OF_FLOATS: Final = frozenset({1021, 1022})


@dataclass(slots=True)
class Rebuilt:
    """One table. `shapes`: replica identity, then (column, type, its parts, is key, field) of each
    column, each time that they changed. `broken`: why it cannot be rebuilt any more."""

    replica: Replica = field(default_factory=Replica)
    shapes: list[Shape] = field(default_factory=list)
    broken: str = ""


def rebuild(delivered: Delivered, decoder: Decoder) -> dict[int, Rebuilt]:
    """By oid, in the order of the markers."""
    story = read_story(delivered.markers)
    assert not story.findings, story.findings[:10]
    by_transaction: dict[tuple[int, int], list[Record]] = {}
    for record in delivered.events:
        by_transaction.setdefault((record.value["xid"], record.value["epoch"]), []).append(record)
    tables: dict[int, Rebuilt] = {}
    for marker in story.committed:
        manifest = marker.value["manifest"]
        aborted = set(manifest["aborted_subxids"])
        seen: set[tuple[int, str]] = set()
        records = by_transaction.get((marker.value["xid"], manifest["epoch"]), [])
        for record in sorted(records, key=lambda record: (record.value["ordinal"], record.value["op"])):
            value = record.value
            once = (value["ordinal"], value["op"])
            moved_away = value["op"] == "DELETE" and value["key_change"]
            if value["op"] != "MESSAGE" and value["subxid"] not in aborted and not moved_away and once not in seen:
                seen.add(once)
                _apply(tables, record, decoder)
    return tables


def _apply(tables: dict[int, Rebuilt], record: Record, decoder: Decoder) -> None:
    schema = decoder.schema(record.schema_id)
    table = tables.setdefault(schema["pg.relation"]["oid"], Rebuilt())
    shape = _shape(schema)
    if not table.shapes or table.shapes[-1] != shape:
        table.shapes.append(shape)
    if table.broken:
        return
    try:
        apply(table.replica, record, decoder)
    except (AssertionError, KeyError, StopIteration) as error:
        table.broken = f"{record.value['op']} of {record.topic}: {type(error).__name__} {error}"


def _shape(schema: dict[str, Any]) -> Shape:
    columns = next(
        branch["fields"]
        for one in schema["fields"]
        if one["name"] == "before"  # its record is that of `after`, too
        for branch in one["type"]
        if isinstance(branch, dict)
    )
    return schema["pg.relation"]["replica_identity"], *(
        (one.get("pg.name", one["name"]), one["pg.type"]["oid"], _parts(one), one["pg.type"]["key"], one["name"])
        for one in columns
    )


def _parts(field: dict[str, Any]) -> tuple[str, ...]:
    """Labels of an enum, attributes of a composite type: ALTER TYPE changes what is stored already.
    The source has those that were dropped, too."""
    told = field.get("pg.catalog", {})
    return (*told.get("labels", ()), *(each["attribute"] for each in told.get("attributes", ())))


@dataclass(slots=True)
class Compared:
    """Numbers of tables. `whole`: every value of every row. `counted`: the rows, where columns or
    key changed under them."""

    whole: int = 0
    rows: int = 0
    counted: int = 0
    findings: list[str] = field(default_factory=list)


async def compare(sql: asyncpg.Connection, tables: dict[int, Rebuilt]) -> Compared:
    """Every table that is in the source now."""
    await sql.execute(SESSION)
    result = Compared()
    for oid, name in await sql.fetch(_TABLES):
        rebuilt = tables.get(oid, Rebuilt())
        columns = await sql.fetch(_COLUMNS, oid)
        shape = [(one["name"], one["type"], tuple(one["parts"])) for one in columns]
        same = len(rebuilt.shapes) <= 1 and all([each[:3] for each in told[1:]] == shape for told in rebuilt.shapes)
        if not same:
            await _compare_count(sql, name, rebuilt, result)
            continue
        if rebuilt.broken:
            result.findings.append(f"{name}: {rebuilt.broken}")
            continue
        source = await _picture(sql, name, columns)
        fields = [each[4] for told in rebuilt.shapes for each in told[1:]]
        mirrored = Counter(tuple(as_text(row[name]) for name in fields) for row in rebuilt.replica.all_rows())
        result.whole += 1
        result.rows += source.total()
        if source != mirrored:
            only_source, only_mirror = list((source - mirrored).items()), list((mirrored - source).items())
            result.findings.append(
                f"{name}: {source.total()} rows, {mirrored.total()} rebuilt; {only_source[:2]}; {only_mirror[:2]}"
            )
    return result


async def _compare_count(sql: asyncpg.Connection, name: str, rebuilt: Rebuilt, result: Compared) -> None:
    count = await sql.fetchval(f"SELECT count(*) FROM ONLY {name}")
    result.counted += 1
    if not rebuilt.broken and count != len(rebuilt.replica.all_rows()):
        result.findings.append(f"{name}: {count} rows, {len(rebuilt.replica.all_rows())} rebuilt, {rebuilt.shapes}")


async def _picture(sql: asyncpg.Connection, name: str, columns: list[Any]) -> Picture:
    fields = [_field(one["name"], one["base"]) for one in columns]
    rows = await sql.fetch(f"SELECT {', '.join(fields) or 'NULL'} FROM ONLY {name}")
    return Counter(tuple(_canonical(row[number], one["base"]) for number, one in enumerate(columns)) for row in rows)


def _field(name: str, base: int) -> str:
    """By the output function: a cast to text takes the blanks of char(n) away. Floats by their
    bits."""
    quoted = '"' + name.replace('"', '""') + '"'
    text = f"CASE num_nulls({quoted}) WHEN 0 THEN format('%s', {quoted}) END"
    if base in _FLOATS:
        return f"encode(float8send({quoted}::float8), 'hex')"
    if base in _ARRAYS_OF_FLOATS:
        return (
            f"CASE WHEN array_ndims({quoted}) = 1 AND array_lower({quoted}, 1) = 1 "
            f"THEN ({quoted}::float8[])::text ELSE {text} END"
        )
    return text


def _canonical(text: str | None, base: int) -> str | None:
    if text is None or base not in _ARRAYS_OF_FLOATS or not text.startswith("{") or text.startswith("{{"):
        return text
    elements = text[1:-1].split(",") if text != "{}" else []
    return array_text([None if one == "NULL" else as_text(float(one)) for one in elements])


def as_text(value: Any) -> str | None:
    """As PostgreSQL writes it; floats by their bits."""
    match value:
        case None | str():
            return value
        case PostgresText():
            return value.text
        case bool():
            return "t" if value else "f"
        case int():
            return str(value)
        case float():
            return struct.pack("!d", value).hex()
        case Decimal():
            return f"{value:f}"
        case bytes():
            return rf"\x{value.hex()}"
        case uuid.UUID():
            return str(value)
        case datetime.datetime():
            return _shorter(value.replace(tzinfo=None).isoformat(" ")) + ("+00" if value.tzinfo else "")
        case datetime.time():
            return _shorter(value.isoformat())
        case datetime.date():
            return value.isoformat()
        case list():
            return array_text([as_text(one) for one in value])
    raise TypeError(type(value))


def _shorter(text: str) -> str:
    return text.rstrip("0") if "." in text else text
