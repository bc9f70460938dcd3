"""Other programs read the Delta tables of a mirror: docs/spark.md says which of them can."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.jobs.test_jobs import run

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]

# The newest; of DuckDB the newest whose extension for Delta is on PyPI.
PACKAGES = [
    "duckdb==1.5.5", "duckdb-extensions==1.5.5", "duckdb-extension-delta==1.5.5", "polars==2.1.0", "deltalake==1.6.6",
    "pyarrow==26.0.1",
]  # fmt: skip
ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
MAPPED = relation("mapped", {"id": INT8, "a name": TEXT}, ("id",))
RIGHT = {"second": 5, "first": 95}
# By reader: items and mapped, without and with deletion vectors.
READ = {
    "duckdb": (RIGHT, RIGHT, RIGHT, RIGHT),
    "polars": (RIGHT, "refused", RIGHT, "refused"),
    "to_pyarrow_table": (RIGHT, {"None": 100}, "refused", "refused"),
    "query_builder": (RIGHT, RIGHT, RIGHT, RIGHT),
}
TABLES = ("plain items", "plain mapped", "vectors items", "vectors mapped")
EXPECTED = {
    f"{reader} {table}": told for reader, tolds in READ.items() for table, told in zip(TABLES, tolds, strict=True)
}


def insert(feeder: Feeder, tables: list[Table]) -> None:
    transaction = feeder.begin()
    for table in tables:
        for key in range(100):
            transaction.insert(table, {"id": key, table.description.columns[1].name: "first"})
    transaction.commit()
    feeder.kafka_commit()


def update(feeder: Feeder, tables: list[Table]) -> None:
    """Few rows: a merge writes deletion vectors, where the table may have them."""
    transaction = feeder.begin()
    for table in tables:
        for key in range(5):
            row = table.rows[key,]
            transaction.update(table, row, {**row, table.description.columns[1].name: "second"})
    transaction.commit()
    feeder.kafka_commit()


def read_all(folder: Path, *views: str) -> dict[str, dict[str, int] | str]:
    """By reader, mirror and table; or by table, of views that the file `views` makes."""
    uv, python = Path(sys.executable).parent / "uv", folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([str(uv), "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
        subprocess.run([str(uv), "pip", "install", "--quiet", "--python", str(python), *PACKAGES], check=True)
    command = [str(python), str(Path(__file__).with_name("reading_job.py")), str(folder), *views]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


async def test_duckdb_shows_all_tables_as_of_one_commit(feeder: Feeder, tmp_path: Path) -> None:
    """By what `walgate versions --sql duckdb` prints, also of a version that is not the last."""
    tables = [await asyncio.to_thread(feeder.table, described) for described in (ITEMS, MAPPED)]
    for change in (insert, update):
        await asyncio.to_thread(change, feeder, tables)
        await run("mirror", feeder, tmp_path / "vectors", "--once")
    lsns = [line.split("\t")[0] for line in said_by("versions", "--path", tmp_path / "vectors")]
    assert len(lsns) == 2
    for lsn, expected in zip(lsns, ({"first": 100}, RIGHT), strict=True):
        statements = said_by("versions", "--path", tmp_path / "vectors", "--sql", "duckdb", "--at", lsn)
        assert statements[0].endswith(f"all tables as of commit LSN {lsn}")
        (tmp_path / f"{lsn.replace('/', '-')}.sql").write_text("\n".join(statements))
        found = await asyncio.to_thread(read_all, tmp_path, f"{lsn.replace('/', '-')}.sql")
        assert found == {"items": expected, "mapped": expected}


def said_by(*words: object) -> list[str]:
    command = [sys.executable, "-m", "spark_consumer", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


async def test_other_readers_return_the_rows_of_a_mirror_or_refuse_it(feeder: Feeder, tmp_path: Path) -> None:
    """But one, which returns null instead of the values of mapped columns: docs/spark.md warns of
    it."""
    tables = [await asyncio.to_thread(feeder.table, described) for described in (ITEMS, MAPPED)]
    await asyncio.to_thread(insert, feeder, tables)
    mirrors = {"plain": ["--no-deletion-vectors"], "vectors": []}
    for name, more in mirrors.items():
        await run("mirror", feeder, tmp_path / name, "--once", *more)
    await asyncio.to_thread(update, feeder, tables)
    for name, more in mirrors.items():
        await run("mirror", feeder, tmp_path / name, "--once", *more)
    assert list((tmp_path / "vectors").rglob("*.bin"))
    found = await asyncio.to_thread(read_all, tmp_path)
    assert {name: told if isinstance(told, dict) else "refused" for name, told in found.items()} == EXPECTED, found
