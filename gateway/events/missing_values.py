"""Add to a relation's description what the catalog has about its attributes: their numbers, and the
values that existing rows have in columns that were added later, in Avro."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.events.row_encoder_slow import MALFORMED, column_codec
from gateway.relations.attributes import Attribute
from gateway.values.column_readers import AVRO_NULL
from gateway.values.special_values import NotRenderable, UnrepresentableValue, special_text
from schemas.avro_types import value_type
from schemas.relation import ColumnDescription, MissingValue, RelationDescription


def with_attributes(
    description: RelationDescription,
    numbers: Mapping[str, int],
    attributes: Sequence[Attribute],
    recorded: Mapping[int, MissingValue | None],
) -> RelationDescription:
    """Return the description with the numbers and missing values of its columns.

    `numbers` has the attribute numbers of columns, by name, and `recorded` the missing values that
    the catalog no longer has, by number. Rules for columns apply to these values as they do to
    rows.
    """
    texts = {each.number: each.missing for each in attributes}
    columns = []
    for column in description.columns:
        number = numbers.get(column.name)
        missing = None
        if number is not None:
            text = texts.get(number)
            missing = recorded.get(number) if text is None else _encoded(column, text)
        columns.append(replace(column, attnum=number, missing=missing))
    return replace(description, columns=tuple(columns))


def _encoded(column: ColumnDescription, text: bytes) -> MissingValue | None:
    """Return a missing value in Avro; None if a rule hides the value, or if its text is not valid
    for the column's type. The catalog may be newer than the description."""
    if column.protection is not None and column.protection.is_hidden:
        return None
    try:
        return MissingValue(column_codec(value_type(column), column.protection).from_text(text))
    except UnrepresentableValue:
        return MissingValue(AVRO_NULL, special_text(text).decode())
    except (NotRenderable, *MALFORMED):
        return None
