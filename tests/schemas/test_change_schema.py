"""The envelope's schema: the fields of docs/topics.md in their order, every column nullable,
PostgreSQL's facts kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from schemas.change_schema import change_schema, key_schema
from schemas.relation import Kind, MissingValue, RelationDescription, ReplicaIdentity, TypeFacts
from tests.schemas.relations import array_of, built_in, column, numeric_typmod, relation

ORDERS = relation(
    column("id", "int8", key=True),
    column("order date", "date", key=True),
    column("total", "numeric", numeric_typmod(12, 2)),
)


def fields(schema: dict[str, Any]) -> dict[str, Any]:
    return {field["name"]: field for field in schema["fields"]}


def row_fields(schema: dict[str, Any]) -> dict[str, Any]:
    return fields(fields(schema)["before"]["type"][1])


def test_the_envelope_has_these_fields_in_this_order() -> None:
    schema = change_schema(ORDERS, "cdc")
    assert [field["name"] for field in schema["fields"]] == [
        "op", "xid", "subxid", "epoch", "change_lsn", "ordinal", "commit_lsn", "commit_time", "origin", "key_change",
        "old_key", "before", "after", "unchanged", "special",
    ]  # fmt: skip
    assert (schema["name"], schema["namespace"]) == ("Change", "cdc.public.orders")
    assert fields(schema)["op"]["type"]["symbols"] == ["INSERT", "UPDATE", "DELETE", "TRUNCATE", "READ"]
    for name in ("xid", "subxid", "epoch", "change_lsn", "ordinal"):
        assert fields(schema)[name]["type"] == "long"
    assert schema["pg.relation"] == {"oid": 16400, "schema": "public", "name": "orders", "replica_identity": "DEFAULT"}


def test_every_column_is_nullable_and_described() -> None:
    found = row_fields(change_schema(ORDERS, "cdc"))
    assert list(found) == ["id", "order_x0020_date", "total"]
    assert all(field["type"][0] == "null" and field["default"] is None for field in found.values())
    assert found["id"]["pg.type"] == {"oid": 20, "schema": "pg_catalog", "name": "int8", "typmod": -1, "key": True}
    assert found["order_x0020_date"]["pg.name"] == "order date"
    assert "pg.name" not in found["id"]
    assert found["total"]["pg.type"]["typmod"] == numeric_typmod(12, 2)


def test_the_number_of_a_column_and_what_its_old_rows_have_are_told_where_they_are_known() -> None:
    plain, filled, special = (
        replace(column(name, "int4"), attnum=number) for name, number in zip("abc", (1, 2, 4), strict=True)
    )
    filled = replace(filled, missing=MissingValue(b"\2\x0e"))
    special = replace(special, missing=MissingValue(b"\0", "NaN"))
    found = row_fields(change_schema(relation(plain, filled, special, column("d", "int4")), "cdc"))
    told = [
        {name: value for name, value in found[field]["pg.type"].items() if name.startswith("att")} for field in found
    ]
    assert told == [
        {"attnum": 1},
        {"attnum": 2, "attmissingval": {"avro": "020e"}},
        {"attnum": 4, "attmissingval": {"avro": "00", "special": "NaN"}},
        {},
    ]


def test_the_key_is_bare_and_text_where_its_type_may_be_special() -> None:
    assert key_schema(ORDERS, "cdc") == {
        "type": "record",
        "name": "Key",
        "namespace": "cdc.public.orders",
        "fields": [
            {"name": "id", "type": ["null", "long"], "default": None},
            {"name": "order_x0020_date", "pg.name": "order date", "type": ["null", "string"], "default": None},
        ],
    }


def test_a_relation_without_identity_has_no_key_schema() -> None:
    assert key_schema(relation(column("id", "int8")), "cdc") is None


def test_what_only_the_catalog_knows_is_marked_as_such() -> None:
    mood = TypeFacts(70000, "public", "mood", Kind.ENUM, labels=("sad", "ok"))
    price = TypeFacts(
        70001, "public", "price", Kind.DOMAIN, base=built_in("numeric"), base_typmod=numeric_typmod(10, 2)
    )
    found = row_fields(
        change_schema(relation(column("m", mood), column("p", price), column("a", array_of(mood))), "cdc")
    )
    assert found["m"]["pg.catalog"] == {"kind": "enum", "labels": ["sad", "ok"]}
    assert found["p"]["pg.catalog"] == {
        "kind": "domain",
        "base": {"oid": 1700, "schema": "pg_catalog", "name": "numeric", "typmod": numeric_typmod(10, 2)},
    }
    assert found["a"]["pg.catalog"]["element"] == {"oid": 70000, "schema": "public", "name": "mood", "kind": "enum"}
    assert "pg.catalog" not in row_fields(change_schema(ORDERS, "cdc"))["id"]


@pytest.mark.parametrize(
    "description",
    [
        ORDERS,
        relation(),
        relation(*(column(f"c{index}", "int4") for index in range(1600))),
        relation(
            column("a", "text"), column("A", "text"), column("a b", "text"), column("a.b", "text"), column("1", "text")
        ),
        RelationDescription(1, "s p", "täble.", ReplicaIdentity.FULL, (column("\U0001f40d", "jsonb", key=True),)),
    ],
    ids=["everyday", "no columns", "1600 columns", "odd names", "odd relation"],
)
def test_a_stock_reader_takes_the_schemas_also_after_json(description: RelationDescription) -> None:
    for schema in (change_schema(description, "pre.fix"), key_schema(description, "pre.fix")):
        if schema is not None:
            fastavro.parse_schema(json.loads(json.dumps(schema)))
