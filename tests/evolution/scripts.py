"""Stories that are no four-fold scene: partitions, publications with lists and filters, generated
columns, odd tables."""

from __future__ import annotations

from typing import Final

from tests.evolution.scene import MANY

PUBLICATIONS: Final = {
    "walgate": "FOR TABLES IN SCHEMA public",
    "roots": "FOR TABLE roots.part WITH (publish_via_partition_root)",
    "made": "FOR TABLES IN SCHEMA made WITH (publish_generated_columns = stored)",
    "picked": "FOR TABLE picked.listed (id, a) WHERE (id < 100), picked.filtered WHERE (a > 0)",
}

SETUP: Final = (
    "CREATE SCHEMA roots",
    "CREATE SCHEMA made",
    "CREATE SCHEMA picked",
    "CREATE TABLE roots.part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE picked.listed (id int PRIMARY KEY, a int, b text, secret text)",
    "CREATE TABLE picked.filtered (id int PRIMARY KEY, a int)",
    "ALTER TABLE picked.filtered REPLICA IDENTITY FULL",
)


def _partitions(s: str) -> tuple[str, ...]:
    return (
        f"CREATE TABLE IF NOT EXISTS {s}.part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        f"CREATE TABLE {s}.part_low PARTITION OF {s}.part FOR VALUES FROM (0) TO (100)",
        f"CREATE TABLE {s}.part_high PARTITION OF {s}.part FOR VALUES FROM (100) TO (200)",
        f"INSERT INTO {s}.part VALUES (1, 'a'), (101, 'b')",
        f"UPDATE {s}.part SET id = 102, v = 'moved' WHERE id = 1",
        f"CREATE TABLE {s}.part_new (v text, gone int, id int PRIMARY KEY)",
        f"ALTER TABLE {s}.part_new DROP gone",
        f"INSERT INTO {s}.part_new VALUES ('own', 201)",
        "BEGIN",
        f"INSERT INTO {s}.part VALUES (2, 'low')",
        f"ALTER TABLE {s}.part ATTACH PARTITION {s}.part_new FOR VALUES FROM (200) TO (300)",
        f"INSERT INTO {s}.part VALUES (202, 'through the root')",
        "COMMIT",
        "BEGIN",
        f"ALTER TABLE {s}.part DETACH PARTITION {s}.part_low",
        f"INSERT INTO {s}.part_low VALUES (3, 'alone')",
        "COMMIT",
        f"ALTER TABLE {s}.part ADD more int",
        f"INSERT INTO {s}.part VALUES (203, 'x', 7)",
        f"CREATE TABLE {s}.part_many (more int, v text, id int PRIMARY KEY)",
        f"CREATE TABLE {s}.part_rest PARTITION OF {s}.part DEFAULT",
        "BEGIN",
        f"INSERT INTO {s}.part SELECT n, 'rest', 1 FROM generate_series(1000, {999 + MANY}) n",
        f"ALTER TABLE {s}.part ATTACH PARTITION {s}.part_many FOR VALUES FROM (2000) TO (3000)",
        f"INSERT INTO {s}.part SELECT n, 'many', 2 FROM generate_series(2000, {1999 + MANY}) n",
        "COMMIT",
        f"TRUNCATE {s}.part_high",
    )


def _generated(s: str) -> tuple[str, ...]:
    return (
        f"CREATE TABLE {s}.generated (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED)",
        f"ALTER TABLE {s}.generated ADD never int GENERATED ALWAYS AS (a * 9) VIRTUAL",
        f"INSERT INTO {s}.generated (id, a) VALUES (1, 1)",
        "BEGIN",
        f"INSERT INTO {s}.generated (id, a) VALUES (2, 2)",
        f"ALTER TABLE {s}.generated ADD thrice int GENERATED ALWAYS AS (a * 3) STORED",
        f"INSERT INTO {s}.generated (id, a) VALUES (3, 3)",
        "COMMIT",
        f"ALTER TABLE {s}.generated ALTER twice DROP EXPRESSION",
        f"INSERT INTO {s}.generated (id, a, twice) VALUES (4, 4, 99)",
        f"UPDATE {s}.generated SET a = 5 WHERE id = 4",
    )


WIDE: Final = ", ".join(f"c{number} int2" for number in range(1598))

SCRIPTS: Final = (
    *_partitions("public"),
    *_partitions("roots"),
    *_generated("public"),
    *_generated("made"),
    # Column list, and a filter on the key: rows enter and leave what is published.
    "INSERT INTO picked.listed VALUES (1, 10, 'b', 'secret'), (101, 10, 'b', 'secret'), (2, NULL, 'b', 'secret')",
    "UPDATE picked.listed SET id = 102 WHERE id = 1",
    "UPDATE picked.listed SET id = 3 WHERE id = 101",
    "BEGIN",
    "INSERT INTO picked.listed VALUES (4, 10, 'b', 'secret')",
    "ALTER PUBLICATION picked SET TABLE picked.listed (id, a, b) WHERE (id < 200), picked.filtered WHERE (a > 0)",
    "INSERT INTO picked.listed VALUES (104, 10, 'b', 'secret')",
    "COMMIT",
    "BEGIN",
    f"INSERT INTO picked.listed SELECT n, 1, 'b', 'secret' FROM generate_series(1000, {999 + MANY}) n",
    "INSERT INTO picked.listed VALUES (5, 10, 'b', 'secret')",
    "ALTER TABLE picked.listed DROP secret",
    f"INSERT INTO picked.listed SELECT n, 1, 'b' FROM generate_series(2000, {1999 + MANY}) n",
    "INSERT INTO picked.listed VALUES (6, 10, NULL)",
    "COMMIT",
    "INSERT INTO picked.filtered VALUES (1, 1), (2, -2)",
    "UPDATE picked.filtered SET a = -a",
    # Names that no Avro name and no topic name can have, and that differ by case only.
    'CREATE TABLE "Case" (id int PRIMARY KEY, v text)',
    'CREATE TABLE "case" (id int PRIMARY KEY, v text)',
    """INSERT INTO "Case" VALUES (1, 'upper')""",
    """INSERT INTO "case" VALUES (1, 'lower')""",
    'CREATE SCHEMA "a.b"',
    'CREATE SCHEMA a',
    'CREATE TABLE "a.b".c (id int PRIMARY KEY)',
    'CREATE TABLE a."b.c" (id int PRIMARY KEY)',
    'ALTER PUBLICATION walgate ADD TABLES IN SCHEMA "a.b", a',
    'INSERT INTO "a.b".c VALUES (1)',
    'INSERT INTO a."b.c" VALUES (2)',
    'CREATE TABLE "My ""Täble"" 😀" (id int PRIMARY KEY)',
    'INSERT INTO "My ""Täble"" 😀" VALUES (1)',
    'ALTER TABLE "My ""Täble"" 😀" ADD "1. käse; 🧀" text',
    """INSERT INTO "My ""Täble"" 😀" VALUES (2, 'x')""",
    # The same form, but another relation.
    "CREATE TABLE made_anew (id int PRIMARY KEY)",
    "INSERT INTO made_anew VALUES (1)",
    "DROP TABLE made_anew",
    "CREATE TABLE made_anew (id int PRIMARY KEY)",
    "INSERT INTO made_anew VALUES (2)",
    # As many columns as PostgreSQL takes.
    f"CREATE TABLE wide (id int PRIMARY KEY, {WIDE})",
    "INSERT INTO wide (id, c0, c1597) VALUES (1, 10, 11)",
    "BEGIN",
    "INSERT INTO wide (id) VALUES (2)",
    "ALTER TABLE wide ADD last int2",
    "INSERT INTO wide (id, last) VALUES (3, 12)",
    "COMMIT",
    "INSERT INTO wide (id, last) VALUES (4, 13)",
)  # fmt: skip
