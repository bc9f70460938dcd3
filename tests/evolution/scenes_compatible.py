"""Changes that leave every event readable with every version of the schema (a wider type: old
events with the new one)."""

from __future__ import annotations

from typing import Final

from tests.evolution.scene import Scene

BEGINS_AGAIN: Final = "enum_made"
"""Nobody but its own transaction sees the type, so its binary form is not known: the gateway begins
again, in text."""
_BIG: Final = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 100) i)"

COMPATIBLE: Final = {
    "add_column": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY)", "{n}", "ALTER TABLE {t} ADD more text", "{n}, 'x'"
    ),
    "add_volatile": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY)",
        "{n}",
        "ALTER TABLE {t} ADD more uuid NOT NULL DEFAULT gen_random_uuid(), ADD at timestamptz DEFAULT clock_timestamp()",
        "{n}",
        ("UPDATE {t} SET at = '2026-01-02 03:04:05.678901+00' WHERE id = 1",),
    ),
    "drop_column": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, gone text, stays text)",
        "{n}, 'gone', 'stays'",
        "ALTER TABLE {t} DROP gone",
        "{n}, 'stays'",
    ),
    "rename_column": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, old text)", "{n}, 'a'", "ALTER TABLE {t} RENAME old TO new", "{n}, 'b'"
    ),
    "rename_key_column": Scene(
        "CREATE TABLE {t} (id int, part int, PRIMARY KEY (id, part))",
        "{n}, 7",
        "ALTER TABLE {t} RENAME part TO piece",
        "{n}, 7",
    ),
    "int_to_bigint": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, v int, many int[])",
        "{n}, 5, '{1,NULL}'",
        "ALTER TABLE {t} ALTER v TYPE int8, ALTER many TYPE int8[]",
        "{n}, 1099511627776, '{1099511627776}'",
    ),
    "varchar_to_text": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, v varchar(5), w numeric(5,2))",
        "{n}, 'short', 1.5",
        "ALTER TABLE {t} ALTER v TYPE text, ALTER w TYPE numeric(9,2)",
        "{n}, 'longer now', 1234567.25",
    ),
    "drop_and_create": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, gone text)",
        "{n}, 'a'",
        "DROP TABLE {t};\nCREATE TABLE {t} (fresh date, id int PRIMARY KEY)",
        "'2026-01-02', {n}",
    ),
    "rename_table": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, v text)",
        "{n}, 'a'",
        "ALTER TABLE {t} RENAME TO {t}_renamed",
        "{n}, 'b'",
        renamed="{t}_renamed",
    ),
    "identity_full": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, code text NOT NULL)",
        "{n}, 'c' || {n}",
        "ALTER TABLE {t} REPLICA IDENTITY FULL",
        "{n}, 'c' || {n}",
        ("UPDATE {t} SET code = 'changed' WHERE id = 9000", "DELETE FROM {t} WHERE id = 1"),
    ),
    "identity_index": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, code text NOT NULL UNIQUE)",
        "{n}, 'c' || {n}",
        "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code_key",
        "{n}, 'c' || {n}",
        ("UPDATE {t} SET code = 'changed' WHERE id = 9000", "DELETE FROM {t} WHERE id = 1"),
    ),
    "identity_nothing": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, code text NOT NULL)",
        "{n}, 'c' || {n}",
        "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
        "{n}, 'c' || {n}",
    ),
    "identity_default": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, code text NOT NULL);\nALTER TABLE {t} REPLICA IDENTITY NOTHING",
        "{n}, 'c' || {n}",
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
        "{n}, 'c' || {n}",
        ("UPDATE {t} SET code = 'changed' WHERE id = 9000", "DELETE FROM {t} WHERE id = 1"),
    ),
    "enum_value": Scene(
        "CREATE TYPE {t}_mood AS ENUM ('sad');\nCREATE TABLE {t} (id int PRIMARY KEY, feels {t}_mood)",
        "{n}, 'sad'",
        "ALTER TYPE {t}_mood ADD VALUE 'glad';\nALTER TABLE {t} ADD more text",  # a new label is used after the commit
        "{n}, 'sad', 'x'",
        ("UPDATE {t} SET feels = 'glad' WHERE id = 9000",),
    ),
    "domain_over_array": Scene(
        "CREATE DOMAIN {t}_path AS int[] CHECK (cardinality(VALUE) > 0);\nCREATE TABLE {t} (id int PRIMARY KEY)",
        "{n}",
        "ALTER TABLE {t} ADD path {t}_path",
        "{n}, '{1,NULL,3}'",
        ("UPDATE {t} SET path = '{{1,2},{3,4}}' WHERE id = 9000",),
    ),
    "unchanged": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, big text, empty text);\nALTER TABLE {t} ALTER big SET STORAGE EXTERNAL",
        f"{{n}}, CASE WHEN {{n}} = 1 THEN {_BIG} ELSE 'small' END, NULL",
        "UPDATE {t} SET empty = 'before' WHERE id = 1;\nALTER TABLE {t} ADD more text, DROP empty;\n"
        "UPDATE {t} SET more = 'after' WHERE id = 1",
        "{n}, 'small', NULL",
        ("UPDATE {t} SET big = NULL WHERE id = 1",),
    ),
    "key_changes": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, code text NOT NULL)",
        "{n}, 'c' || {n}",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey;\nALTER TABLE {t} ADD PRIMARY KEY (code)",
        "{n}, 'c' || {n}",
        ("DELETE FROM {t} WHERE id = 1",),
    ),
    "zero_columns": Scene(
        "CREATE TABLE {t} (id int)", "{n}", "ALTER TABLE {t} DROP id;\nINSERT INTO {t} DEFAULT VALUES;\n"
        "ALTER TABLE {t} ADD id int", "{n}",
    ),
    "names": Scene(
        'CREATE TABLE {t} (id int PRIMARY KEY, a int, "A" int, "a.b" int, "a b" int, "it\'s ""so""" int, "1st" int)',
        "{n}, 1, 2, 3, 4, 5, 6",
        'ALTER TABLE {t} ADD "näme 😀" int, ADD "_x0041_" int, ADD "a_b" int',
        "{n}, 1, 2, 3, 4, 5, 6, 7, 8, 9",
    ),
    BEGINS_AGAIN: Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY)",
        "{n}",
        "CREATE TYPE {t}_mood AS ENUM ('sad', 'glad');\nALTER TABLE {t} ADD feels {t}_mood",
        "{n}, 'glad'",
    ),
}  # fmt: skip
