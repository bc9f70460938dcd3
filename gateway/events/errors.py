"""The errors of encoding a row."""

from __future__ import annotations

from gateway.errors import REPORT, NeedsText, NextSession, Retry, UnwritableRelation
from gateway.pgoutput.row import TuplePart
from gateway.pgoutput.tuple_data import Text, column_offset
from gateway.values.special_values import NotRenderable
from schemas.relation import RelationDescription


class UnknownBinary(NeedsText):
    """A binary value has a type whose binary format is not known."""

    def __init__(self, relation: str, column: str, type_name: str) -> None:
        super().__init__(
            f"{relation}, column {column}: the binary format of type {type_name} is not supported; continuing "
            "with the text format",
            hint="set source.binary = off to avoid this restart of replication",
        )


class NeedsOptional(Retry):
    """A NOT NULL column has no value for its field, which must become optional. The row is older
    than the NOT NULL constraint, or the Connect type cannot represent the value."""

    def __init__(self, relation: str, relation_oid: int, column: str, reason: str) -> None:
        super().__init__(f"{relation}, column {column}: {reason}; its field becomes optional")
        self.field = relation_oid, column

    def change(self, next_session: NextSession) -> None:
        next_session.make_optional(*self.field)


class KeyNotSent(UnwritableRelation):
    """The value of an identity column was neither in the new tuple nor in a key or old tuple. This
    is a bug in PostgreSQL before 14.3."""


class UnreadableValue(UnwritableRelation):
    """A value is not valid in the text or binary format of its type. The error names the place,
    never the value."""


def place_of_value(description: RelationDescription, part: TuplePart, index: int) -> str:
    """Return the column, and the byte of the message at which its value begins."""
    return f"column {description.columns[index].name} at byte {_byte_of(part, index)}"


def _byte_of(part: TuplePart, index: int) -> int:
    """Return the byte of the message at which the value begins."""
    return part.offset + column_offset(part.values, index)


def key_not_sent(description: RelationDescription, part: TuplePart, index: int) -> KeyNotSent:
    """Return the error for a key column whose value was not sent. `part` is the new tuple, in which
    column `index` was left out."""
    return KeyNotSent(
        f"{description.qualified_name}, column {description.columns[index].name}: an UPDATE did not change the TOASTed value of "
        f"this key column (at byte {_byte_of(part, index)}), and the server sent no key with it",
        hint=REPORT,
    )


def unreadable_value(
    description: RelationDescription, part: TuplePart, index: int, error: Exception
) -> UnknownBinary | UnreadableValue:
    """Return the error to raise in place of `error`, which was raised when the value was read. The
    new error must not be chained to `error`, which may quote the value."""
    column = description.columns[index]
    type_name = column.facts.name or str(column.facts.oid)
    if isinstance(error, NotRenderable):
        return UnknownBinary(description.qualified_name, column.name, type_name)
    form = "text" if isinstance(part.values[index], Text) else "binary"
    return UnreadableValue(
        f"{description.qualified_name}, column {column.name}: the value at byte {_byte_of(part, index)} is not a valid "
        f"{type_name} in {form} format ({type(error).__name__})",
        hint=REPORT,
    )
