"""Slices of appended changes, each of which a merge applies in one step.

Within a slice, a table has one key, and the newest type of each column holds the values of the
earlier ones. Another key or type within one transaction is an error or an exception
(replica_identity.change_of_key, type_changes.py). Snapshots end, and chunks that a VERIFY has read
are compared, after all changes of their slice are written. A slice ends before

    the quarantine of a table, so that the table's last state is in a version
    the beginning of a second snapshot of a table, if one has ended in the slice
    the next change of a table after a chunk of it that a VERIFY has read
    another key of a table, or another type that may not hold the values from before
    another relation with a table's name, unless the former rows are simply removed
        (replica_identity.change_of_relation)

A slice is cut when the one before it has been merged, since the states and keys of the tables
decide where the next cut is. Later changes decide, too: the slice of a merge that was interrupted
between two tables is applied first, as it was, whatever has been appended since. It ends at the LSN
that a table has reached, even if its last changes are of tables that were left out since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark_consumer.mirror import table_selection
from spark_consumer.mirror.fold import replica_identity
from spark_consumer.mirror.fold.replica_identity import RelationNames
from spark_consumer.mirror.slice_contents import (
    BatchContent,
    BatchSize,
    BatchSlice,
    TablePart,
    Verified,
    batch_size,
    earliest,
    marks_in,
    own_records,
    split_by_chunks,
    summarize,
    without_marks,
)
from spark_consumer.mirror.table_states import StoredMark, TableStates, first_cut, verified_chunks
from spark_consumer.mirror.tables.table_schemas import TableSchemas
from spark_consumer.mirror.tables.type_changes import change_of_types, misfits
from spark_consumer.mirror.verify.comparison import first_later_change
from spark_consumer.mirror.version_manifest import RecordedVersion
from spark_consumer.reader.table_marks import SNAPSHOT_BEGIN, SNAPSHOT_END
from spark_consumer.tables import TableName

Merged = tuple[TableStates, RecordedVersion | None, str]
"""The result of the merges before a slice: states of the tables, last version, path of the
mirror."""
Reached = Callable[[Iterable[TablePart]], int]
"""Returns the last commit LSN that any of the tables of these parts has reached, if the last slice
may have been interrupted; otherwise -1."""


@contextmanager
def persisted(rows: DataFrame) -> Iterator[None]:
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


def slices(
    rows: DataFrame,
    batch: int,
    size: BatchSize,
    end_lsn: int,
    shapes: TableSchemas,
    merged: Callable[[], Merged],
    reached: Reached,
    *,
    keeps_former: bool = False,
) -> Iterator[BatchSlice]:
    """Yield the slices of `rows` in order; the caller merges each before it asks for the next.
    `end_lsn`: the rows are all wanted changes up to this LSN; `merged`: returns what was merged.
    `keeps_former`: whether the rows of a table that was recreated are not simply removed. Raises
    MirrorError as _first_change_of_schema does."""
    left: list[tuple[DataFrame, BatchSize | None, int]] = [(rows, size, end_lsn)]
    while left:
        part, its_size, its_end = left.pop()
        its_size = its_size or batch_size(part)
        made = _slice_or_cut(part, batch, its_size, its_end, shapes, merged(), reached, keeps_former)
        if isinstance(made, BatchSlice):
            yield made
        elif made is not None:
            below, above = (part.where(f.col("commit_lsn") < made), part.where(f.col("commit_lsn") >= made))
            left += [(above, None, its_end), (below, None, made - 1)]


def _slice_or_cut(
    raw: DataFrame,
    batch: int,
    size: BatchSize,
    end_lsn: int,
    shapes: TableSchemas,
    merged: Merged,
    reached: Reached,
    keeps_former: bool,
) -> BatchSlice | int | None:
    """Return all of `raw`, the changes up to `end_lsn`, as a slice, or the commit LSN at which it
    has to be cut first, or None if it is empty."""
    states, first_lsn = merged[0], size.first_lsn
    marks = marks_in(raw) if size.marks else []
    to_apply = without_marks(raw) if marks else raw
    chunks = verified_chunks(marks)
    cut = _cut_by_marks(states, marks, chunks, to_apply, size)
    if cut is not None:
        return cut
    verified = None
    if chunks:
        compared, to_apply = split_by_chunks(to_apply, chunks)
        read = summarize(compared, batch_size(compared))
        verified = None if read is None else Verified(compared, read[1], read[0])
        size = replace(batch_size(to_apply), last_lsn=size.last_lsn)
    summary = summarize(to_apply, size)
    if summary is None and not marks:
        return None
    content, records = summary or (BatchContent(size.last_lsn, None, 0, 0, []), {})
    interrupted_lsn = reached(content.parts)
    if first_lsn <= interrupted_lsn < size.last_lsn:
        return interrupted_lsn + 1
    is_interrupted = size.last_lsn <= interrupted_lsn <= end_lsn
    # A merge that simply removed former rows did not cut its slice there.
    keeps_former = keeps_former and not is_interrupted
    cut = _first_change_of_schema(to_apply, records, content, shapes, merged, keeps_former)
    if cut is None and verified is not None:
        cut = _first_other_type(verified, shapes)
    if cut is None:
        cut = _first_other_key(content, verified, marks, shapes, merged[1])
    if cut is not None:
        return cut
    times = [content.commit_time, *(mark.commit_time for mark in marks)]
    commit_lsn = interrupted_lsn if is_interrupted else size.last_lsn
    content = replace(content, commit_lsn=commit_lsn, commit_time=max(filter(None, times), default=None))
    return BatchSlice(batch, to_apply, records, content, marks, verified)


def _cut_by_marks(
    states: TableStates, marks: list[StoredMark], chunks: list[StoredMark], to_apply: DataFrame, size: BatchSize
) -> int | None:
    """Return the commit LSN at which table marks require a cut, or None. `to_apply`: the rows
    without table marks; `chunks`: the chunks that a VERIFY has read."""
    cuts = [first_cut(states, marks, size.first_lsn, size.last_lsn)]
    if chunks:
        cuts.append(first_later_change(to_apply, chunks))
    return earliest(cuts)


def _first_change_of_schema(
    raw: DataFrame,
    records: dict[TableName, pa.Table] | None,
    content: BatchContent,
    shapes: TableSchemas,
    merged: Merged,
    keeps_former: bool,
) -> int | None:
    """Return the commit LSN of the first transaction in which a table gets another key, type of a
    column, or relation, as far as that needs a cut. Raises MirrorError, also for a table that is
    new to the mirror although the mirror is already past its first change."""
    states, last, path = merged
    oids = {} if last is None else last.oids
    names = RelationNames(oids, states.former, content.parts, shapes.oid_of)
    cuts = []
    for part in content.parts:
        name = str(part.table)
        is_new = last is not None and name not in last.tables
        versions = {schema_id: shapes.of(schema_id) for schema_id in part.schema_ids}
        key_of = replica_identity.keys_of(versions)
        changes_key = len({key_of(schema_id) for schema_id in part.schema_ids}) > 1
        is_recreated = len({shape.oid for shape in versions.values()}) > 1
        if not (is_new or changes_key or is_recreated or misfits(versions.values(), versions[part.newest])):
            continue
        own = own_records(raw, records, part.table)
        first = replica_identity.first_positions(own)
        if last is not None and min(first.values())[0] <= last.commit_lsn:
            raise table_selection.too_late_error(name, path, last.commit_lsn)
        is_other = partial(names.is_other, part.table)
        known = oids.get(name)
        cuts.append(
            replica_identity.change_of_relation(part, first, versions, known, is_other, keeps_former=keeps_former)
        )
        cuts.append(replica_identity.change_of_key(part.table, own, first, key_of, shapes.oid_of))
        cuts.append(change_of_types(part, first, versions))
    return earliest(cuts)


def _first_other_type(verified: Verified, shapes: TableSchemas) -> int | None:
    """Return the commit LSN of the first cut between chunks that a VERIFY has read and in which a
    column has different types. Without the cut, values that do not fit would be compared as
    nulls."""
    cuts = []
    for part in verified.content.parts:
        versions = {schema_id: shapes.of(schema_id) for schema_id in part.schema_ids}
        if misfits(versions.values(), versions[part.newest]):
            own = own_records(verified.changes, verified.records, part.table)
            cuts.append(change_of_types(part, replica_identity.first_positions(own), versions))
    return earliest(cuts)


def _first_other_key(
    content: BatchContent,
    verified: Verified | None,
    marks: list[StoredMark],
    shapes: TableSchemas,
    last: RecordedVersion | None,
) -> int | None:
    """Return the commit LSN of the first cut between rows of a table with different keys, or keys
    of different types, that `_first_change_of_schema` does not see. Such a cut is between changes
    and a chunk that a VERIFY has read. It is also after the end of a snapshot, whose keys would not
    match those of later changes."""
    read = {} if verified is None else {str(part.table): part for part in verified.content.parts}
    places = {(mark.table, mark.kind): mark.commit_lsn for mark in marks}
    cuts = []
    for part in content.parts:
        name = str(part.table)
        chunk = read.get(name)
        if chunk is not None and _have_other_keys(shapes, part.newest, chunk.newest):
            begin_lsn = places.get((name, SNAPSHOT_BEGIN), -1)
            cuts.append(begin_lsn if part.first_lsn < begin_lsn else chunk.first_lsn)
            continue
        is_behind = part.first_lsn > places.get((name, SNAPSHOT_END), part.first_lsn)
        if is_behind and last is not None and _have_other_keys(shapes, last.schema_ids.get(name), part.newest):
            cuts.append(part.first_lsn)
    return min(cuts, default=None)


def _have_other_keys(shapes: TableSchemas, first: int | None, second: int | None) -> bool:
    one, other = shapes.find(first), shapes.find(second)
    if one is None or other is None:
        return False
    return (one.key_numbers, list(one.key_struct)) != (other.key_numbers, list(other.key_struct))
