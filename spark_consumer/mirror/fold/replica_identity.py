"""Changes of a table's key, and other relations with its name.

A slice is cut where the key changes, so that each table has one key in every slice. Rows become a
log of changes if the table loses its key, and a log becomes rows if it gets one. Rows whose key
becomes another one stay as they are. Among them, the new key must be unique and not null.
Otherwise, a later change would not match exactly one row, and the merge raises MirrorError.

A relation that was dropped and recreated, or renamed to this name, has another oid. The table may
have rows of the former relation, which are removed, kept as a copy, or an error (--on-recreated).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import MapType, StructType

from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.fold.fold_spark import position
from spark_consumer.mirror.fold.keyless_log import log_table_schema
from spark_consumer.mirror.fold.start_fold import table_schema
from spark_consumer.mirror.slice_contents import TablePart, part_of, split_at_lsn
from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, OUT, TableSchema, is_log
from spark_consumer.tables import TableName, alike

COPY = (
    "Stop the mirror, and overwrite the Delta table at this location with the current rows of the source table. The Delta "
    "table must have the columns of the source table and, in addition, the column _special of type MAP<STRING, STRING>, null in "
    "every row (if the source table has a column of that name: __special). "
    "Then restart the mirror: changes that the copy already contains are harmless, provided that no column was added or dropped "
    "after the last transaction that the mirror applied and before the rows were copied. Or continue without the table: "
    "restart the mirror with --exclude and the table's name."
)
# In lower case. Any UPDATE or DELETE of a table with such a column would fail.
_COLUMNS_OF_MERGE = {"_source_row_present_", "_row_dropped_"}
_EXCLUDE = "Continue without the table: restart the mirror with --exclude and the table's name."


def first_positions(records: pa.Table | DataFrame) -> dict[int, tuple[int, int]]:
    """Return, for each schema id in one table's records, the (commit_lsn, ordinal) of its first
    record. An Arrow table must be in order."""
    if isinstance(records, DataFrame):
        found = records.groupBy("schema_id").agg(f.min(position()).alias("first")).collect()
        return {row["schema_id"]: tuple(row["first"]) for row in found}
    ids, places = np.unique(records["schema_id"].to_numpy(), return_index=True)
    first = records.select(["commit_lsn", "ordinal"]).take(pa.array(places)).to_pylist()
    return {number: (at["commit_lsn"], at["ordinal"]) for number, at in zip(ids.tolist(), first, strict=True)}


def schema_ids_after(records: pa.Table | DataFrame, cut: tuple[int, int]) -> list[int]:
    """Return the schema ids of one table's records after a TRUNCATE at (commit_lsn, ordinal)."""
    commit_lsn, ordinal = cut
    if isinstance(records, DataFrame):
        at = f.struct(f.lit(commit_lsn).cast("long").alias("commit_lsn"), f.lit(ordinal).cast("long").alias("ordinal"))
        return [row["schema_id"] for row in records.where(position() > at).select("schema_id").distinct().collect()]
    later = pc.greater(records["commit_lsn"], commit_lsn)
    within = pc.and_(pc.equal(records["commit_lsn"], commit_lsn), pc.greater(records["ordinal"], ordinal))
    found: list[int] = pc.unique(records.filter(pc.or_(later, within))["schema_id"]).to_pylist()
    return found


def newest_up_to(records: pa.Table | DataFrame, commit_lsn: int) -> int | None:
    """Return the schema id of a table's last record up to `commit_lsn`, or None if there is no such
    record. Records given as an Arrow table must be in commit order."""
    if isinstance(records, DataFrame):
        found = records.where(f.col("commit_lsn") <= commit_lsn).agg(f.max_by("schema_id", position())).head()
        return None if found is None else found[0]
    ids = records.filter(pc.less_equal(records["commit_lsn"], commit_lsn))["schema_id"]
    return ids[-1].as_py() if len(ids) else None


def is_empty(frame: DataFrame) -> bool:
    """Return whether a table has no row, or its log has none after its last TRUNCATE."""
    if not is_log(frame.columns):
        return frame.isEmpty()
    last = frame.orderBy(f.col("_commit_lsn").desc(), f.col("_ordinal").desc()).head()
    return last is None or last["_op"] == "TRUNCATE"


class RelationNames:
    """The names of tables under which a mirror knows each relation.

    `oids`: relations of the tables of its last version; `former`: earlier relations with a table's
    name; `parts`: changes to be applied, whose tables may be new; `oid_of`: returns the oid of a
    schema id.
    """

    def __init__(
        self,
        oids: Mapping[str, int],
        former: Mapping[str, Collection[int]],
        parts: Iterable[TablePart],
        oid_of: Callable[[int], int],
    ) -> None:
        self._former = former
        self._names: dict[int, set[str]] = {}
        for name, oid in oids.items():
            self._names.setdefault(oid, set()).add(name)
        for part in parts:
            for oid in set(map(oid_of, part.schema_ids)):
                self._names.setdefault(oid, set()).add(str(part.table))

    def is_other(self, table: TableName, oid: int) -> bool:
        """Return whether a relation is known by the name of another table, or had this table's name
        before."""
        name = str(table)
        return bool(self._names.get(oid, set()) - {name}) or oid in self._former.get(name, ())


def recreated_at(
    table: TableName, location: str, first: Mapping[int, tuple[int, int]], oid_of: Callable[[int], int], newest: int
) -> tuple[int, int]:
    """Return the position of the first record of the newest relation with this name. `first`:
    first_positions; `newest`: oid of the relation.

    Raises MirrorError if a record of another relation comes after that record: then names were
    swapped.
    """
    found = min(first[schema_id] for schema_id in first if oid_of(schema_id) == newest)
    if any(first[schema_id] > found for schema_id in first if oid_of(schema_id) != newest):
        raise recreated_error(table, location)
    return found


def beginning_of_relation(
    part: TablePart,
    location: str,
    own: pa.Table | DataFrame,
    oid_of: Callable[[int], int],
    known: int | None,
    is_other: Callable[[int], bool],
    is_emptied: Callable[[], bool],
) -> tuple[int, int] | None:
    """Return the position of the first record of a new relation with the table's name, if the rows
    of the former relation were not removed by an event; otherwise None.

    `known`: oid of the former relation; `is_other`: RelationNames.is_other for the table;
    `is_emptied`: returns whether the former rows are gone. Raises MirrorError if the new relation
    is another table's, or had this name before, if another relation had the name in between, or if
    names were swapped.
    """
    oids = {oid_of(schema_id) for schema_id in part.schema_ids}
    if len(oids if known is None else oids | {known}) == 1:
        return None
    ids_after = part.schema_ids if part.last_truncate is None else schema_ids_after(own, part.last_truncate)
    if len({oid_of(schema_id) for schema_id in ids_after}) == 1 and (part.last_truncate or is_emptied()):
        return None
    newest = oid_of(part.newest)
    if is_other(newest) or newest == known:
        raise recreated_error(part.table, location, may_copy=len(oids) == 1)
    return recreated_at(part.table, location, first_positions(own), oid_of, newest)


def keep_copy(spark: SparkSession, location: str, kept: str, applied: int) -> None:
    """Copy a table as of the last transaction applied to it, once for this transaction: a failed
    attempt may have altered the table since."""
    rows = TABLE_FORMAT.rows(spark, location)
    properties = TABLE_FORMAT.properties(rows.columns)
    TABLE_FORMAT.write_once(rows, kept, "overwrite", applied, overwrite_schema=True, properties=properties)


def recreated_error(table: TableName, location: str, *, may_empty: bool = False, may_copy: bool = True) -> MirrorError:
    """Return the error for a recreated table. `may_empty`: its former rows may be removed;
    `may_copy`: a copy helps, since no transaction has changes of both relations."""
    return MirrorError(
        f"{table} was dropped and recreated, or another table was renamed to this name: PostgreSQL "
        f"does not report which of the rows in {location} belong to it",
        hint=(COPY if may_copy else _EXCLUDE)
        + " If the table was dropped and recreated, you can also restart the mirror with --on-recreated=empty: "
        "the old table's rows are then removed from the copy." * may_empty,
    )


def keys_of(shapes: Mapping[int, TableSchema]) -> Callable[[int], tuple[Hashable, ...]]:
    """Return a function that maps a schema id to the key of that version of a table. The key
    consists of attnums if they are known for all versions, because columns may be renamed;
    otherwise of names."""
    known = shapes.values()
    if len({shape.oid for shape in known}) == 1 and all(shape.key_numbers or not shape.key for shape in known):
        return lambda schema_id: shapes[schema_id].key_numbers
    return lambda schema_id: shapes[schema_id].key


def change_of_key(
    table: TableName,
    own: pa.Table | DataFrame,
    first: Mapping[int, tuple[int, int]],
    key_of: Callable[[int], tuple[Hashable, ...]],
    oid_of: Callable[[int], int],
) -> int | None:
    """Return the commit LSN of the first transaction in which a table has another key than in its
    first record, or None. `own`: the table's records; `first`: their first_positions.

    If that is the transaction of the first record, only its last relation counts, whose rows
    replace those of others, and only what follows its last TRUNCATE, provided that the table has a
    key then. Raises MirrorError if there is another key in it.
    """
    oldest = min(first, key=lambda schema_id: first[schema_id])
    others = [first[schema_id][0] for schema_id in first if key_of(schema_id) != key_of(oldest)]
    if not others:
        return None
    begin_lsn = first[oldest][0]
    if min(others) > begin_lsn:
        return min(others)
    within, later = split_at_lsn(own, begin_lsn + 1)
    part = part_of(within, table)
    key, schema_ids = key_of(part.newest), part.schema_ids
    if key and part.last_truncate is not None:
        schema_ids = schema_ids_after(within, part.last_truncate)
    if any(key_of(schema_id) != key for schema_id in schema_ids if oid_of(schema_id) == oid_of(part.newest)):
        raise MirrorError(
            f"{table} has changes before and after a change of its replica identity within one transaction, "
            f"at {format_lsn(min(others))}: the mirror applies a transaction as a whole, under one key",
            hint="Continue without the table: restart the mirror with --exclude and the table's name.",
        )
    return min((at[0] for schema_id, at in first_positions(later).items() if key_of(schema_id) != key), default=None)


def change_of_relation(
    part: TablePart,
    first: Mapping[int, tuple[int, int]],
    shapes: Mapping[int, TableSchema],
    known: int | None,
    is_other: Callable[[int], bool],
    *,
    keeps_former: bool,
) -> int | None:
    """Return the commit LSN of the first transaction, after that of the first record, in which
    another relation than that record's has the table's name, or None. Return None, too, if the rows
    of the former relation are simply removed: without `keeps_former`, unless the mirror may refuse
    the new relation (see `beginning_of_relation`).

    The changes before that LSN are merged first. So the copy of the table that the error asks for
    concerns the new relation only. The mirror's own copy of the former rows is complete, unless the
    first transaction has records of both relations; prepare_table.py reports that. `first`:
    first_positions; `shapes`: versions of the table, by schema id; `known`, `is_other`: as for
    `beginning_of_relation`.
    """
    order = [shapes[schema_id].oid for schema_id in sorted(first, key=lambda schema_id: first[schema_id])]
    named = [oid for oid in (known, *order, shapes[part.newest].oid) if oid is not None]
    turns = [oid for place, oid in enumerate(named) if place == 0 or oid != named[place - 1]]
    if not keeps_former and len(turns) == len(set(turns)) and not any(map(is_other, turns[1:])):
        return None
    begin_lsn = min(first.values())[0]
    later = [at[0] for schema_id, at in first.items() if at[0] > begin_lsn and shapes[schema_id].oid != order[0]]
    return min(later, default=None)


def columns_of(shape: TableSchema) -> StructType:
    """Return the columns of the table of a relation: of rows, or of a log if it has no key."""
    return table_schema(shape) if shape.key else log_table_schema(shape)


def convert(spark: SparkSession, location: str, table: TableName, shape: TableSchema, applied: int) -> None:
    """Convert a log to rows, or rows to a log, if `shape` requires it. This makes one commit.
    Raises MirrorError."""
    frame = TABLE_FORMAT.rows(spark, location)
    made = converted(frame, table, location, shape, applied)
    if made is frame:
        return
    TABLE_FORMAT.rewrite(made, location)


def converted(frame: DataFrame, table: TableName, location: str, shape: TableSchema, applied: int) -> DataFrame:
    """Return the rows of a table as `convert` would write them, or `frame` itself. Raises
    MirrorError."""
    if is_log(frame.columns) == (not shape.key):
        return frame
    return added_up(frame, table, location) if shape.key else as_log(frame, applied)


def as_log(rows: DataFrame, applied: int) -> DataFrame:
    """Return rows as the first entries of a log: READ, at the commit LSN of the last transaction
    applied to the table."""
    values = (f.lit("READ"), f.lit(applied).cast("long"), f.lit(None).cast("timestamp"), f.lit(-1).cast("long"))
    return rows.withColumns(dict(zip(LOG_COLUMNS, values, strict=True)))


def _place() -> Column:
    return f.struct("_commit_lsn", "_ordinal")


def after_truncate(log: DataFrame) -> DataFrame:
    """Return the rows of a log after its last TRUNCATE."""
    cut = log.where(f.col("_op") == "TRUNCATE").agg(f.max(_place()).alias("place")).head()
    if cut is None or cut["place"] is None:
        return log
    last_lsn, last_ordinal = cut["place"]
    return log.where(_place() > f.struct(f.lit(last_lsn).cast("long"), f.lit(last_ordinal).cast("long")))


def weight() -> Column:
    """Return the number of rows that an entry of a log adds: 1 or -1."""
    return f.when(f.col("_op").isin(*OUT), -1).otherwise(1)


def added_up(log: DataFrame, table: TableName, location: str) -> DataFrame:
    """Return the rows that a log adds up to. Raises MirrorError if old rows are missing in the log,
    or a row occurs twice."""
    log, place = after_truncate(log), _place()
    special = next(field.name for field in log.schema if isinstance(field.dataType, MapType))
    names = [name for name in log.columns if name not in (*LOG_COLUMNS, special)]
    texts = f.when(f.size(quoted(special)) > 0, f.col(quoted(special)))
    row = f.struct(*(f.col(quoted(name)) for name in names), texts.alias(special))
    equal = [f.col(quoted(name)).alias(f"column {number}") for number, name in enumerate(names)]
    held = (
        log.groupBy(*equal, f.array_sort(f.map_entries(texts)).alias("texts"))
        .agg(f.sum(weight()).alias("held"), f.max_by(row, f.when(weight() == 1, place)).alias("row"))
        .where("held != 0")
    )
    odd = held.where("held != 1").limit(1).count()
    words = {found["_op"]: found["count"] for found in log.groupBy("_op").count().collect()}
    if odd or words.get("UPDATE", 0) != words.get("UPDATE_BEFORE", 0):
        raise MirrorError(
            f"{table} now has a key, but its current rows cannot be computed from its append-only table at "
            f"{location} (every change was appended, since the table had no key): "
            "not all of its old rows were sent, or a column was added or changed without an event",
            hint=COPY,
        )
    return held.select("row.*")


def check_key(frame: DataFrame, location: str, table: TableName, shape: TableSchema) -> None:
    """Raise MirrorError if the rows of a table whose key is new have a null or duplicate key."""
    special = f.col(quoted(shape.special_column))
    parts, missing = [], f.lit(False)
    for name in shape.key:
        column = f.col(quoted(name))
        text = special[name] if name in shape.uncertain_key else f.lit(None).cast("string")
        parts += [column, text]
        missing = missing | (column.isNull() & text.isNull())
    named = [part.alias(f"part {number}") for number, part in enumerate(parts)]
    groups = frame.groupBy(missing.alias("missing"), *named).count()
    if groups.where("missing or count > 1").limit(1).count():
        raise MirrorError(
            f"{table} now has the key {_listed(shape.key)}, but {location} has rows with a null or duplicate key: "
            "PostgreSQL does not report the values that ALTER TABLE fills in or rewrites, or the columns that it renames",
            hint=COPY,
        )


def check_log_names(table: TableName, shape: TableSchema) -> None:
    """Raise MirrorError if columns of the source have the names of a log's own columns, or of those
    that Delta adds in a merge."""
    own = [name for name in LOG_COLUMNS if name in shape.columns]
    if own and (not shape.key or is_log(own)):
        raise MirrorError(
            f"{table} has the columns {_listed(own)}, which the mirror reserves for its append-only tables "
            "(copies of tables without a key, to which every change is appended)",
            hint="Rename them in the source, or leave the table out with --exclude.",
        )
    merging = [name for name in shape.columns if name.lower() in _COLUMNS_OF_MERGE]
    if merging and shape.key:
        raise MirrorError(
            f"{table} has the columns {_listed(merging)}: Delta adds columns of these names when it merges changes",
            hint="Rename them in the source, or leave the table out with --exclude.",
        )


def check_names(table: TableName, columns: Iterable[str]) -> None:
    """Raise MirrorError if two names differ only in case, since Delta does not distinguish them."""
    found = alike(columns)
    if found is not None:
        raise MirrorError(
            f"{table} has the columns {_listed(found)}: Delta does not distinguish names that differ only in case",
            hint="Rename one in the source, or leave the table out with --exclude.",
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
