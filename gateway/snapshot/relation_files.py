"""What a relation stood on when its rows were last known: its name, its files, its partitions. Where that has changed in a way
that no event tells of, its rows are not what readers have.

A rewriting ALTER TABLE gives a table new files and new rows of pg_attribute; VACUUM FULL and CLUSTER give it new files alone, and
rows stay what they are. TRUNCATE of a table is an event. Of a partition whose changes are published as those of its root it is
none, and cannot be told from a VACUUM FULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import asyncpg


@dataclass(frozen=True, slots=True)
class LeafContent:
    """`columns` changes with every ALTER TABLE that may rewrite. `is_attached`: it was a table before it was a partition."""

    oid: int
    filenode: int
    columns: str
    is_attached: bool = False


@dataclass(frozen=True, slots=True)
class RelationFiles:
    schema: str
    name: str
    is_partitioned: bool
    leaves: tuple[LeafContent, ...]


def unsent(before: RelationFiles, now: RelationFiles) -> str:
    """Why rows have come, gone or changed without an event, as a clause; "" where nothing says so."""
    if (before.schema, before.name) != (now.schema, now.name):
        return f"it was renamed from {before.schema}.{before.name}"
    then = {leaf.oid: leaf for leaf in before.leaves}
    kept = [(then[leaf.oid], leaf) for leaf in now.leaves if leaf.oid in then]
    rewritten = [(old, new) for old, new in kept if old.filenode != new.filenode]
    if not now.is_partitioned:
        return "ALTER TABLE has rewritten it" if any(old.columns != new.columns for old, new in rewritten) else ""
    if len(kept) < len(before.leaves):
        return "a partition was detached or dropped"
    if any(leaf.is_attached for leaf in now.leaves if leaf.oid not in then):
        return "a partition was attached"
    return "a partition was rewritten or truncated" if rewritten else ""


def read_contents(rows: Iterable[asyncpg.Record]) -> dict[int, RelationFiles]:
    """Rows of statements.CONTENT, by relation oid."""
    return {row["oid"]: _content(row) for row in rows}


def _content(row: asyncpg.Record) -> RelationFiles:
    leaves = (LeafContent(*leaf) for leaf in json.loads(row["leaves"] or "[]"))
    return RelationFiles(row["nspname"], row["relname"], row["is_partitioned"], tuple(leaves))
