"""Tables rebuilt from Kafka by stock readers, and held against the tables of the source.

A subscriber in 150 lines: markers say what is committed and in which order; rows of abandoned
attempts and of rolled back subtransactions are left out; identity columns find the row that
changes.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import asyncpg

from tests.support.delivered import Decoder, Delivered, Record
from tests.support.markers import read_story

Row = dict[str, Any]
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PostgresText:
    """A value that its Avro type cannot hold, as PostgreSQL writes it."""

    text: str


@dataclass(slots=True)
class Replica:
    """One table. `keyed` where there are identity columns, else `rows`."""

    keyed: dict[Key, Row] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)

    def all_rows(self) -> list[Row]:
        return [*self.keyed.values(), *self.rows]


def rebuild(delivered: Delivered, decoder: Decoder) -> dict[str, Replica]:
    """By topic. Raises AssertionError where the markers tell an impossible story or a row to change
    is not there."""
    story = read_story(delivered.markers)
    assert not story.findings, story.findings
    by_transaction: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in delivered.events:
        by_transaction[record.value["xid"], record.value["epoch"]].append(record)
    replicas: dict[str, Replica] = defaultdict(Replica)
    for marker in story.committed:
        manifest = marker.value["manifest"]
        aborted = set(manifest["aborted_subxids"])
        records = by_transaction[marker.value["xid"], manifest["epoch"]]
        seen: set[tuple[int, str]] = set()
        for record in sorted(records, key=lambda record: (record.value["ordinal"], record.value["op"])):
            value = record.value
            once = (value["ordinal"], value["op"])
            moved_away = value["op"] == "DELETE" and value["key_change"]
            if value["subxid"] in aborted or value["op"] == "MESSAGE" or moved_away or once in seen:
                continue
            seen.add(once)
            apply(replicas[record.topic], record, decoder)
    return replicas


def apply(replica: Replica, record: Record, decoder: Decoder) -> None:
    value = record.value
    operation = value["op"]
    replica.operations.append(operation)
    if operation == "TRUNCATE":
        replica.keyed.clear()
        replica.rows.clear()
        return
    key = None if record.key is None else as_key(decoder.decode(record.key)[1])
    old = _take_old(replica, key, value) if operation in ("UPDATE", "DELETE") else {}
    if operation != "DELETE":
        row = dict(value["after"])
        row |= {column: PostgresText(text) for column, text in value["special"].items()}
        row |= {column: old[column] for column in value["unchanged"]}
        if key is None:
            replica.rows.append(row)
        else:
            assert operation == "UPDATE" or key not in replica.keyed, f"{record.topic}: {key} is inserted twice"
            replica.keyed[key] = row


def _take_old(replica: Replica, key: Key | None, value: Row) -> Row:
    if key is None:
        old: Row = next(row for row in replica.rows if _same_row(row, value["before"]))
        replica.rows.remove(old)
        return old
    columns = [name for name, _ in key]
    before = value["old_key"] or value["before"]
    if before is not None:
        key = as_key({name: before[name] for name in columns})
    return replica.keyed.pop(key)


def _same_row(row: Row, before: Row) -> bool:
    return all(row.get(name) == field or isinstance(row.get(name), PostgresText) for name, field in before.items())


def as_key(values: Row) -> Key:
    return tuple((name, repr(value)) for name, value in values.items())


async def differences(connection: asyncpg.Connection, table: str, replica: Replica) -> list[str]:
    """One line for each row or value that is not the same in the source; `table` may be any SQL
    relation expression."""
    columns = [
        (attribute.name, attribute.name.replace('"', '""'))
        for attribute in (await connection.prepare(f"SELECT * FROM {table}")).get_attributes()
    ]
    both = ", ".join(f'"{quoted}"' for _, quoted in columns)
    # By the output function: a cast to text takes the blanks of char(n) away.
    texts = "".join(f', CASE num_nulls("{quoted}") WHEN 0 THEN format(\'%s\', "{quoted}") END' for _, quoted in columns)
    rows = await connection.fetch(f"SELECT {both}{texts} FROM {table}")
    source = [
        {name: (row[index], row[index + len(columns)]) for index, (name, _) in enumerate(columns)} for row in rows
    ]
    mirrored = replica.all_rows()
    found = []
    if len(source) != len(mirrored):
        found.append(f"{table}: {len(source)} rows in the source, {len(mirrored)} in the replica")
    index: dict[Any, list[Row]] = defaultdict(list)
    for row in mirrored:
        index[_first_field(row, columns)].append(row)
    for wanted in source:
        candidates = index[str(next(iter(wanted.values()))[0])] if wanted else mirrored
        match = next((row for row in candidates if _row_matches(row, wanted)), None)
        if match is None:
            found.append(f"{table}: no row like {wanted}, but {[_unlike(row, wanted) for row in candidates[:3]]}")
        else:
            candidates.remove(match)
    return found


def _unlike(row: Row, wanted: dict[str, tuple[Any, str | None]]) -> dict[str, tuple[Any, Any]]:
    """The columns that differ, with both values."""
    return {name: (row.get(name), field) for name, field in wanted.items() if not value_matches(row.get(name), *field)}


def _first_field(row: Row, columns: list[tuple[str, str]]) -> str:
    return str(row.get(columns[0][0])) if columns else ""


def _row_matches(row: Row, wanted: dict[str, tuple[Any, str | None]]) -> bool:
    return all(value_matches(row.get(name), native, text) for name, (native, text) in wanted.items())


def value_matches(mirrored: Any, native: Any, text: str | None) -> bool:
    """`native` is what asyncpg makes of the value, `text` what PostgreSQL writes."""
    if mirrored is None or text is None:
        return mirrored is None and text is None
    if isinstance(mirrored, PostgresText):
        return mirrored.text == text
    if isinstance(mirrored, str):
        return mirrored == text
    if isinstance(mirrored, float) and isinstance(native, float):
        return repr(mirrored) == repr(native) or mirrored == native
    if isinstance(mirrored, list):
        if all(one is None or isinstance(one, str) for one in mirrored):
            return array_text(mirrored) == text
        return isinstance(native, list) and len(mirrored) == len(native) and all(
            value_matches(one, other, None if other is None else str(other))
            for one, other in zip(mirrored, native, strict=True)
        )  # fmt: skip
    known = (bool, int, Decimal, bytes, uuid.UUID, datetime.datetime, datetime.date, datetime.time)
    return isinstance(mirrored, known) and mirrored == native


def array_text(elements: list[str | None]) -> str:
    """A one-dimensional array as PostgreSQL writes it (manual, 8.15.6)."""
    return "{" + ",".join("NULL" if one is None else _array_element(one) for one in elements) + "}"


def _array_element(text: str) -> str:
    if text and text.upper() != "NULL" and not re.search(r'[{}",\\\s]', text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
