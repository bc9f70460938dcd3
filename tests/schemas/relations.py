"""Short ways to write down relations."""

from __future__ import annotations

from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts

OIDS = {
    "bool": 16, "bytea": 17, "int8": 20, "int2": 21, "int4": 23, "text": 25, "json": 114, "float4": 700, "float8": 701,
    "money": 790, "bpchar": 1042, "varchar": 1043, "date": 1082, "time": 1083, "timestamp": 1114, "timestamptz": 1184,
    "interval": 1186, "timetz": 1266, "numeric": 1700, "uuid": 2950, "jsonb": 3802, "xid8": 5069,
}  # fmt: skip


def built_in(name: str) -> TypeFacts:
    return TypeFacts(OIDS[name], "pg_catalog", name, Kind.BASE)


def array_of(element: TypeFacts) -> TypeFacts:
    return TypeFacts(element.oid + 100_000, element.namespace, f"_{element.name}", Kind.ARRAY, element=element)


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def column(name: str, type_name: str | TypeFacts, typmod: int = -1, *, key: bool = False) -> ColumnDescription:
    facts = built_in(type_name) if isinstance(type_name, str) else type_name
    return ColumnDescription(name, facts, typmod, key)


def relation(*columns: ColumnDescription, name: str = "orders") -> RelationDescription:
    return RelationDescription(16400, "public", name, ReplicaIdentity.DEFAULT, columns)
