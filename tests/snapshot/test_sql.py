"""The SQL of a chunk: names and values are quoted, and text is PostgreSQL's own."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from gateway.names import qualified
from gateway.snapshot.rules.ranges_to_read import TidRange
from gateway.snapshot.sql import (
    KeyColumn,
    column_list,
    key_condition,
    lock,
    lock_by_explain,
    select_keys,
    select_range,
)
from gateway.values.special_values import special_text

KEY: Any = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Key",
        "fields": [{"name": "a", "type": ["null", "string"]}, {"name": "b", "type": ["null", "long"]}],
    }
)


def avro(a: str, b: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, KEY, {"a": a, "b": b})
    return out.getvalue()


def test_a_range_has_its_bounds_and_the_filter() -> None:
    leaf = qualified('we"ird', "t")
    assert leaf == '"we""ird"."t"'
    assert select_range("x", leaf, TidRange(0, 0, 64 << 16), "n > 1") == (
        'SELECT x FROM ONLY "we""ird"."t" WHERE ctid >= \'(0,0)\' AND ctid < \'(64,0)\' AND (n > 1)'
    )
    assert select_range("x", leaf, TidRange(0, 64 << 16), "").endswith("WHERE ctid >= '(64,0)'")


def test_columns_without_a_decoder_come_as_their_output_functions_print_them() -> None:
    assert column_list(["a", "b"], [True, False]) == (
        '"a", CASE WHEN "b" IS DISTINCT FROM NULL THEN pg_catalog.concat("b") END'
    )


KEY_COLUMNS = (
    KeyColumn("A", "public.citext", 'OPERATOR("public".=)', is_text=True),
    KeyColumn("b", "bigint", is_domain=True),
)


def test_keys_are_compared_by_the_operators_of_their_index() -> None:
    keys = [avro("it's \\ one", 1), avro("two", -2)]
    assert key_condition('"s"."t"', KEY_COLUMNS, KEY, keys) == (
        "EXISTS (SELECT FROM (VALUES ('it''s \\ one'::public.citext, '1'::bigint), ('two'::public.citext, '-2'::bigint)) "
        'AS given (v0, v1) WHERE "s"."t"."A" OPERATOR("public".=) given.v0 '
        'AND "s"."t"."b"::bigint OPERATOR(pg_catalog.=) given.v1)'
    )
    assert select_keys("x", "t", "condition", "f").endswith(" AND (f)")


def test_keys_that_are_no_values_any_more_are_compared_as_text() -> None:
    condition = key_condition('"s"."t"', KEY_COLUMNS, KEY, [avro("a", 1)], compares_text=True)
    assert condition == (
        "EXISTS (SELECT FROM (VALUES ('a'::text, '1'::bigint)) AS given (v0, v1) WHERE "
        'pg_catalog.concat("s"."t"."A") COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) given.v0 '
        'AND "s"."t"."b"::bigint OPERATOR(pg_catalog.=) given.v1)'
    )


def test_texts_that_are_not_utf8_are_compared_as_bytes() -> None:
    keys = [avro(special_text(b"\xe9").decode(), 1), avro("a", 2)]
    assert key_condition('"s"."t"', KEY_COLUMNS, KEY, keys) == (
        """(pg_catalog.textsend(pg_catalog.concat("s"."t"."A")) OPERATOR(pg_catalog.=) '\\xe9' """
        """AND "s"."t"."b"::bigint OPERATOR(pg_catalog.=) '1'::bigint """
        """OR EXISTS (SELECT FROM (VALUES ('a'::public.citext, '2'::bigint)) AS given (v0, v1) WHERE """
        """"s"."t"."A" OPERATOR("public".=) given.v0 AND "s"."t"."b"::bigint OPERATOR(pg_catalog.=) given.v1))"""
    )


def test_locks() -> None:
    assert lock(["a", "b"]) == "LOCK TABLE ONLY a, ONLY b IN ACCESS SHARE MODE"
    assert lock(["a"], only=False, share=True) == "LOCK TABLE a IN SHARE MODE"
    assert lock_by_explain(["a", "b"]) == "EXPLAIN SELECT FROM ONLY a AS t0, ONLY b AS t1"
