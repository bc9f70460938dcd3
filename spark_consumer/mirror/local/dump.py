"""Output of the rows in a local mirror's newest version, as text that PostgreSQL reads back exactly
or as Parquet. It needs neither Spark nor Java, and takes half a second.

JSON lines: for each table a header {"table": ..., "columns": [...], "commit_lsn": ...}, then one
array for each row, of nulls and texts. Floats have their shortest exact form, bytes are \\x...,
arrays are PostgreSQL's literals, and a value in `_special` (tables/table_schema.py) is its text.
For a table without a key, the rows are those that its log adds up to.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.lsn import format_lsn
from schemas.topic_names import topic_part
from spark_consumer.columnar.scalars import without_exponents
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.local.local_tables import LocalTable, open_table
from spark_consumer.mirror.local.version_list import manifest_rows
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, OUT, SPECIAL, is_log
from spark_consumer.tables import TableName

TextRow = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """A table in the mirror's newest version."""

    name: str
    commit_lsn: int
    files: LocalTable

    @property
    def is_log(self) -> bool:
        return is_log(self.files.columns)

    @property
    def special(self) -> str:
        """The column that is `TableSchema.special_column`: the one with the most underscores."""
        return max((name for name in self.files.columns if name.lstrip("_") == SPECIAL.lstrip("_") != name), key=len)

    @property
    def columns(self) -> list[str]:
        hidden = {self.special, *(LOG_COLUMNS if self.is_log else ())}
        return [name for name in self.files.columns if name not in hidden]

    def rows(self) -> Iterator[TextRow]:
        if self.is_log:
            return self._logged_rows()
        return (row for table in self.files.batches() for row in text_rows(table, self.columns, self.special))

    def _logged_rows(self) -> Iterator[TextRow]:
        """Return the rows that the log added and did not remove, as a multiset, since there is no
        key. Raises MirrorError if the log does not contain all old rows."""
        events: list[tuple[int, int, str, TextRow]] = []
        for table in self.files.batches():
            places = zip(*(table[name].to_pylist() for name in ("_commit_lsn", "_ordinal", "_op")), strict=True)
            for (commit_lsn, ordinal, word), row in zip(
                places, text_rows(table, self.columns, self.special), strict=True
            ):
                events.append((commit_lsn, ordinal, word, row))
        held: Counter[TextRow] = Counter()
        words: Counter[str] = Counter()
        for _, _, word, row in sorted(events, key=lambda event: (*event[:2], event[2] == "TRUNCATE")):
            if word == "TRUNCATE":
                held.clear()
                words.clear()
                continue
            words[word] += 1
            held[row] += -1 if word in OUT else 1
        if words["UPDATE"] != words["UPDATE_BEFORE"] or any(count < 0 for count in held.values()):
            raise MirrorError(
                f"the current rows of {self.name} cannot be computed from its append-only table (the table has no key, so "
                "every change is appended): old rows were not sent, or a column was added or changed",
                hint="Old rows are sent only with REPLICA IDENTITY FULL. Read the append-only table itself with Spark, or write "
                "it to a Parquet file (walgate dump --to DIRECTORY).",
            )
        return held.elements()


def newest(path: Path, names: Iterable[str] = ()) -> list[DumpedTable]:
    """Return the tables of the newest version, all or those with these names. Raises
    MirrorError."""
    rows = manifest_rows(path)
    if not rows:
        raise MirrorError(
            f"no changes have been merged into the tables of the mirror at {path} yet",
            hint="Wait until walgate mirror has caught up: it then merges the tables and reports this. To merge them now, run "
            "walgate merge.",
        )
    newest = max(rows, key=lambda row: row["commit_lsn"])
    filling = TableStates.of(newest.get("standing")).filling
    versions = {name: version for name, version in dict(newest["tables"]).items() if name not in filling}
    missing = [name for name in names if name not in versions]
    if missing:
        still = " yet: its snapshot is not complete" if missing[0] in filling else ""
        raise MirrorError(f"the mirror has no table {missing[0]}{still}", hint=f"It has {', '.join(sorted(versions))}.")
    return [
        DumpedTable(
            name, newest["commit_lsn"], open_table(Path(table_path(str(path), TableName.parse(name))), versions[name])
        )
        for name in (names or sorted(versions))
    ]


def dump_json(path: Path, names: Iterable[str], out: TextIO) -> None:
    for table in newest(path, list(names)):
        header = {"table": table.name, "columns": table.columns, "commit_lsn": format_lsn(table.commit_lsn)}
        out.write(json.dumps(header) + "\n")
        out.writelines(json.dumps(row) + "\n" for row in table.rows())


def dump_parquet(path: Path, names: Iterable[str], to: Path) -> None:
    """Write one Parquet file for each table, with typed columns and `_special`. Names are escaped
    as in paths.table_path."""
    to.mkdir(parents=True, exist_ok=True)
    for table in newest(path, list(names)):
        pieces = [*table.files.batches()] or [table.files.schema.empty_table()]
        rows = pa.concat_tables(pieces, promote_options="permissive")
        name = TableName.parse(table.name)
        pq.write_table(rows, to / f"{topic_part(name.namespace)}.{topic_part(name.name)}.parquet")


def text_rows(table: pa.Table, columns: list[str], special: str) -> Iterator[TextRow]:
    texts = [column_text(table[name]) for name in columns]
    specials = table[special].to_pylist()
    for row, entries in zip(zip(*texts, strict=True), specials, strict=True):
        if not entries:
            yield row
            continue
        known = dict(entries)
        yield tuple(known.get(name, text) for name, text in zip(columns, row, strict=True))


def column_text(column: pa.ChunkedArray | pa.Array) -> list[str | None]:
    kind = column.type
    if pa.types.is_null(kind):
        return [None] * len(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]
    if pa.types.is_list(kind):
        return _list_text(column)
    if pa.types.is_decimal(kind):
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        column = without_exponents(whole.cast(pa.string()))
    texts: list[str | None] = pc.cast(column, pa.string()).to_pylist()
    return texts


def _list_text(column: pa.ChunkedArray | pa.Array) -> list[str | None]:
    result: list[str | None] = []
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        items = column_text(chunk.values)
        offsets = chunk.offsets.to_pylist()
        for place, valid in enumerate(chunk.is_valid().to_pylist()):
            result.append(array_literal(items[offsets[place] : offsets[place + 1]]) if valid else None)
    return result


def array_literal(items: list[str | None]) -> str:
    """Return PostgreSQL's text of a one-dimensional array. Every value is quoted, which its input
    always accepts."""
    return "{" + ",".join("NULL" if item is None else _in_quotes(item) for item in items) + "}"


def _in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
