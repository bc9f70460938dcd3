"""Keys in Debezium's dialect: fields that stay what they were, and fields that become optional."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.column_defaults import as_recorded, with_defaults
from gateway.debezium.envelope_schema import (
    CatalogColumn,
    ConnectRelation,
    connect_relation,
    envelope_schema,
    key_schema,
    made_optional,
)
from gateway.debezium.registrar import DebeziumRelation, DebeziumRelations
from schemas.relation import ColumnDescription, Kind, TypeFacts
from tests.debezium.test_dialect import TOPIC
from tests.events.rows import relation

DEFAULTS: Final = {
    (16, "bool"): ["true", "false"],
    (20, "int8"): ["nextval('s'::regclass)", "-7", "9007199254740993"],
    (23, "int4"): ["0", "42"],
    (700, "float4"): ["1.5", "0.1"],
    (701, "float8"): ["0.1", "'-2.5'::double precision"],
    (25, "text"): ["'x'::text", "'\u00e9'::text", "''::text"],
    (1700, "numeric"): ["12.5"],
    (2950, "uuid"): ["gen_random_uuid()"],
}


def _relation(*columns: tuple[str, bool], key: tuple[str, ...], types: tuple[TypeFacts, ...] = ()) -> ConnectRelation:
    """Of (name, not null). The type is int4 if there is no other."""
    int4 = TypeFacts(23, "pg_catalog", "int4", Kind.BASE)
    described = tuple(
        ColumnDescription(name, facts, (10 << 16 | 2) + 4 if facts.name == "numeric" else -1, name in key)
        for (name, _), facts in zip(columns, types or [int4] * len(columns), strict=True)
    )
    catalog = [CatalogColumn(name, not_null) for name, not_null in columns]
    return connect_relation(replace(relation(), columns=described), catalog, key, DebeziumSettings())


def _schemas(found: ConnectRelation) -> tuple[dict[str, Any], dict[str, Any] | None]:
    return envelope_schema(found, TOPIC), key_schema(found, TOPIC)


def _optional(found: ConnectRelation) -> list[str]:
    return [column.name for column in found.columns if column is not None and column.is_optional]


ID_AND_N: Final = (("id", True), ("n", True))
BY_ID: Final = _relation(*ID_AND_N, key=("id",))


@pytest.mark.parametrize(
    ("before", "now", "optional"),
    [
        (BY_ID, _relation(("number", True), ("n", True), key=("number",)), ["number"]),
        (BY_ID, _relation(*ID_AND_N, key=("n",)), ["n"]),
        (BY_ID, _relation(*ID_AND_N, key=("id", "n")), ["n"]),
        (_relation(*ID_AND_N, key=()), _relation(*ID_AND_N, key=("n",)), []),
        (_relation(("id", True), ("n", False), key=("id",)), BY_ID, ["n"]),
        (_relation(("id", False), ("n", True), key=("id",)), BY_ID, ["id"]),
        (BY_ID, BY_ID, []),
    ],
)
def test_a_field_that_is_new_in_the_key_becomes_optional_and_another_stays(
    before: ConnectRelation, now: ConnectRelation, optional: list[str]
) -> None:
    assert _optional(made_optional(now, *_schemas(before))) == optional


@pytest.mark.parametrize("facts", list(DEFAULTS), ids=lambda facts: facts[1])
@given(st.data())
def test_a_key_column_that_the_catalog_lacks_is_as_the_newest_key_schema_has_it(
    facts: tuple[int, str], data: st.DataObject
) -> None:
    type_ = TypeFacts(facts[0], "pg_catalog", facts[1], Kind.BASE)
    expression = data.draw(st.sampled_from(["", *DEFAULTS[facts]]))
    plain = _relation(("id", data.draw(st.booleans())), key=("id",), types=(type_,))
    before = with_defaults(plain, [CatalogColumn("id", True, expression)])
    recorded = key_schema(before, TOPIC)
    assert recorded is not None
    unknown = _relation(("id", False), key=("id",), types=(type_,))
    assert as_recorded(unknown, {"id": recorded["fields"][0]}) == before
    text = _relation(("id", False), key=("id",), types=(TypeFacts(114, "pg_catalog", "json", Kind.BASE),))
    (column,) = as_recorded(text, {"id": recorded["fields"][0]}).columns
    assert column is not None and not column.has_default, "of another type"


@pytest.mark.parametrize(
    ("columns", "identity", "key", "identifies"),
    [
        ((("id", True), ("n", False)), (), ("n",), False),
        ((("id", True), ("n", False)), (), ("id", "n"), False),
        ((("id", True), ("n", False)), (), ("id",), True),
        ((("id", False),), ("id",), ("id",), True),
        ((("id", False),), (), (), False),
    ],
)
def test_a_unique_index_with_null_does_not_identify_rows(
    columns: tuple[tuple[str, bool], ...], identity: tuple[str, ...], key: tuple[str, ...], identifies: bool
) -> None:
    """Debezium takes it as the key all the same. The identity may be one that the catalog lacks."""
    found = _relation(*columns, key=key)
    described = tuple(replace(column, identity=column.name in identity) for column in found.description.columns)
    found = replace(found, description=replace(found.description, columns=described))
    relations = DebeziumRelations(None, None, DebeziumSettings(), set())
    assert DebeziumRelation(relations, found).identifies_rows is identifies
