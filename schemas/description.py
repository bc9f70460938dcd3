"""What is known of a relation when its Relation message arrives: the message, and the catalog's facts about its types.

The stream says names, type oids and typmods; kinds, base types, elements and labels are from the catalog *at the moment
of the Relation message*, which may be later than the change. A type that was dropped meanwhile has the kind UNKNOWN.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """pg_type.typtype, with arrays told from base types."""

    BASE = "base"
    ARRAY = "array"
    COMPOSITE = "composite"
    DOMAIN = "domain"
    ENUM = "enum"
    RANGE = "range"
    MULTIRANGE = "multirange"
    PSEUDO = "pseudo"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a composite type."""

    name: str
    facts: TypeFacts
    typmod: int


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """One row of pg_type. `name` is "" where the catalog no longer has the type.

    `element` is the element of an array, the subtype of a range, the range of a multirange; `base` and `base_typmod`
    belong to a domain. `extension` is the name of the extension that owns the type. `sends_binary` is false where the
    type has no send function: the server then sends text even to a client that asked for binary.
    """

    oid: int
    namespace: str
    name: str
    kind: Kind
    extension: str = ""
    sends_binary: bool = True
    delimiter: str = ","
    element: TypeFacts | None = None
    base: TypeFacts | None = None
    base_typmod: int = -1
    labels: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()


class ReplicaIdentity(enum.Enum):
    """pg_class.relreplident."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """`identity`: the column is part of the key of our records."""

    name: str
    facts: TypeFacts
    typmod: int
    identity: bool


@dataclass(frozen=True, slots=True)
class RelationDescription:
    """Columns in the order of the wire. Identity columns are those of the replica identity; under FULL the primary key's."""

    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[ColumnDescription, ...]

    @property
    def identity_columns(self) -> tuple[ColumnDescription, ...]:
        return tuple(column for column in self.columns if column.identity)

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}.{self.name}"
