"""The columns of the frames, and the conversion of chunks of records to Arrow batches with exactly
these columns.

Spark accepts an Arrow batch only if its schema equals the frame's exactly, including nested
nullability, names of list elements, and time zones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.change_schema import BEFORE_PREFIX
from schemas.wire_format import FRAME_BYTES
from spark_consumer.columnar.arrays import numbers, repeated, strings
from spark_consumer.columnar.head import OPERATIONS, schema_ids
from spark_consumer.columnar.scalars import without_exponents
from spark_consumer.columnar.schema import RecordDecoder
from spark_consumer.errors import MalformedRecord, UnsupportedSchema
from spark_consumer.reader.column_names import true_name, true_names
from spark_consumer.reader.markers import CommittedTransaction
from spark_consumer.reader.registry import Schema
from spark_consumer.reader.table_marks import TableMark
from spark_consumer.reader.topics import LOST_SCHEMAS
from spark_consumer.source.reading import Chunk
from spark_consumer.tables import TableName

INSTANT = pa.timestamp("us", "UTC")

_POSITION = [
    ("op", pa.string()),
    ("commit_lsn", pa.int64()),
    ("commit_time", INSTANT),
    ("xid", pa.int64()),
    ("ordinal", pa.int64()),
    ("change_lsn", pa.int64()),
]
RAW = pa.schema(
    [
        ("table", pa.string()),
        *_POSITION,
        ("schema_id", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
    ]
)
STRINGS = pa.list_(pa.field("element", pa.string()))
TEXTS = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))

_WORDS = strings(OPERATIONS)


def raw_batch(chunk: Chunk, table: str | None) -> pa.RecordBatch:
    """Return a chunk in the raw form. `table` is None for records of the message topic, whose op is
    MESSAGE."""
    count = len(chunk)
    words = _operations(chunk) if table is not None else repeated("MESSAGE", count)
    columns = [
        repeated(table, count),
        words,
        *_position_columns(chunk),
        numbers(schema_ids(chunk.values).astype(np.int32)),
        repeated(chunk.read.topic, count),
        numbers(np.full(count, chunk.read.partition, np.int32)),
        numbers(chunk.offsets),
        chunk.values,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)


def marks_batch(marks: Sequence[TableMark], topic: str) -> pa.RecordBatch:
    """Return table marks as rows of the raw form. `op` is the kind of the mark, `value` its JSON,
    `offset` that of its marker, and `schema_id` is null."""
    rows = [
        {
            "table": None if mark.table is None else str(mark.table),
            "op": mark.kind,
            "commit_lsn": mark.commit_lsn,
            "commit_time": mark.commit_time_us,
            "xid": mark.xid,
            "ordinal": mark.ordinal,
            "change_lsn": mark.commit_lsn,
            "topic": topic,
            "partition": 0,
            "offset": mark.marker_offset,
            "value": json.dumps(mark.facts).encode(),
        }
        for mark in marks
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW)


def _operations(chunk: Chunk) -> pa.Array:
    return _WORDS.take(numbers(chunk.operation))


def _position_columns(chunk: Chunk) -> list[pa.Array]:
    """Return the columns from commit_lsn to change_lsn."""
    return [
        numbers(chunk.commit_lsn),
        numbers(chunk.commit_time_us, INSTANT),
        numbers(chunk.xid),
        numbers(chunk.ordinal),
        numbers(chunk.change_lsn),
    ]


@dataclass(frozen=True, slots=True)
class TableFrame:
    """The typed columns of one table, according to one version of its schema. Every record is
    projected to these columns, whatever version it was written with.

    `names`: Avro field -> PostgreSQL's name of the column, for the columns whose names differ.
    """

    schema: pa.Schema
    names: Mapping[str, str]

    @classmethod
    def of(cls, change: Schema, older: Sequence[Schema] = ()) -> TableFrame:
        """Return the frame for the value schema of a table. `older`: further schemas, newest first,
        whose columns the frame also has. Raises UnsupportedSchema."""
        decoder = RecordDecoder(change)
        missing = {"old_key", "before", "after", "unchanged", "special"} - decoder.fields.keys()
        if missing:
            raise UnsupportedSchema(
                f"{change.get('namespace')}.{change.get('name')} is not a change event: it has no {min(missing)}"
            )
        names = true_names(change)
        rows = {name: _renamed(decoder.fields[name].arrow_type, names) for name in ("old_key", "before", "after")}
        for frame in map(cls.of, older):
            rows = {name: _united(row, frame.schema.field(name).type) for name, row in rows.items()}
        return cls(pa.schema([*_POSITION, *rows.items(), ("unchanged", STRINGS), ("special", TEXTS)]), names)

    def batches(self, chunk: Chunk, schemas: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
        """Yield one batch for each schema id of the chunk. `schemas`: id -> JSON text."""
        ids = schema_ids(chunk.values)
        for schema_id in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == schema_id)
            place = f"{chunk.read.topic}[{chunk.read.partition}]"
            if schema_id not in schemas:
                raise MalformedRecord(
                    f"{place} offset {chunk.offsets[rows[0]]}: a record with schema {schema_id}, which the manifests in "
                    "the markers do not list for its table, or which the schema registry does not have for it",
                    hint=LOST_SCHEMAS,
                )
            whole = len(rows) == len(ids)
            values = chunk.values if whole else chunk.values.take(numbers(rows))
            head = [
                column if whole else column.take(numbers(rows))
                for column in (_operations(chunk), *_position_columns(chunk))
            ]
            try:
                yield pa.RecordBatch.from_arrays([*head, *self.decode(values, schemas[schema_id])], schema=self.schema)
            except MalformedRecord as problem:
                offset = chunk.offsets[rows[problem.record or 0]]
                raise MalformedRecord(f"{place} offset {offset}, schema {schema_id}: {problem}") from problem
            except UnsupportedSchema as problem:
                first = chunk.offsets[rows[0]]
                raise UnsupportedSchema(f"{place} from offset {first}, schema {schema_id}: {problem}") from problem

    def decode(
        self, values: pa.Array, schema_text: str, old_mark: str = BEFORE_PREFIX, *, drops_misfits: bool = False
    ) -> list[pa.Array]:
        """Return old_key, before, after, unchanged and special of framed records with the same
        schema. `old_mark`: prefix of the entries of unchanged and special that belong to the old
        row. `drops_misfits`: as for `project`, in before and after."""
        written = record_decoder(schema_text).decode(values, skip=FRAME_BYTES)
        names = _writer_names(schema_text)
        rows = [
            project(
                _with_names(written[name], names),
                self.schema.field(name).type,
                drops_misfits=drops_misfits and name != "old_key",
            )
            for name in ("old_key", "before", "after")
        ]
        unchanged, special = written["unchanged"], written["special"]
        if names or old_mark != BEFORE_PREFIX:
            fields = _true_names(unchanged.values, names, old_mark)
            unchanged = pa.ListArray.from_arrays(unchanged.offsets, fields, type=STRINGS)
            fields = _true_names(special.keys, names, old_mark)
            special = pa.MapArray.from_arrays(special.offsets, fields, special.items, type=TEXTS)
        return [*rows, unchanged, special]


@lru_cache(256)
def record_decoder(schema_text: str) -> RecordDecoder:
    """Return the decoder of a schema. Decoders are cached by the text of the schema, which tasks
    carry, since a schema id is unique only within one registry."""
    return RecordDecoder(json.loads(schema_text))


@lru_cache(256)
def _writer_names(schema_text: str) -> dict[str, str]:
    return true_names(json.loads(schema_text))


def _renamed(arrow_type: pa.DataType, names: Mapping[str, str]) -> pa.DataType:
    return pa.struct([field.with_name(names.get(field.name, field.name)) for field in arrow_type])


def _united(row: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of a row with the columns of both rows. Raises UnsupportedSchema if two names
    differ only in case."""
    names = {column.name: column.name.lower() for column in row}
    added = [column for column in other if column.name not in names]
    alike = next((column.name for column in added if column.name.lower() in names.values()), None)
    if alike is not None:
        raise UnsupportedSchema(f"column {alike!r} was renamed, and its new name differs only in case")
    return pa.struct([*row, *added])


def _with_names(array: pa.Array, names: Mapping[str, str]) -> pa.Array:
    if not names:
        return array
    return pa.Array.from_buffers(
        _renamed(array.type, names),
        len(array),
        array.buffers()[:1],
        null_count=array.null_count,
        children=[array.field(i) for i in range(array.type.num_fields)],
    )


def _true_names(fields: pa.Array, names: Mapping[str, str], old_mark: str) -> pa.Array:
    different = fields.dictionary_encode()
    found = [true_name(field, names, old_mark) for field in different.dictionary.to_pylist()]
    return strings(found).take(different.indices)


def project(array: pa.StructArray, target: pa.DataType, *, drops_misfits: bool = False) -> pa.Array:
    """Return rows of an older or newer version in the columns of `target`: missing columns are
    null, others dropped, values unchanged.

    A value that does not fit is null with `drops_misfits`; otherwise raises UnsupportedSchema.
    """
    if array.type.equals(target):
        return array
    written = {field.name: place for place, field in enumerate(array.type)}
    children = []
    for field in target:
        if field.name not in written:
            children.append(pa.nulls(len(array), field.type))
            continue
        child = array.field(written[field.name])
        if child.null_count == len(child):
            children.append(pa.nulls(len(array), field.type))
            continue
        convert = _carried_over_if_it_fits if drops_misfits else carried_over
        try:
            children.append(child if child.type.equals(field.type) else convert(child, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UnsupportedSchema(
                f"column {field.name!r} was written as {child.type} and does not fit into {field.type}",
                hint="The type of the column was changed, and the conversion would lose values. Restart the query, or omit "
                "the option `table` and read the stored records from the column `value`.",
            ) from None
    if not children:
        return pa.array([{}] * len(array), target)
    mask = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


# Pairs of kinds between which a value may be converted without loss. Float and decimal are not a
# pair: a value may be the same after conversion back, although float and decimal differ.
_TEXT_IS_ALIKE = ("integer", "decimal", "boolean", "date")  # the same text in Arrow and in PostgreSQL
_CARRIED_OVER = {
    frozenset(kinds)
    for kinds in [
        ("integer",), ("float",), ("decimal",), ("string",), ("integer", "float"), ("integer", "decimal"),
        ("date", "timestamp"), *((kind, "string") for kind in _TEXT_IS_ALIKE),
    ]
}  # fmt: skip


def carried_over(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values to another type. Raises ArrowInvalid unless each value is the same after
    conversion back, and ArrowNotImplementedError if no value can be converted."""
    cast, same = _there_and_back(values, target)
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid(f"a value would change between {values.type} and {target}")
    return cast


def _carried_over_if_it_fits(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values to another type, with null for each value that `carried_over` would refuse.
    Those that Arrow itself refuses are found by halving, since Arrow does not say which they
    are."""
    try:
        cast, same = _there_and_back(values, target)
        if pc.all(same, min_count=0).as_py():
            return cast
        if not pa.types.is_list(target):
            return pc.if_else(same, cast, None)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(values), target)
    except pa.ArrowInvalid:
        pass
    if len(values) == 1:
        return pa.nulls(1, target)
    places = np.arange(len(values))
    halves = places[: len(values) // 2], places[len(values) // 2 :]
    # Copies, not slices: of a slice of lists, Arrow casts the items of all lists.
    return pa.concat_arrays([_carried_over_if_it_fits(values.take(numbers(half)), target) for half in halves])


def _there_and_back(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Convert values to another type, and return with the result whether each value, or each item
    of the lists, is the same after conversion back. Raises ArrowInvalid and
    ArrowNotImplementedError.

    Arrow's own check is not sufficient: it allows fractions to be rounded, large floats to become
    infinite, and times of day to be cut off.
    """
    written = values.type
    nested = pa.types.is_list(written) and pa.types.is_list(target)
    inner = (written.value_type, target.value_type) if nested else (written, target)
    if frozenset(map(_kind, inner)) not in _CARRIED_OVER:
        raise pa.ArrowNotImplementedError(f"{written} cannot be converted to {target}")
    cast = _cast(values, target)
    back = _cast(cast, written)
    before, after = (values.flatten(), back.flatten()) if nested else (values, back)
    same = pc.equal(after, before)
    if pa.types.is_floating(inner[0]):
        same = pc.or_(same, pc.is_nan(before))
    return cast, same


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    nested = pa.types.is_list(target)
    source, inner = (values.type.value_type, target.value_type) if nested else (values.type, target)
    if pa.types.is_integer(source) and pa.types.is_decimal(inner):
        # Arrow checks types here, not values: it accepts only a decimal that holds every integer of
        # the type.
        wide = pa.decimal256(76, inner.scale)
        values = values.cast(pa.list_(wide) if nested else wide)
    cast = values.cast(target)
    if not (pa.types.is_decimal(source) and pa.types.is_string(inner)):
        return cast
    if not nested:
        return without_exponents(cast)
    buffers, items = cast.buffers()[:2], without_exponents(cast.values)
    return pa.Array.from_buffers(target, len(cast), buffers, cast.null_count, cast.offset, [items])


def _kind(arrow_type: pa.DataType) -> str:
    tests = {
        "integer": pa.types.is_integer, "float": pa.types.is_floating, "decimal": pa.types.is_decimal,
        "boolean": pa.types.is_boolean, "string": pa.types.is_string, "date": pa.types.is_date,
    }  # fmt: skip
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz is None:
        return "timestamp"
    return next((kind for kind, holds in tests.items() if holds(arrow_type)), str(arrow_type))


TRANSACTIONS = pa.schema(
    [
        ("commit_lsn", pa.int64()),
        ("commit_time", INSTANT),
        ("end_lsn", pa.int64()),
        ("xid", pa.int64()),
        ("epoch", pa.int64()),
        ("kind", pa.string()),
        ("gid", pa.string()),
        ("origin", pa.string()),
        ("event_count", pa.int64()),
        ("record_count", pa.int64()),
        ("tables", STRINGS),
        ("aborted_subxids", pa.list_(pa.field("element", pa.int64()))),
        ("marker_offset", pa.int64()),
    ]
)


def transactions_batch(
    transactions: list[CommittedTransaction], table_of: Mapping[str, TableName | None]
) -> pa.RecordBatch:
    """Return one row per transaction. `table_of`: topic -> table."""
    rows = [
        {
            "commit_lsn": transaction.commit_lsn,
            "commit_time": transaction.commit_time_us,
            "end_lsn": transaction.end_lsn,
            "xid": transaction.xid,
            "epoch": transaction.epoch,
            "kind": transaction.kind,
            "gid": transaction.gid,
            "origin": transaction.origin,
            "event_count": transaction.event_count,
            "record_count": sum(item.record_count for item in transaction.ranges),
            "tables": sorted(_tables(transaction, table_of)),
            "aborted_subxids": list(transaction.aborted_subxids),
            "marker_offset": transaction.marker_offset,
        }
        for transaction in transactions
    ]
    return pa.RecordBatch.from_pylist(rows, schema=TRANSACTIONS)


def _tables(transaction: CommittedTransaction, table_of: Mapping[str, TableName | None]) -> set[str]:
    tables = {table_of[topic] for topic in transaction.topics}
    return {str(table) for table in tables if table is not None}
