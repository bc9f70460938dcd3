"""Registration of a mirror's tables in a Spark catalog (--catalog), as external tables over their
directories.

A table gets its name with the first version of the mirror that has all its rows, and keeps it. Its
rows, columns and properties are always read from the table itself: the catalog only stores the
location.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_consumer.errors import OptionError
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.tables import TableName

_PROBLEMS = (PySparkException, Py4JJavaError)
"""PySpark has its own classes for some of Java's exceptions; those of a metastore or a REST catalog
arrive as Py4JJavaError."""


@dataclass
class Catalog:
    """A catalog for the tables of a mirror. `name`: its name in Spark's settings, `spark_catalog`
    or another; `path`: that of the mirror."""

    name: str
    path: str
    _registered: set[str] = field(default_factory=set, init=False)
    _told: dict[str, str] = field(default_factory=dict, init=False)  # tables that could not be registered, and why

    def check(self, spark: SparkSession) -> None:
        """Raise OptionError if Spark has no such catalog, or cannot reach it."""
        try:
            spark.sql(f"SHOW SCHEMAS IN {quoted(self.name)}").head()
        except _PROBLEMS as problem:
            raise OptionError(
                f"--catalog {self.name}: Spark cannot use this catalog: {_first_line(problem)}",
                hint="Configure it with --conf spark.sql.catalog.NAME=... and the catalog's own settings.",
            ) from problem

    def register(self, spark: SparkSession, tables: Iterable[str]) -> list[str]:
        """Register those of these tables that have no name yet. Return messages for the operator
        about names that are in use or not allowed in the catalog; the mirror itself is
        unaffected."""
        notes = []
        for text in sorted(set(tables) - self._registered):
            table = TableName.parse(text)
            name = f"{quoted(self.name)}.{quoted(table.namespace)}.{quoted(table.name)}"
            try:
                spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(self.name)}.{quoted(table.namespace)}")
                other = TABLE_FORMAT.register(spark, name, table_path(self.path, table))
            except _PROBLEMS as problem:  # perhaps temporary: the next version of the mirror tries again
                if _first_line(problem) != self._told.get(text):
                    notes.append(f"{text} was not registered in catalog {self.name}: {_first_line(problem)}")
                self._told[text] = _first_line(problem)
                continue
            self._registered.add(text)
            if other is not None:
                notes.append(
                    f"{text} was not registered in catalog {self.name}: the name refers to another table, at {other}"
                )
        return notes


def _first_line(problem: Exception) -> str:
    if isinstance(problem, Py4JJavaError):  # its text begins with the call
        problem = problem.java_exception
    return str(problem).strip().partition("\n")[0]
