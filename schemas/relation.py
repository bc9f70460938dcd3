"""Descriptions of relations: the content of a Relation message, with the catalog's facts about its
types.

The replication stream has names, type oids and typmods. Kinds, base types, elements and labels are
read from the catalog *when the Relation message arrives*, which may be later than the change. A
type that was dropped in the meantime has the kind UNKNOWN.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """pg_type.typtype, with arrays distinguished from base types."""

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
    """An attribute of a composite type."""

    name: str
    facts: TypeFacts
    typmod: int


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """A row of pg_type. `name` is "" where the catalog no longer has the type.

    `element` is the element of an array, the subtype of a range, or the range of a multirange;
    `base` and `base_typmod` belong to a domain. `extension` is the name of the extension that owns
    the type. `sends_binary` is false where the type has no send function: the server then sends
    text even to a client that asked for binary. `outputs` is the server's output for some values,
    where that does not follow from the type alone (gateway/values/system.py, numeric.py).
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
    outputs: tuple[str, ...] = field(default=(), compare=False, repr=False)


class ReplicaIdentity(enum.Enum):
    """`relreplident` in pg_class: the columns of the old row that an UPDATE or DELETE sends."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Protect(enum.Enum):
    """The treatment of a column whose values must not leave the process unchanged."""

    DROP = "drop"
    """Leave the field out of the schema."""
    NULL = "null"
    HASH = "hash"
    """Send the HMAC-SHA256 of PostgreSQL's text, in hexadecimal."""
    TRUNCATE = "truncate"
    """Send the first characters of PostgreSQL's text."""


@dataclass(frozen=True, slots=True)
class Protection:
    """The protection of a column. `length` (in characters) is for TRUNCATE, `hash_key` for HASH."""

    action: Protect
    length: int = 0
    hash_key: bytes = field(default=b"", repr=False)

    @property
    def is_hidden(self) -> bool:
        """Whether no part of the value is sent."""
        return self.action in (Protect.DROP, Protect.NULL)


@dataclass(frozen=True, slots=True)
class MissingValue:
    """pg_attribute.attmissingval: the value, in existing rows, of a column that was added with a
    default.

    `encoded` is the value as in a record, in Avro's union with null; `special` is PostgreSQL's text
    of a value for which `encoded` is null.
    """

    encoded: bytes = field(repr=False)
    special: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """A column of a relation. `identity` tells whether the column is part of the record's key.
    `attnum` is pg_attribute.attnum, or None if it is not known."""

    name: str
    facts: TypeFacts
    typmod: int
    identity: bool
    protection: Protection | None = None
    attnum: int | None = None
    missing: MissingValue | None = None


@dataclass(frozen=True, slots=True)
class RelationDescription:
    """A relation with its columns in the order of the Relation message. Identity columns are the
    columns of the replica identity; under FULL, those of the primary key."""

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
