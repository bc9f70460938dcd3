"""Turn changes into rows: flat columns, versions of a row, the last state of each key. These are
functions of DataFrames, for `transform`.

The functions take the typed frame of one table (`format("walgate")` with `table`, or `decode`) and
its key columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DateType, StringType, StructType, TimestampNTZType, TimestampType

from schemas.change_schema import BEFORE_PREFIX
from spark_consumer.errors import UnsupportedSchema
from spark_consumer.source.decode import typed
from spark_consumer.source.options import parse_options
from spark_consumer.source.table_columns import frame_and_schemas
from spark_consumer.tables import TableName

POSITION = ("commit_lsn", "ordinal")
_HEAD = ("op", "commit_lsn", "commit_time", "ordinal", "unchanged")
_WITHOUT_HEAD = "Use last_states or versions, or select the values from the struct `after`."
_WITHOUT_OLD = (
    "the key column {!r} is an array or not in old_key, and a change has no old row: the table needs REPLICA "
    "IDENTITY FULL"
)
_SPECIAL_IN_KEY = (
    "a value in a key column, such as infinity, has only a text, and the key would be null: use last_states or "
    "versions or, unless the value is text that is not UTF-8, a mirror"
)
_Part = Callable[[DataFrame, str], Column]


class KnownSchemas(dict[int, str]):
    """The schemas that a table had when `decode` was called, schema id -> JSON text."""

    def __missing__(self, schema_id: int) -> str:
        raise UnsupportedSchema(
            f"a record was written with schema {schema_id}, which the registry did not have for the table "
            "when decode was called",
            hint="The table was altered after that: call decode again.",
        )


def decode(raw: DataFrame, table: str, options: Mapping[str, str]) -> DataFrame:
    """Return the typed frame of one table from the raw frame of all tables. `options`: the options
    with which `raw` was read.

    Uses the schemas that the registry has for the table now; a record with a later schema raises
    UnsupportedSchema.
    """
    parsed = parse_options(options, streaming=None)
    name = TableName.parse(table)
    frame, schemas = frame_and_schemas(parsed, name)
    texts = KnownSchemas({schema_id: json.dumps(schema) for schema_id, schema in schemas.items()})
    records = raw.where((f.col("table") == str(name)) & f.col("schema_id").isNotNull())  # without markers
    return typed(records, frame, texts)


def flat(changes: DataFrame) -> DataFrame:
    """Return _op, _commit_lsn, _commit_time, _ordinal, _unchanged, then the columns of the new row.
    A DELETE has the columns of the old row that were sent for its replica identity. A column that
    was not sent with the new row has its value in the old row. If the old value was not sent
    either, the column is null, and `_unchanged` names it.

    Raises UnsupportedSchema if the table has a column with one of the first five names."""
    names = _struct(changes, "after").names
    _check_names(names, [f"_{name}" for name in _HEAD], _WITHOUT_HEAD)
    head = [f.col(name).alias(f"_{name}") for name in _HEAD]
    return _rows(changes).select(*head, *_of_row(names))


def _rows(changes: DataFrame, *more: Column) -> DataFrame:
    """Return the columns _HEAD, `more` and the struct `row`, so that no column of the table can be
    taken for one of the others."""
    row = f.struct(*(_value(changes, name).alias(name) for name in _struct(changes, "after").names))
    return changes.select(*_HEAD[:-1], _unsent(changes).alias("unchanged"), *more, row.alias("row"))


def _rows_by_key(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return `_rows` of `_without_moves`, with the column `key`."""
    rows = _without_moves(changes, key)
    return _rows(rows, _key(rows, key, _value, _text).alias("key"))


def _of_row(names: Sequence[str]) -> list[Column]:
    return [f.col("row")[name].alias(name) for name in names]


def _check_names(names: Sequence[str], added: Sequence[str], hint: str) -> None:
    """Raise UnsupportedSchema if a column of the table has one of the names of `added`, for
    Spark."""
    for name in names:
        if name.lower() in added:
            raise UnsupportedSchema(f"the table has a column {name!r}, and the result has another one", hint=hint)


def _unsent(changes: DataFrame) -> Column:
    """Return the names of the columns whose value was sent neither with the new row nor with the
    old row."""
    in_key = f.array(*(f.when(f.col("old_key")[name].isNotNull(), f.lit(name)) for name in _key_columns(changes)))
    unsent = f.array_except("unchanged", in_key.cast("array<string>"))
    is_whole = (f.col("op") == "DELETE") | f.col("before").isNotNull()
    return f.when(is_whole, f.array().cast("array<string>")).otherwise(unsent)


def _value(changes: DataFrame, name: str) -> Column:
    return f.when(f.col("op") == "DELETE", _old_value(changes, name)).otherwise(_new_value(changes, name))


def _old_value(changes: DataFrame, name: str) -> Column:
    """Return the column's value in the old row: from `before`, which REPLICA IDENTITY FULL sends,
    or from `old_key`."""
    before = f.col("before")[name]
    return f.coalesce(before, _key_value(changes, name)) if name in _key_columns(changes) else before


def _key_columns(changes: DataFrame) -> list[str]:
    """Return the columns of `old_key` whose values can be converted to those of a row. Arrays
    cannot, since `old_key` has them as PostgreSQL's text."""
    row = _struct(changes, "after")
    return [name for name in _struct(changes, "old_key").names if not isinstance(row[name].dataType, ArrayType)]


def _struct(changes: DataFrame, name: str) -> StructType:
    kind = changes.schema[name].dataType
    assert isinstance(kind, StructType)
    return kind


def _key_value(changes: DataFrame, name: str) -> Column:
    """Return the column's value in `old_key`, in which values of some types are PostgreSQL's text.
    A value that Spark's type cannot hold is null, as in a row: infinity, NaN, and dates before
    Christ or after the year 9999."""
    value, kind = f.col("old_key")[name], _struct(changes, "after")[name].dataType
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        text = value.cast("string")
        value = f.when(text.rlike(r"^\d{4}-") & ~text.endswith(" BC"), value)
    return value.try_cast(kind)


def _new_value(changes: DataFrame, name: str) -> Column:
    """Return the column's value in the new row. For a TOASTed value that was not sent, return the
    value in the old row."""
    return f.when(f.array_contains("unchanged", name), _old_value(changes, name)).otherwise(f.col("after")[name])


def _text(changes: DataFrame, name: str) -> Column:
    """Return PostgreSQL's text of the value that `_value` returns, if the value is null because
    Spark's type cannot hold it."""
    return f.when(f.col("op") == "DELETE", _old_text(changes, name)).otherwise(_new_text(changes, name))


def _old_text(changes: DataFrame, name: str) -> Column:
    text = f.col("special")[BEFORE_PREFIX + name]
    if name not in _key_columns(changes):
        return text
    return f.coalesce(text, f.when(_key_value(changes, name).isNull(), f.col("old_key")[name].cast("string")))


def _new_text(changes: DataFrame, name: str) -> Column:
    text = f.col("special")[name]
    return f.when(f.array_contains("unchanged", name), _old_text(changes, name)).otherwise(text)


def _key(changes: DataFrame, names: Sequence[str], value: _Part, text: _Part) -> Column:
    """Return a key with all that distinguishes it: `value`, a struct of its columns, and `special`,
    the texts of the values that Spark's types cannot hold. A column of strings has them in the
    place of the value, as `old_key` does."""
    values, texts = ({name: part(changes, name) for name in names} for part in (value, text))
    strings = [name for name in names if isinstance(_struct(changes, "after")[name].dataType, StringType)]
    values |= {name: f.coalesce(values[name], texts.pop(name)) for name in strings}
    columns = (values[name].alias(name) for name in names)
    return f.struct(f.struct(*columns).alias("value"), f.array(*texts.values()).cast("array<string>").alias("special"))


def keyed(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows as `flat` does, without TRUNCATEs. A change of key gives two rows: one with the
    `_op` DELETE under the old key, and one with UPDATE under the new key.

    A key with an array or with columns that are not in `old_key` needs REPLICA IDENTITY FULL:
    otherwise, a DELETE and a change of key have no `before`, and end the query. So does a value in
    the key that Spark's type cannot hold: rows with different values would have the same key."""
    rows = _without_moves(changes, key)
    is_special = reduce(or_, (_text(rows, name).isNotNull() for name in key))
    return flat(rows.where(f.when(is_special, f.raise_error(_SPECIAL_IN_KEY)).otherwise(f.lit(True))))


def _without_moves(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the changes without TRUNCATEs, and a DELETE before each UPDATE that changes the
    key."""
    rows = changes.where(f.col("op") != "TRUNCATE")
    # PostgreSQL also sends an old key that has not changed, under REPLICA IDENTITY FULL or if a
    # part of the key is TOASTed.
    old = _key(changes, key, _old_value, _old_text)
    new = _key(changes, key, _new_value, _new_text)
    # If `old_key` does not have all of the key, any UPDATE may have changed the key.
    is_sent = set(key) <= set(_struct(changes, "old_key").names)
    has_key = reduce(and_, (f.col("old_key")[name].isNotNull() for name in key)) if is_sent else f.col("op") == "UPDATE"
    has_old = f.col("before").isNotNull() | has_key
    moved = (f.col("op") == "UPDATE") & has_old & ~old.eqNullSafe(new)
    words = f.when(moved, f.array(f.lit("DELETE"), f.col("op"))).otherwise(f.array("op"))
    only_before = [name for name in key if name not in _key_columns(changes)]
    if only_before:
        unknown = f.col("before").isNull() & ((f.col("op") == "DELETE") | has_key)
        words = f.when(unknown, f.raise_error(_WITHOUT_OLD.format(only_before[0]))).otherwise(words)
    return rows.withColumn("op", f.explode(words))


def feed(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows for AUTO CDC and other MERGEs. They are those of `keyed`, with the column
    `_sequence`, a string that rises with every change of a row. A column that was not sent is null;
    with REPLICA IDENTITY FULL, all columns are sent."""
    _check_names(_struct(changes, "after").names, ["_sequence"], _WITHOUT_HEAD)
    sequence = f.format_string("%016X/%016X", "_commit_lsn", "_ordinal")
    return keyed(changes, key).withColumn("_sequence", sequence)


def last_states(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows that result from applying the changes to an empty table: key columns, then
    the others. Deleted keys are left out.

    A TRUNCATE ends all earlier rows. A column that was not sent with any of the changes is null. So
    is a TOASTed column that was not sent with a change of key, until a later change sends it: its
    value was sent under the old key.

    A value that Spark's type cannot hold, such as infinity, is null. In a key, rows with different
    values of this kind remain different rows, and a column of strings has PostgreSQL's text.
    """
    cut = changes.where(f.col("op") == "TRUNCATE").agg(f.max(f.struct(*POSITION)).alias("cut"))
    rows = _rows_by_key(changes, key).crossJoin(f.broadcast(cut))
    position = f.struct(*POSITION)
    rows = rows.where(f.col("cut").isNull() | (position > f.col("cut")))
    others = [name for name in _struct(changes, "after").names if name not in key]
    told = [f.max_by(_sent(name), f.when(_sent(name).isNotNull(), position)).alias(name) for name in others]
    folded = rows.groupBy("key").agg(f.max_by("op", position).alias("op"), f.struct(*told).alias("told"))
    values = [f.col("told")[name]["value"].alias(name) for name in others]
    return folded.where(f.col("op") != "DELETE").select("key.value.*", *values)


def _sent(name: str) -> Column:
    """Return the value in a struct, which distinguishes a null that was sent from a column that was
    not sent."""
    return f.when(~f.array_contains("unchanged", name), f.struct(f.col("row")[name].alias("value")))


def versions(changes: DataFrame, key: Sequence[str], bounds: tuple[str, str] = ("valid_from", "valid_to")) -> DataFrame:
    """Return a slowly changing dimension, type 2: every version of every row, with `valid_from` and
    `valid_to` (null: the current version).

    A change of key ends the last version under the old key, and begins the first version under the
    new key. A TOASTed column that was not sent with it is null under the new key until a later
    change sends it.

    `bounds`: other names for `valid_from` and `valid_to`. Raises UnsupportedSchema if the table has
    a column of such a name.
    """
    names = _struct(changes, "after").names
    hint = "Give other names: versions(changes, key, bounds=('version_from', 'version_to'))."
    _check_names(names, [name.lower() for name in bounds], hint)
    moment = f.struct("commit_lsn", "ordinal", "commit_time")
    cuts = changes.where(f.col("op") == "TRUNCATE").agg(f.collect_list(moment).alias("cuts"))
    rows = _rows_by_key(changes, key).crossJoin(f.broadcast(cuts))
    order = Window.partitionBy("key").orderBy(*POSITION)
    others = [name for name in names if name not in key]
    filled = [f.last(_sent(name), ignorenulls=True).over(order)["value"].alias(name) for name in others]
    cut = f.array_min(f.filter("cuts", lambda cut: cut > moment))
    ended = f.least(f.lead(moment).over(order), cut)["commit_time"]
    spans = f.struct(f.col("commit_time").alias(bounds[0]), ended.alias(bounds[1]))
    found = rows.select("op", f.struct("key.value.*", *filled).alias("version"), spans.alias("span"))
    return found.where(f.col("op") != "DELETE").select("version.*", "span.*")
