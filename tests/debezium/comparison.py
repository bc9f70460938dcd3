"""Debezium's records and Walgate's, field by field; and the differences that are meant, each with
its reason.

docs/debezium.md tells the same list to users.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tests.debezium.encoded import Record

MEANT: Final[dict[str, str]] = {
    r"by_full_without_key: records": "no tombstone without a key: a compacted topic refuses it",
    r"by_index (key|schema of key).*": "the key is what old tuples hold; Debezium writes 0 for a key that was not sent",
    r"defaults /(before|after)/an_optional_int": "NULL is NULL, and not the column's default",
    r"defaults /before/(a_month|an_hour|a_tenth|a_far_timestamp|a_far_date|a_midnight)": "the same",
    r"defaults schema of value field a_far_(timestamp|date)": "infinity is no default; Debezium writes a wrong number",
    r"defaults schema of value field a_midnight": "24:00:00 is the default; Java has no such time",
    r"defaults schema of value field a_rounded": "rounded to the column's scale; Debezium has no default",
    r"defaults schema of value field a_tenth": "the shortest decimal; Debezium widens a float4",
    r"extremes (schema of value field |/after/)x_int2vector": "Debezium writes an empty array",
    r"\w+ schema of value field [tx]_moods": "the array may hold NULL; Debezium writes null for the whole array",
    r"extremes /after/x_moods": "the same",
    r"extremes schema of value field x_(bits|domains)": "an array that Debezium announces, but always writes null for",
    r"extremes /after/x_(bits|domains)": "the same",
    r"\w+ /(before|after)/t_name": "a value of the type name is there; Debezium writes null",
    r"\w+ /after/(t_times|x_timetzs)": "times in arrays have their microseconds; Debezium cuts them",
    r"extremes /after/x_timestamp(_3)?": "what 64 bits do not hold is null and in the log; infinity as text is infinity",
    r"extremes /after/x_date": "infinity as text is infinity",
    r"extremes /after/x_(int4s|texts)": "arrays of several dimensions are null and in the log; Debezium writes rubbish",
    r"extremes /after/x_bare_numerics": "NaN in an array is there; Debezium writes null for the whole array",
    r"\w+ (/(before|after)/|schema of value field )(t_intervals|x_moneys|x_names)": "with unknown types: arrays too",
    r"\w+ /(before|after)/t_(int4multirange|line|lseg|box|path|polygon|circle)": "with unknown types: PostgreSQL's own text",
    r"large /after/bytes": "the placeholder in every binary_handling_mode",
    r"\w+ /(before|after)/[tx]_hstores?": "pairs in PostgreSQL's order, not in Java's",
    r"\w+ /source/version": "the gateway's version",
    r"\w+ /source/sequence": "at a start the end of the last commit is known or not",
    r"transaction (key )?/id": "one id in BEGIN, END and rows: xid and commit LSN",
    r"\w+ /transaction/id": "the same",
    r"transaction /data_collections": "a logical message counts under its prefix; Debezium writes a Java object's name",
}
"""Pattern of the place -> why."""

_WRITTEN = frozenset({"/ts_ms", "/ts_us", "/ts_ns"})
"""When the record was made."""
_OF_THE_RUN = frozenset({"ts_ms", "ts_us", "ts_ns", "txId", "lsn", "sequence", "id", "name", "db"})
"""What two runs of the workload do not share."""
_RANDOM = frozenset({"a_now", "a_uuid", "a_today"})


def differences(theirs: Iterable[Record], ours: Iterable[Record], *, of_one_run: bool) -> list[str]:
    """`place: theirs != ours`, of all that is not MEANT; `of_one_run`: both read the same WAL."""
    return [line for line in _differences(theirs, ours, of_one_run) if not _is_meant(line)]


def unused_reasons(theirs: Iterable[Record], ours: Iterable[Record], *, of_one_run: bool) -> list[str]:
    """Patterns of MEANT that nothing matches."""
    lines = list(_differences(theirs, ours, of_one_run))
    return [pattern for pattern in MEANT if not any(re.match(pattern + ": ", line) for line in lines)]


def _is_meant(line: str) -> bool:
    return any(re.match(pattern + ": ", line) for pattern in MEANT)


def _differences(theirs: Iterable[Record], ours: Iterable[Record], of_one_run: bool) -> Iterator[str]:
    left, right = _by_table(theirs), _by_table(ours)
    for table in sorted({*left, *right}):
        yield from _of_table(table, left.get(table, []), right.get(table, []), of_one_run)


def _by_table(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.topic.rpartition(".")[2], []).append(record)
    return found


def _of_table(table: str, theirs: list[Record], ours: list[Record], of_one_run: bool) -> Iterator[str]:
    if len(theirs) != len(ours):
        yield f"{table}: records: {len(theirs)} != {len(ours)}"
    for left, right in zip(theirs, ours, strict=False):
        yield from _of_schema(f"{table} schema of key", left.key_schema, right.key_schema)
        yield from _of_schema(f"{table} schema of value", left.value_schema, right.value_schema)
        yield from _of_value(f"{table} key", "", left.key, right.key, of_one_run)
        yield from _of_value(table, "", left.value, right.value, of_one_run)


def _of_schema(place: str, left: Any, right: Any) -> Iterator[str]:
    if left is None or right is None:
        if left is not right:
            yield f"{place}: {left is None} != {right is None}"
        return
    mine, other = _fields(left), _fields(right)
    for name in {**mine, **other}:
        if mine.get(name) != other.get(name):
            yield f"{place} field {name}: {json.dumps(mine.get(name))} != {json.dumps(other.get(name))}"
    if list(mine) != list(other) and set(mine) == set(other):
        yield f"{place} order: {list(mine)} != {list(other)}"
    for name in sorted({*left, *right} - {"fields"}):
        if left.get(name) != right.get(name):
            yield f"{place} attribute {name}: {left.get(name)} != {right.get(name)}"


def _fields(schema: Any) -> dict[str, Any]:
    """Those of the envelope and of Value, or of any other record."""
    found = {field["name"]: field for field in schema["fields"]}
    if schema["name"] != "Envelope":
        return found
    value = found.pop("before")["type"][1]
    return {**{f"{name} of the envelope": field for name, field in found.items()}, **_fields(value)}


def _of_value(place: str, path: str, left: Any, right: Any, of_one_run: bool) -> Iterator[str]:
    if path in _WRITTEN:
        return
    if isinstance(left, dict) and isinstance(right, dict):
        for name in {**left, **right}:
            if name in _RANDOM or (name in _OF_THE_RUN and path in ("", "/source", "/transaction") and not of_one_run):
                continue
            yield from _of_value(place, f"{path}/{name}", left.get(name), right.get(name), of_one_run)
    elif repr(left) != repr(right):
        yield f"{place} {path}: {_short(left)} != {_short(right)}"


def _short(value: Any) -> str:
    return repr(value)[:120]
