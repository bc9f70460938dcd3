"""The dialects of SQL in which programs read Delta tables: statements that create views of tables,
each at one version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from spark_consumer.mirror.paths import table_path
from spark_consumer.tables import TableName

Versions = Mapping[TableName, int]


def duckdb_views(path: str, versions: Versions) -> Iterator[str]:
    """Yield statements that create views with the names of the source's tables, using DuckDB's
    Delta extension."""
    for table, number in versions.items():
        location = table_path(path, table).replace("'", "''")
        yield f"CREATE SCHEMA IF NOT EXISTS {_quoted(table.namespace)};"
        yield (
            f"CREATE OR REPLACE VIEW {_quoted(table.namespace)}.{_quoted(table.name)} AS "
            f"SELECT * FROM delta_scan('{location}', version := {number});"
        )


def trino_views(path: str, versions: Versions) -> Iterator[str]:
    """Yield statements that create views in the schema `mirror_<schema>` over the tables
    `<schema>.<table>` of Trino's catalog `delta`."""
    for table, number in versions.items():
        schema = _quoted(f"mirror_{table.namespace}")
        yield f"CREATE SCHEMA IF NOT EXISTS delta.{schema};"
        yield (
            f"CREATE OR REPLACE VIEW delta.{schema}.{_quoted(table.name)} AS SELECT * FROM "
            f"delta.{_quoted(table.namespace)}.{_quoted(table.name)} FOR VERSION AS OF {number};"
        )


DIALECTS: dict[str, Callable[[str, Versions], Iterator[str]]] = {"duckdb": duckdb_views, "trino": trino_views}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
