"""Reads tables of mirrors with DuckDB, Polars and deltalake: test_readers.py. Arguments: the folder
that has the mirrors, and perhaps a file in it with SQL for DuckDB that makes views.

Prints for each reader and table how many rows have which text in the second column, or the error,
as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extensions
import polars as pl
import pyarrow as pa


def connected() -> Any:
    connection = duckdb.connect()
    duckdb_extensions.import_extension("delta", con=connection)
    connection.execute("LOAD delta")
    return connection


def by_duckdb(path: str) -> list[Any]:
    connection = connected()
    return [row[1] for row in connection.execute(f"SELECT * FROM delta_scan('{path}')").fetchall()]


def by_polars(path: str) -> list[Any]:
    return list(pl.scan_delta(path).collect().to_series(1))


def by_to_pyarrow_table(path: str) -> list[Any]:
    return list(deltalake.DeltaTable(path).to_pyarrow_table().column(1).to_pylist())


def by_query_builder(path: str) -> list[Any]:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    return list(pa.table(builder.execute("SELECT * FROM t").read_all()).column(1).to_pylist())


READERS = (by_duckdb, by_polars, by_to_pyarrow_table, by_query_builder)


def result(read: Callable[[str], list[Any]], path: str) -> dict[str, int] | str:
    try:
        return dict(Counter(map(str, read(path))))
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def main(folder: str, views: str = "") -> None:
    if views:
        connection = connected()
        connection.execute((Path(folder) / views).read_text())
        names = ("items", "mapped")
        rows = {name: connection.execute(f"SELECT * FROM public.{name}").fetchall() for name in names}
        print(json.dumps({name: Counter(row[1] for row in rows[name]) for name in names}))
        return
    tables = [(kind, name) for kind in ("plain", "vectors") for name in ("items", "mapped")]
    found = {
        f"{read.__name__.removeprefix('by_')} {kind} {name}": result(read, f"{folder}/{kind}/tables/public/{name}")
        for read in READERS
        for kind, name in tables
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
