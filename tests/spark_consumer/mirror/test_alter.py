"""ALTER TABLE through a real gateway: behind each one the mirrors have, by value, what PostgreSQL
has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

from gateway.local import Kafka
from gateway.local import Registry as LocalRegistry
from spark_consumer.mirror import slice_contents, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, OUT, is_log
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.conftest import Database
from tests.spark_consumer.feeder import Row
from tests.spark_consumer.mirrors import merged_rows, merging_mirror
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_confirmed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
CREATE DOMAIN price AS numeric(8,2);
CREATE TABLE items (id int PRIMARY KEY, a text, b text);
CREATE TABLE notes (id int, a text, b text);
ALTER TABLE notes REPLICA IDENTITY FULL;
CREATE TABLE pages (url bytea, seq int, note text, PRIMARY KEY (url, seq));
CREATE PUBLICATION walgate FOR TABLE items, notes, pages
"""
# 2,112 bytes that cannot be compressed: an index takes them, but a row has them out of line.
URL = "(SELECT string_agg(sha512(i::text::bytea), '') FROM generate_series(1, 33) i)"
# A part of the key does not change, and is not sent; in one merge, then in one on what is merged.
PAGES = (
    (
        f"INSERT INTO pages SELECT {URL}, seq, 'new' FROM unnest(ARRAY[10, 20, 30, 40]) seq; "
        "UPDATE pages SET seq = seq + 1 WHERE seq IN (10, 20); UPDATE pages SET note = 'b' WHERE seq = 11; "
        "DELETE FROM pages WHERE seq = 21"
    ),
    (
        "UPDATE pages SET seq = seq + 1 WHERE seq IN (11, 30, 40); UPDATE pages SET note = 'c' WHERE seq = 12; "
        "DELETE FROM pages WHERE seq = 31"
    ),
)
# {t} is the table; `n` is the number of the script, so that ids are not used twice.
ROWS = "INSERT INTO {t} (id, a, b) SELECT {n} * 100 + i, 'a' || i, 'b' || i FROM generate_series(1, 4) i"
DEFAULTS = """\
    ADD words text DEFAULT 'a, "b" {{c}}', ADD amount numeric(12,2) DEFAULT 1.50, ADD odd numeric(12,2) DEFAULT 'NaN',
    ADD at timestamptz DEFAULT '2026-01-02 03:04:05.678+02', ADD many int[] DEFAULT '{{1,NULL}}',
    ADD texts text[] DEFAULT '{{"x,y"}}', ADD feels mood DEFAULT 'it''s ok',
    ADD costs price DEFAULT 9.99, ADD "is so" bool DEFAULT true, ADD nothing text
"""
FEW = (
    f"{ROWS}; {PAGES[0]}",
    (
        f"BEGIN; UPDATE {{t}} SET a = 'before' WHERE id = 101; ALTER TABLE {{t}} {DEFAULTS}; "
        f"UPDATE {{t}} SET b = 'after' WHERE id = 102; INSERT INTO {{t}} (id) VALUES (201); COMMIT; {PAGES[1]}"
    ),
    (
        "BEGIN; INSERT INTO {t} (id, a, b) VALUES (301, 'a', 'b'); ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME b TO a; "
        "ALTER TABLE {t} RENAME c TO b; UPDATE {t} SET a = 'swapped' WHERE id = 103; COMMIT; "
        "UPDATE {t} SET b = NULL WHERE id = 104; ALTER TABLE {t} RENAME words TO phrases; "
        "ALTER TABLE {t} DROP amount, ADD amount numeric(12,2) DEFAULT 7; DELETE FROM {t} WHERE id = 201; "
        "INSERT INTO {t} (id, amount) VALUES (302, 3)"
    ),
)
MANY = (
    *FEW,
    "RESTART",
    "UPDATE {t} SET phrases = 'again' WHERE id = 101",
    "ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD b text; UPDATE {t} SET b = 'new' WHERE id = 102",
    (
        "STOP; INSERT INTO {t} (id, a) VALUES (701, 'late'); ALTER TABLE {t} RENAME a TO renamed_while_down; "
        "UPDATE {t} SET b = 'x' WHERE id = 701; "
        "ALTER TABLE {t} DROP b, ADD b text DEFAULT 'of the third'; ALTER TABLE {t} ADD last int DEFAULT 5; "
        "INSERT INTO {t} (id) VALUES (702); RESTART"
    ),
    "ALTER TABLE {t} ALTER last SET DEFAULT 6, ADD next int DEFAULT 1; INSERT INTO {t} (id) VALUES (801)",
    "VACUUM FULL {t}; INSERT INTO {t} (id) VALUES (802)",
    "TRUNCATE {t}; INSERT INTO {t} (id) VALUES (901); ALTER TABLE {t} RENAME last TO final; INSERT INTO {t} (id) VALUES (902)",
)
KEYED = (
    "INSERT INTO items VALUES (1, 'a', 'b'), (2, 'c', 'd')",
    (
        "BEGIN; UPDATE items SET a = 'x' WHERE id = 1; ALTER TABLE items RENAME id TO pk; "
        "UPDATE items SET pk = 3 WHERE pk = 2; COMMIT"
    ),
    "ALTER TABLE items RENAME pk TO id; DELETE FROM items WHERE id = 3; INSERT INTO items VALUES (4, 'e', 'f')",
)


@dataclass
class World:
    sql: asyncpg.Connection
    slot: str
    gateway: GatewayProcess
    registry_url: str
    options: dict[str, str]

    async def run(self, script: str, tables: tuple[str, ...], number: int) -> None:
        """Each statement by itself, and for each table if it names {t}. RESTART and STOP are of the
        gateway."""
        for part in script.split("; "):
            if part in ("RESTART", "STOP"):
                if self.gateway.is_running:
                    assert await self.gateway.stop() == 0, self.gateway.log_tail()
                if part == "RESTART":
                    await self.gateway.streaming()
                continue
            for table in tables if "{t}" in part else (None,):
                await self.sql.execute(part.format(t=table, n=number))
        if self.gateway.is_running:
            await until_confirmed(self.sql, self.slot)

    def schemas(self) -> SchemaCache:
        return SchemaCache(Registry({"url": self.registry_url}))

    async def rows(self, table: str) -> Counter[Any]:
        return Counter(as_row(dict(row)) for row in await self.sql.fetch(f"SELECT * FROM {table}"))


@pytest_asyncio.fixture
async def world(
    database: Database, kafka: Kafka, registry: LocalRegistry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[World]:
    sql = await database.connect()
    await sql.execute("SET TimeZone = 'UTC'")
    await sql.execute(SETUP)
    slot = f"slot_{topic_prefix}"
    settings = {
        "source__dsn": database.dsn, "source__slot": slot, "source__publications": "walgate",
        "kafka__bootstrap_servers": kafka.bootstrap_servers, "kafka__prefix": topic_prefix,
        "kafka__replication_factor": 1, "registry__url": registry.url,
    }  # fmt: skip
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "registry.url": registry.url, "prefix": topic_prefix,
    }  # fmt: skip
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    try:
        await gateway.streaming()
        yield World(sql, slot, gateway, registry.url, options)
    finally:
        await gateway.end()


def as_row(row: dict[str, Any]) -> tuple[Any, ...]:
    """By name; a value that is special in the mirror as its text."""
    special = dict(row.pop("_special", None) or ())
    values = {name: special.get(name, value) for name, value in row.items()}
    return tuple(
        (name, tuple(value) if isinstance(value, list) else _plain(value)) for name, value in sorted(values.items())
    )


def _plain(value: Any) -> Any:
    return "NaN" if value != value else value


def added_up(entries: list[Row]) -> Counter[Any]:
    """Of a log: what its entries add up to."""
    if not entries or not is_log(entries[0]):
        return Counter(map(as_row, entries))
    found: Counter[Any] = Counter()
    for entry in sorted(entries, key=itemgetter("_commit_lsn", "_ordinal")):
        op = entry["_op"]
        row = as_row({column: value for column, value in entry.items() if column not in LOG_COLUMNS})
        if op == "TRUNCATE":
            assert not any(value for _, value in row), row
            found.clear()
        else:
            found[row] += -1 if op in OUT else 1
    assert all(count >= 0 for count in found.values()), found
    return +found


def mirrors(world: World, folder: Path, reports: list[BatchReport], kinds: str) -> dict[str, AppendingMirror]:
    made: dict[str, AppendingMirror] = {
        "merged": merging_mirror(str(folder / "merged"), world.schemas(), reports.append),
        "appended": AppendingMirror(str(folder / "appended"), world.schemas(), merge_every_s=10_000),
    }
    return {kind: made[kind] for kind in kinds.split()}


@pytest.mark.parametrize(
    ("scripts", "tables", "kinds"),
    [
        (FEW, ("items",), "merged appended"),
        pytest.param(MANY, ("items",), "merged appended", marks=pytest.mark.long),
        pytest.param(KEYED, ("items",), "merged appended", marks=pytest.mark.long),
        pytest.param(FEW, ("notes",), "merged appended", marks=pytest.mark.long),
    ],
    ids=["few", "many", "key", "log"],
)
@pytest.mark.parametrize("small_changes", [slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
async def test_behind_each_alter_table_the_mirrors_have_what_the_source_has(
    spark: SparkSession,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scripts: tuple[str, ...],
    tables: tuple[str, ...],
    kinds: str,
    small_changes: int,
) -> None:
    """By a merge a batch, by pictures over what is not merged yet, by the merge of all that, and in
    one batch."""
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", small_changes)
    reports: list[BatchReport] = []
    made = mirrors(world, tmp_path, reports, kinds)

    def take(mirror: AppendingMirror) -> dict[str, list[Row]]:
        """Every table behind this batch."""
        mirror.apply(spark.read.format("walgate").options(**world.options, includeMarkers="true").load(), 0)
        if mirror.merge_every_s == 0:
            return merged_rows(mirror.path)
        return {name: frame.toArrow().to_pylist() for name, frame in versions.read(spark, mirror.path).items()}

    truth: dict[str, Counter[Any]] = {}
    for number, script in enumerate(scripts, 1):
        await world.run(script, tables, number)
        truth = {f"public.{table}": await world.rows(table) for table in (*tables, "pages")}
        for kind, mirror in made.items():
            found = await asyncio.to_thread(take, mirror)
            for name, expected in truth.items():
                assert added_up(found.get(name, [])) == expected, (kind, number, name)
    for mirror in made.values():
        await asyncio.to_thread(mirror.finish, spark, merge=True)
    whole = merging_mirror(str(tmp_path / "whole"), world.schemas())
    await asyncio.to_thread(take, whole)
    for mirror in (*made.values(), whole):
        found = merged_rows(mirror.path)
        for name, expected in truth.items():
            assert added_up(found.get(name, [])) == expected, (mirror.path, name)
    assert not [note for report in reports for note in report.notes], "the stream has told everything"
