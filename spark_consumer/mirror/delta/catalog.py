"""Names in a catalog of Spark for the tables of a mirror (--catalog): external tables over their
directories.

A table gets its name with the first version of the mirror that has all its rows, and keeps it. The
rows, columns and properties are in Delta's log, wherever they are read from: the catalog only says
where that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_consumer.errors import OptionError
from spark_consumer.mirror.delta.delta_table import literal, quoted, sql_table
from spark_consumer.mirror.paths import table_path
from spark_consumer.tables import TableName

_PROBLEMS = (PySparkException, Py4JJavaError)
"""PySpark has classes of its own for some of Java's exceptions; those of a metastore or a REST
catalog come as they are."""


@dataclass
class Catalog:
    """`name`: of the catalog in Spark's settings, `spark_catalog` or another; `path`: of the
    mirror."""

    name: str
    path: str
    _registered: set[str] = field(default_factory=set, init=False)
    _told: dict[str, str] = field(default_factory=dict, init=False)  # of tables that could not be registered, why

    def check(self, spark: SparkSession) -> None:
        """Raises OptionError where Spark has no such catalog, or cannot reach it."""
        try:
            spark.sql(f"SHOW SCHEMAS IN {quoted(self.name)}").head()
        except _PROBLEMS as problem:
            raise OptionError(
                f"--catalog {self.name}: Spark cannot use this catalog: {_first_line(problem)}",
                hint="Configure it with --conf spark.sql.catalog.NAME=... and the catalog's own settings.",
            ) from problem

    def register(self, spark: SparkSession, tables: Iterable[str]) -> list[str]:
        """Of these tables, those that have no name yet. What a person should know: a name that is
        in use, or not allowed there, leaves the mirror itself as it is."""
        notes = []
        for text in sorted(set(tables) - self._registered):
            table = TableName.parse(text)
            name = f"{quoted(self.name)}.{quoted(table.namespace)}.{quoted(table.name)}"
            try:
                location = _location(spark, sql_table(table_path(self.path, table)))
                spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(self.name)}.{quoted(table.namespace)}")
                spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{literal(location)}'")
                there = _location(spark, name)
            except _PROBLEMS as problem:  # it may pass: the next version of the mirror tries again
                if _first_line(problem) != self._told.get(text):
                    notes.append(f"{text} was not registered in catalog {self.name}: {_first_line(problem)}")
                self._told[text] = _first_line(problem)
                continue
            self._registered.add(text)
            if there != location:
                notes.append(
                    f"{text} was not registered in catalog {self.name}: the name refers to another table, at {there}"
                )
        return notes


def _location(spark: SparkSession, table: str) -> str:
    found = spark.sql(f"DESCRIBE DETAIL {table}").head()
    assert found is not None
    return str(found["location"])


def _first_line(problem: Exception) -> str:
    if isinstance(problem, Py4JJavaError):  # its text begins with the call
        problem = problem.java_exception
    return str(problem).strip().partition("\n")[0]
