"""What a mirrored table looks like: the source's columns by their own names, and `_special` beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_consumer.reader.registry import Schema
from spark_consumer.source.frames import TEXTS, TableFrame

SPECIAL = "_special"
LOG_COLUMNS = ("_op", "_commit_lsn", "_commit_time", "_ordinal")
# Words of `_op` whose row is no longer there.
OUT = ("DELETE", "UPDATE_BEFORE")


@dataclass(frozen=True)
class TableShape:
    """One version of a relation, as the mirror sees it. It pickles into tasks.

    `oid`: the relation's, which a table that is created again does not share with the one before.
    `key`: columns of the replica identity (the primary key under FULL); empty: no identity, the table is an append-only log.
    `uncertain_key`: those of the key whose Avro type cannot hold every value, so that their text in `special` belongs to the key.
    """

    frame: TableFrame
    oid: int
    key: tuple[str, ...]
    uncertain_key: frozenset[str]

    @classmethod
    def of(cls, change: Schema) -> TableShape:
        """From a table's value schema. Raises UnsupportedSchema."""
        frame = TableFrame.of(change)
        row = frame.schema.field("after").type
        keys = {
            frame.names.get(field["name"], field["name"]): field
            for field in _row_fields(change)
            if field.get("pg.type", {}).get("key")
        }
        if any(map(field_is_array, keys.values())):
            keys = {}  # PostgreSQL's text of an array in old_key is not comparable with the array in a row
        written = {field.name: field.type for field in frame.schema.field("old_key").type}
        uncertain = {
            name
            for name, field in keys.items()
            if field_is_time(field) or (name in written and not written[name].equals(row.field(name).type))
        }
        return cls(frame, change["pg.relation"]["oid"], tuple(keys), frozenset(uncertain))

    @property
    def row(self) -> pa.StructType:
        return self.frame.schema.field("after").type

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.row)

    @cached_property
    def special_column(self) -> str:
        """`_special`, with more underscores where the source has such a column itself."""
        taken = [name for name in self.columns if name.lstrip("_") == SPECIAL.lstrip("_") != name]
        return f"_{max(taken, key=len)}" if taken else SPECIAL

    @property
    def key_struct(self) -> pa.StructType:
        """The key's columns, and behind them the special texts of the uncertain ones."""
        fields = [pa.field(name, self.row.field(name).type) for name in self.key]
        return pa.struct(
            [*fields, *(pa.field(special_key(name), pa.string()) for name in self.key if name in self.uncertain_key)]
        )

    @property
    def events(self) -> pa.Schema:
        """Columns of keyed events: see events.py."""
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
    """Fields of the record Row: it is defined where it is first used, in `before` or `after`."""
    for field in change["fields"]:
        if field["name"] in ("before", "after"):
            for branch in field["type"]:
                if isinstance(branch, dict) and branch.get("type") == "record":
                    return list(branch["fields"])
    return []


def field_is_array(field: dict[str, Any]) -> bool:
    return any(isinstance(branch, dict) and branch.get("type") == "array" for branch in field["type"])


def field_is_time(field: dict[str, Any]) -> bool:
    """Text here, both in keys and in rows, but 24:00 is special in rows."""
    return any(isinstance(branch, dict) and branch.get("logicalType") == "time-micros" for branch in field["type"])
