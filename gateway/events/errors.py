"""What can go wrong with a row."""

from __future__ import annotations

from gateway.operate.errors import NeedsText, Retry, UnwritableRelation


class UnknownBinary(NeedsText):
    """A binary value of a type whose binary form is not known."""

    def __init__(self, relation: str, column: str, type_name: str) -> None:
        super().__init__(
            f"{relation}, column {column}: the binary format of type {type_name} is not supported; continuing "
            "with the text format",
            hint="set source.binary = off to avoid this restart of replication",
        )
        self.relation = relation
        self.column = column
        self.type_name = type_name


class NeedsOptional(Retry):
    """A NOT NULL column has no value for its field, which must be optional: in a row from before it was NOT NULL, or where its
    Connect type cannot represent the value."""

    def __init__(self, relation: str, relation_oid: int, column: str, reason: str) -> None:
        super().__init__(f"{relation}, column {column}: {reason}; its field becomes optional")
        self.field = relation_oid, column


class KeyNotSent(UnwritableRelation):
    """An identity column's value was neither in the new tuple nor in a key or old tuple: a bug of PostgreSQL before 14.2."""


class UnreadableValue(UnwritableRelation):
    """A value is not what its type's text or binary form allows. The error names the place, never the value."""
