"""attmissingval in the schema: as a record would have the value, under the rules for its column."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.events.missing_values import with_attributes
from gateway.relations.attributes import Attribute
from schemas.relation import ColumnDescription, MissingValue, Protect, Protection
from tests.schemas.relations import array_of, built_in, column, numeric_typmod, relation

PRICE = column("c", "numeric", numeric_typmod(12, 2))


def missing(described: ColumnDescription, text: bytes | None, number: int | None = 2) -> ColumnDescription:
    numbers = {} if number is None else {"c": number}
    (found,) = with_attributes(relation(described), numbers, [Attribute(2, "c", False, 700, text, False)], {}).columns
    return found


@pytest.mark.parametrize(
    ("described", "text", "expected"),
    [
        (column("c", "int4"), b"7", MissingValue(b"\2\x0e")),
        (column("c", "text"), b"", MissingValue(b"\2\0")),
        (column("c", array_of(built_in("int4"))), b"{1,NULL}", MissingValue(b"\2\4\2\2\0\0")),
        (PRICE, b"1.50", MissingValue(b"\2\4\0\x96")),
        (PRICE, b"NaN", MissingValue(b"\0", "NaN")),
        (column("c", "int4"), None, None),
        (column("c", "int4"), b"of another type by now", None),
    ],
)
def test_a_value_is_encoded_as_in_a_row(
    described: ColumnDescription, text: bytes | None, expected: MissingValue | None
) -> None:
    found = missing(described, text)
    assert (found.attnum, found.missing) == (2, expected)


def test_a_column_without_a_number_has_no_value() -> None:
    assert missing(column("c", "int4"), b"7", number=None) == column("c", "int4")


def test_a_value_that_was_recorded_is_as_it_was() -> None:
    (found,) = with_attributes(relation(PRICE), {"c": 2}, [], {2: MissingValue(b"\2\0")}).columns
    assert (found.attnum, found.missing) == (2, MissingValue(b"\2\0"))


def test_rules_for_columns_are_followed() -> None:
    def under(action: Protect) -> MissingValue | None:
        return missing(replace(PRICE, protection=Protection(action, 2, b"key")), b"1.50").missing

    assert under(Protect.NULL) is None and under(Protect.DROP) is None
    assert under(Protect.TRUNCATE) == MissingValue(b"\2\4" + b"1.")
    hashed = under(Protect.HASH)
    assert hashed is not None and len(hashed.encoded) == 2 + 1 + 64 and b"1.50" not in hashed.encoded
    assert "150" not in repr(missing(PRICE, b"1.50"))
