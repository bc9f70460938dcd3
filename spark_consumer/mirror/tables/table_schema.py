"""Columns of a mirrored table: those of the source, by their own names, and `_special`. That is a
map from the name of a column to PostgreSQL's text of a value that the column's type cannot hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from schemas.schema_metadata import missing_bytes
from spark_consumer.reader.registry import Schema
from spark_consumer.source.frames import TEXTS, TableFrame

SPECIAL = "_special"
LOG_COLUMNS = ("_op", "_commit_lsn", "_commit_time", "_ordinal")
# Values of `_op` for rows that no longer exist.
OUT = ("DELETE", "UPDATE_BEFORE")


@dataclass(frozen=True)
class MissingValue:
    """attmissingval of a column. `encoded`: the value in the Avro type `avro_type`; `special`:
    PostgreSQL's text of a value for which `encoded` is null."""

    avro_type: Any
    encoded: bytes = field(repr=False)
    special: str | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        return {"type": self.avro_type, "avro": self.encoded.hex(), "special": self.special}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> MissingValue:
        return cls(facts["type"], missing_bytes(facts), facts.get("special"))


@dataclass(frozen=True)
class TableSchema:
    """A version of a relation, as the mirror sees it. It is pickled into Spark tasks.

    `oid`: oid of the relation, which is another one if the table was recreated. `key`: columns of
    the replica identity (the primary key under FULL); empty if there is none, and the Delta table
    is append-only. `uncertain_key`: key columns whose Avro type cannot hold every value, so that
    their text in `special` belongs to the key. `numbers`: attnum of each column for which it is
    known; `missing`: attmissingval by attnum, or None where it is too large to be in the schema.
    """

    frame: TableFrame
    oid: int
    key: tuple[str, ...]
    uncertain_key: frozenset[str]
    numbers: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[int, MissingValue | None] = field(default_factory=dict)

    @classmethod
    def of(cls, change: Schema) -> TableSchema:
        """Return the version that a table's value schema describes. Raises UnsupportedSchema."""
        frame = TableFrame.of(change)
        row = frame.schema.field("after").type
        fields = {frame.names.get(item["name"], item["name"]): item for item in _row_fields(change)}
        keys = {name: item for name, item in fields.items() if item.get("pg.type", {}).get("key")}
        if any(map(field_is_array, keys.values())):
            keys = {}  # PostgreSQL's text of an array in old_key is not comparable with the array in a row
        written = {item.name: item.type for item in frame.schema.field("old_key").type}
        uncertain = {
            name
            for name, item in keys.items()
            if field_is_time(item) or (name in written and not written[name].equals(row.field(name).type))
        }
        numbers: dict[str, int] = {}
        missing: dict[int, MissingValue | None] = {}
        for name, item in fields.items():
            facts = item.get("pg.type", {})
            if "attnum" in facts:
                numbers[name] = facts["attnum"]
                if "attmissingval" in facts:
                    missing[facts["attnum"]] = MissingValue.from_json({**facts["attmissingval"], "type": item["type"]})
                elif "attmissingval_size" in facts:
                    missing[facts["attnum"]] = None
        return cls(frame, change["pg.relation"]["oid"], tuple(keys), frozenset(uncertain), numbers, missing)

    @property
    def key_numbers(self) -> tuple[int, ...]:
        """The attnum of each key column; empty if any of them is not known."""
        found = [self.numbers[name] for name in self.key if name in self.numbers]
        return tuple(found) if len(found) == len(self.key) else ()

    @property
    def row(self) -> pa.StructType:
        return self.frame.schema.field("after").type

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.row)

    @cached_property
    def special_column(self) -> str:
        """`_special`, with more underscores if the source itself has such a column."""
        taken = [name for name in self.columns if name.lstrip("_") == SPECIAL.lstrip("_") != name]
        return f"_{max(taken, key=len)}" if taken else SPECIAL

    @property
    def key_struct(self) -> pa.StructType:
        """Type of a key: the key's columns, then the special texts of the uncertain ones."""
        fields = [pa.field(name, self.row.field(name).type) for name in self.key]
        return pa.struct(
            [*fields, *(pa.field(special_key(name), pa.string()) for name in self.key if name in self.uncertain_key)]
        )

    def has_other_key_types(self, before: TableSchema | None) -> bool:
        """Return whether the columns of the key had other types in an earlier version of the same
        relation."""
        if before is None or before.oid != self.oid:
            return False
        types, types_before = ([shape.row.field(name).type for name in shape.key] for shape in (self, before))
        return types != types_before

    @property
    def events(self) -> pa.Schema:
        """Columns of keyed events: see fold/event_decoder.py."""
        return pa.schema(
            [
                ("key", self.key_struct),
                ("origin", self.key_struct),
                ("deleted", pa.bool_()),
                ("row", self.row),
                ("unchanged", pa.list_(pa.field("element", pa.string()))),
                ("special", TEXTS),
                ("commit_lsn", pa.int64()),
                ("ordinal", pa.int64()),
            ]
        )


def is_log(columns: Iterable[str]) -> bool:
    return set(LOG_COLUMNS) <= set(columns)


def special_key(name: str) -> str:
    return f"special of {name}"


def _row_fields(change: Schema) -> list[dict[str, Any]]:
    """Return the fields of the record Row, which is defined where it is first used: in `before` or
    `after`."""
    for item in change["fields"]:
        if item["name"] in ("before", "after"):
            for branch in item["type"]:
                if isinstance(branch, dict) and branch.get("type") == "record":
                    return list(branch["fields"])
    return []


def field_is_array(field: dict[str, Any]) -> bool:
    return any(isinstance(branch, dict) and branch.get("type") == "array" for branch in field["type"])


def field_is_time(field: dict[str, Any]) -> bool:
    """Return whether a field is a time of day. This is text both in keys and in rows, but in rows
    24:00 is in `special`."""
    return any(isinstance(branch, dict) and branch.get("logicalType") == "time-micros" for branch in field["type"])
