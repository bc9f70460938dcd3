"""Changes after which a reader with the new schema cannot read old events: the gateway stops, or
registers when told."""

from __future__ import annotations

from typing import Final

from tests.evolution.scene import Scene

INCOMPATIBLE: Final = {
    "text_to_int": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, c text)",
        "{n}, '12'",
        "ALTER TABLE {t} ALTER c TYPE int USING c::int",
        "{n}, 13",
    ),
    "int_to_text": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, c int)", "{n}, 12", "ALTER TABLE {t} ALTER c TYPE text", "{n}, 'x'"
    ),
    "another_scale": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, c numeric(10,2))",
        "{n}, 1.25",
        "ALTER TABLE {t} ALTER c TYPE numeric(10,4)",
        "{n}, 1.0625",
    ),
    "added_again": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, c text)",
        "{n}, 'x'",
        "ALTER TABLE {t} DROP c;\nALTER TABLE {t} ADD c date",
        "{n}, '2026-01-02'",
    ),
    "made_again": Scene(
        "CREATE TABLE {t} (id int PRIMARY KEY, c text)",
        "{n}, 'x'",
        "DROP TABLE {t};\nCREATE TABLE {t} (c float8, id text PRIMARY KEY)",
        "0.1, {n}",
    ),
}
