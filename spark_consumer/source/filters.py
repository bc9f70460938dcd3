"""Filters of a query that reduce the work of a batch read. Spark also evaluates all of these
filters itself, after the read.

Spark 4.1 and later pass them to the source if `spark.sql.python.filterPushdown.enabled` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader

_LOWER = {"EqualTo": 0, "GreaterThanOrEqual": 0, "GreaterThan": 1}
_UPPER = {"EqualTo": 0, "LessThanOrEqual": 0, "LessThan": -1}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The changes that pass the filters of a query. A field that is None excludes nothing; both
    LSNs are inclusive."""

    first_lsn: int | None = None
    last_lsn: int | None = None
    operations: frozenset[str] | None = None
    tables: frozenset[str] | None = None  # as in the column `table` of the raw format

    def narrowed(self, given: Any) -> Wanted:
        """Return a copy narrowed by one of Spark's filters, or the object itself if filters of this
        kind are not used."""
        kind, (name, *nested) = type(given).__name__, given.attribute if hasattr(given, "attribute") else (None,)
        if nested or kind not in ("EqualTo", "In", *_LOWER, *_UPPER):
            return self
        values = tuple(given.value) if kind == "In" else (given.value,)
        if name == "op" and kind in ("EqualTo", "In"):
            return replace(self, operations=_common(self.operations, values))
        if name == "table" and kind in ("EqualTo", "In"):
            return replace(self, tables=_common(self.tables, values))
        if name != "commit_lsn" or kind == "In":
            return self
        first, last = self.first_lsn, self.last_lsn
        if kind in _LOWER:
            first = max(filter(None, (first, given.value + _LOWER[kind])), default=0)
        if kind in _UPPER:
            upper = given.value + _UPPER[kind]
            last = upper if last is None else min(last, upper)
        return replace(self, first_lsn=first, last_lsn=last)


def _common(before: frozenset[str] | None, values: Iterable[str]) -> frozenset[str]:
    return frozenset(values) if before is None else before & frozenset(values)


class FilterPushdown:
    """A reader's `pushFilters`, which Spark calls if the setting is on.

    If the setting is off, Spark refuses a reader whose class overrides `pushFilters`: it compares
    `__func__` with that of the base class. This object therefore has the same `__func__`.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", lambda _, filters: filters))

    def __init__(self, take: Callable[[Iterable[Any]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Any]) -> list[Any]:
        """Note the filters for pruning, and return all of them, so that Spark still evaluates
        them."""
        self._take(filters)
        return filters
