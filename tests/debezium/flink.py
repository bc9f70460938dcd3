"""Flink for the tests: its SQL in a JVM of its own, without a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.debezium.connect import files
from tests.debezium.jvm import jvm

_OPENED = ("java.lang", "java.lang.reflect", "java.net", "java.nio", "java.time", "java.util", "java.util.concurrent")
"""Packages that Flink reads by reflection (conf/config.yaml of its distribution)."""


class Flink:
    def __init__(self, jvm: Any) -> None:
        of_tables = jvm.org.apache.flink.table.api
        self._tables = of_tables.TableEnvironment.create(
            of_tables.EnvironmentSettings.newInstance().inStreamingMode().build()
        )
        self._tables.getConfig().set("parallelism.default", "1")

    def execute(self, statement: str) -> None:
        self._tables.executeSql(statement)

    def table(self, query: str) -> Counter[tuple[Any, ...]]:
        """What is left of the changelog of a query that ends; a row that was retracted and never
        came is an error."""
        found: Counter[tuple[Any, ...]] = Counter()
        changes = self._tables.executeSql(query).collect()
        try:
            while changes.hasNext():
                change = changes.next()
                row = tuple(_value(change.getField(at)) for at in range(change.getArity()))
                found[row] += 1 if change.getKind().shortString() in ("+I", "+U") else -1
                assert found[row] >= 0, f"{row} was never there"
        finally:
            changes.close()
        return +found


def _value(value: Any) -> Any:
    return tuple(value) if type(value).__name__ == "JavaArray" else value


@contextmanager
def flink(folder: Path) -> Iterator[Flink]:
    """`folder`: for its log and for what it unpacks."""
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    with jvm(files("flink"), folder, opened) as gateway:
        yield Flink(gateway.jvm)
