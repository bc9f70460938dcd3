"""Names of tables, as users write them ("public.orders")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from schemas.topic_names import avro_namespace, format_relation, parse_relation
from spark_consumer.errors import OptionError


def is_one_of(table: TableName, patterns: Iterable[str]) -> bool:
    """Return whether a table's name, as text, matches a pattern with *, ? and [...], such as
    public.tmp_*."""
    return any(fnmatchcase(str(table), pattern) for pattern in patterns)


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that are equal if case is ignored, as by Delta, DuckDB and Trino; None if
    there are none."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other is not name:
            return other, name
    return None


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A relation's schema and name. Its text is `schema.name`; a part that contains a dot or a
    quote is in double quotes, as in SQL. Unlike in SQL, names are not folded to lower case: they
    are those in the catalog."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse `schema.name`. Raises OptionError unless there are exactly two parts."""
        parts = parse_relation(text)
        if parts is None:
            raise OptionError(
                f"{text!r} is not a table name",
                hint='Write it as schema.table, for example public.orders or "odd.schema".orders',
            )
        return cls(*parts)

    def record_namespace(self, prefix: str) -> str:
        """Return the Avro namespace of the records in the table's topic."""
        return avro_namespace(prefix, self.namespace, self.name)

    def __str__(self) -> str:
        return format_relation(self.namespace, self.name)
