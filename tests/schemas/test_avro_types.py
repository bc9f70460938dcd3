"""PostgreSQL type -> Avro type, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.avro_types import SOMETIMES_SPECIAL, Form, avro_type, column_type, key_type
from schemas.relation import Kind, TypeFacts
from tests.schemas.relations import array_of, built_in, numeric_typmod

DECIMAL_12_2 = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}


@pytest.mark.parametrize(
    ("name", "typmod", "avro"),
    [
        ("bool", -1, "boolean"),
        ("int2", -1, "int"),
        ("int4", -1, "int"),
        ("int8", -1, "long"),
        ("float4", -1, "float"),
        ("float8", -1, "double"),
        ("bytea", -1, "bytes"),
        ("text", -1, "string"),
        ("varchar", 24, "string"),
        ("jsonb", -1, "string"),
        ("money", -1, "string"),
        ("interval", -1, "string"),
        ("timetz", -1, "string"),
        ("xid8", -1, "long"),
        ("uuid", -1, {"type": "string", "logicalType": "uuid"}),
        ("date", -1, {"type": "int", "logicalType": "date"}),
        ("time", 3, {"type": "long", "logicalType": "time-micros"}),
        ("timestamp", -1, {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("timestamptz", -1, {"type": "long", "logicalType": "timestamp-micros"}),
        ("numeric", numeric_typmod(12, 2), DECIMAL_12_2),
        ("numeric", numeric_typmod(38, 38), {**DECIMAL_12_2, "precision": 38, "scale": 38}),
        ("numeric", -1, "string"),
        ("numeric", numeric_typmod(39, 2), "string"),
        ("numeric", numeric_typmod(5, -2), "string"),
        ("numeric", numeric_typmod(2, 5), "string"),
    ],
)
def test_a_built_in_type_becomes(name: str, typmod: int, avro: Any) -> None:
    assert avro_type(column_type(built_in(name), typmod)) == avro


def test_an_array_has_nullable_elements_with_the_columns_typmod() -> None:
    found = column_type(array_of(built_in("numeric")), numeric_typmod(12, 2))
    assert avro_type(found) == {"type": "array", "items": ["null", DECIMAL_12_2]}


def test_a_domain_is_its_base_type_with_the_typmod_of_the_innermost() -> None:
    price = TypeFacts(
        70000, "public", "price", Kind.DOMAIN, base=built_in("numeric"), base_typmod=numeric_typmod(12, 2)
    )
    positive = TypeFacts(70001, "public", "positive", Kind.DOMAIN, base=price)
    assert avro_type(column_type(positive, -1)) == DECIMAL_12_2
    assert avro_type(column_type(array_of(positive), -1)) == {"type": "array", "items": ["null", DECIMAL_12_2]}


def test_a_domain_over_an_array_is_an_array_but_an_array_of_it_is_text() -> None:
    numbers = TypeFacts(70000, "public", "numbers", Kind.DOMAIN, base=array_of(built_in("int4")))
    assert avro_type(column_type(numbers, -1)) == {"type": "array", "items": ["null", "int"]}
    assert avro_type(column_type(array_of(numbers), -1)) == "string"


@pytest.mark.parametrize("kind", [Kind.ENUM, Kind.COMPOSITE, Kind.RANGE, Kind.MULTIRANGE, Kind.UNKNOWN, Kind.PSEUDO])
def test_types_of_other_kinds_are_text(kind: Kind) -> None:
    assert avro_type(column_type(TypeFacts(70000, "public", "mood", kind), -1)) == "string"


@pytest.mark.parametrize("form", Form)
def test_a_key_never_needs_special(form: Form) -> None:
    found = column_type(built_in("text"), -1)
    of_form = type(found)(form, found.facts)
    assert key_type(of_form).form is (Form.STRING if form in SOMETIMES_SPECIAL else form)
