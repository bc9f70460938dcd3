"""What is known of a relation when its Relation message arrives: the message, and the catalog's
facts about its types.

The stream says names, type oids and typmods; kinds, base types, elements and labels are from the
catalog *at the moment of the Relation message*, which may be later than the change. A type that was
dropped meanwhile has the kind UNKNOWN.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


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

    `element` is the element of an array, the subtype of a range, the range of a multirange; `base`
    and `base_typmod` belong to a domain. `extension` is the name of the extension that owns the
    type. `sends_binary` is false where the type has no send function: the server then sends text
    even to a client that asked for binary. `outputs`: what the server writes for some values, where
    that cannot be told from the type alone (gateway/values/system.py, money.py).
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
    """pg_class.relreplident."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Protect(enum.Enum):
    """What becomes of the values of a column that shall not leave the process as they are."""

    DROP = "drop"
    """No field."""
    NULL = "null"
    HASH = "hash"
    """HMAC-SHA256 of PostgreSQL's text, in hexadecimal."""
    TRUNCATE = "truncate"
    """The first characters of PostgreSQL's text."""


@dataclass(frozen=True, slots=True)
class Protection:
    """`length` in characters is for TRUNCATE, `hash_key` for HASH."""

    action: Protect
    length: int = 0
    hash_key: bytes = field(default=b"", repr=False)

    @property
    def is_hidden(self) -> bool:
        """Nothing of the value is sent."""
        return self.action in (Protect.DROP, Protect.NULL)


@dataclass(frozen=True, slots=True)
class MissingValue:
    """pg_attribute.attmissingval: what the rows have in a column that was added to them with a
    default.

        `encoded`: as in a record, Avro's union with null; `special`: PostgreSQL's text of a value that
        is null there.
    """

    encoded: bytes = field(repr=False)
    special: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """`identity`: the column is part of the key of our records. `attnum`: of pg_attribute; None:
    not known."""

    name: str
    facts: TypeFacts
    typmod: int
    identity: bool
    protection: Protection | None = None
    attnum: int | None = None
    missing: MissingValue | None = None


@dataclass(frozen=True, slots=True)
class RelationDescription:
    """Columns in the order of the wire. Identity columns are those of the replica identity; under
    FULL the primary key's."""

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
