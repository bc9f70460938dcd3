"""Make a RelationDescription from a Relation message and the catalog's facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.pgoutput.relation import Relation
from gateway.relations.type_catalog import unknown_type
from schemas.relation import ColumnDescription, RelationDescription, ReplicaIdentity, TypeFacts


def describe(
    relation: Relation,
    facts: Mapping[int, TypeFacts],
    primary_key: Sequence[str] = (),
    announced_types: Mapping[int, tuple[str, str]] | None = None,
    *,
    is_key_whole: bool = True,
) -> RelationDescription:
    """Return the description of a relation. `facts` has the results of `read_types`, by type oid. A
    type without facts is described by its Type message (schema, name), if there was one.

    `primary_key` is only used under REPLICA IDENTITY FULL, where the message marks every column.
    This is the catalog's current key, so it counts only if the stream sends all of its columns. A
    part of a key is not a key: unless `is_key_whole`, the relation has no identity columns.
    """
    names = {column.name for column in relation.columns}
    is_full = relation.replica_identity is ReplicaIdentity.FULL
    catalog_key = frozenset(primary_key) if is_full and names.issuperset(primary_key) else frozenset[str]()
    columns = []
    for column in relation.columns:
        known = facts.get(column.type_oid)
        if known is None:
            known = unknown_type(column.type_oid, *(announced_types or {}).get(column.type_oid, ("", "")))
        identity = is_key_whole and (column.name in catalog_key if is_full else column.key)
        columns.append(ColumnDescription(column.name, known, column.typmod, identity))
    return RelationDescription(
        relation.relation_oid, relation.namespace, relation.name, relation.replica_identity, tuple(columns)
    )
