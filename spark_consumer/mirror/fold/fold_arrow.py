"""Fold of keyed events in this process. If every event sent all its columns, the last event of each
key is its state (`whole_states`). Otherwise the events are applied one by one, as PostgreSQL
applied the changes. This works with positions of events, not with values.

The result is the same that fold_spark.py computes for all keys at once in Spark. In addition, this
module handles a change of key with columns that were not sent: their values are under the old key,
in these events or in the target. Few changes are folded here as a whole, which saves Spark jobs. If
there are many changes, only those of keys that take part in such a change are folded here. The
values themselves are fetched by an Arrow `take`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumer.columnar.arrays import numbers
from spark_consumer.mirror.fold.fold_spark import STATE
from spark_consumer.mirror.tables.table_schema import TableSchema
from spark_consumer.source.frames import STRINGS, TEXTS

Key = tuple[Any, ...]

# One object for all NaNs: tuples that contain it are equal, as NaN equals NaN in PostgreSQL and
# Spark.
_NAN = float("nan")


@dataclass(slots=True)
class FoldResult:
    """The last state of a key. `last`: position of the event that decided it. Each column that this
    event did not send is in one of

    `sent_at`: position of the event that has the value;
    `kept`: the value is in the target's row with this key;
    `borrowed`: the value is in the target's row with another key.
    """

    last: int
    deleted: bool
    sent_at: dict[str, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    borrowed: dict[str, Key] = field(default_factory=dict)


def replay(
    keys: Sequence[Key],
    origins: Sequence[Key | None],
    deleted: Sequence[bool],
    unchanged: Sequence[Sequence[str]],
) -> dict[Key, FoldResult]:
    """Return the last state of every key, in the order in which keys first occur.

    Events come in the order of (commit_lsn, ordinal), a change of key before the removal of its old
    key. `origins`: the old key for a change of key, None for other events.
    """
    outcomes: dict[Key, FoldResult] = {}
    for place, key in enumerate(keys):
        made = FoldResult(place, deleted[place])
        if not made.deleted and unchanged[place]:
            _find_unsent(made, key, origins[place], unchanged[place], outcomes)
        outcomes[key] = made
    return outcomes


def _find_unsent(
    made: FoldResult, key: Key, origin: Key | None, names: Iterable[str], outcomes: dict[Key, FoldResult]
) -> None:
    source_key = key if origin is None else origin
    source = outcomes.get(source_key)
    for name in names:
        if source is None or name in source.kept:
            if source_key == key:
                made.kept.add(name)
            else:
                made.borrowed[name] = source_key
        elif name in source.sent_at:
            made.sent_at[name] = source.sent_at[name]
        elif name in source.borrowed:
            made.borrowed[name] = source.borrowed[name]
        elif not source.deleted:
            made.sent_at[name] = source.last


def replay_events(events: pa.Table) -> tuple[pa.Table, dict[Key, FoldResult]]:
    """Return the events (TableSchema.events) in order, and the last state of every key."""
    ordered = in_order(events)
    origins = key_tuples(ordered["origin"])
    moved = ordered["origin"].is_valid().to_pylist()
    outcomes = replay(
        key_tuples(ordered["key"]),
        [origin if is_moved else None for origin, is_moved in zip(origins, moved, strict=True)],
        ordered["deleted"].to_pylist(),
        ordered["unchanged"].to_pylist(),
    )
    return ordered, outcomes


def in_order(events: pa.Table) -> pa.Table:
    return events.sort_by([(name, "ascending") for name in ("commit_lsn", "ordinal", "deleted")]).combine_chunks()


def whole_states(events: pa.Table) -> pa.Table:
    """Return the last states (columns fold_spark.STATE) of events that sent all their columns: the
    last event of each key has every value."""
    ordered = in_order(events)
    columns = [_comparable(pc.struct_field(ordered["key"], [field_.name])) for field_ in ordered["key"].type]
    names = [f"key{number}" for number in range(len(columns))]
    keys = pa.table([*columns, numbers(np.arange(len(ordered)))], names=[*names, "place"])
    last = keys.group_by(names, use_threads=False).aggregate([("place", "max")])["place_max"]
    return ordered.select(list(STATE)).take(last)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with one form of zero and one of NaN: Arrow groups floats by their
    bits."""
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = (pa.scalar(value, column.type) for value in (0.0, _NAN))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def key_tuples(keys: pa.ChunkedArray) -> list[Key]:
    """Return keys as tuples. Dates and times are integers, since Python's types end at the year
    9999 and PostgreSQL's do not."""
    columns = []
    for field_ in keys.type:
        column = pc.struct_field(keys, [field_.name])
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if pa.types.is_floating(column.type):
            values = [_NAN if value != value else value for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


def borrowed_keys(outcomes: dict[Key, FoldResult]) -> set[Key]:
    """Return the keys whose rows in the target are needed under another key."""
    return {key for outcome in outcomes.values() for key in outcome.borrowed.values()}


def lost_columns(outcomes: dict[Key, FoldResult], held: pa.Table | None) -> set[str]:
    """Return the columns whose values are needed from a row that the target does not have: they are
    null under the new key. `held`: as for `states`."""
    there = set() if held is None else set(key_tuples(held["key"]))
    return {name for outcome in outcomes.values() for name, key in outcome.borrowed.items() if key not in there}


def states(ordered: pa.Table, outcomes: dict[Key, FoldResult], held: pa.Table | None, shape: TableSchema) -> pa.Table:
    """Return the last states (columns fold_spark.STATE), one row for each key. `held`: key, row and
    special of the target's rows with the keys in `borrowed_keys`."""
    last = [outcome.last for outcome in outcomes.values()]
    taken = ordered.take(pa.array(last, pa.int64()))
    places = {} if held is None else {key: place for place, key in enumerate(key_tuples(held["key"]))}
    row, special = _values(ordered, taken, list(outcomes.values()), held, places)
    kept = pa.array([sorted(outcome.kept) for outcome in outcomes.values()], STRINGS)
    columns = [taken["key"], taken["deleted"], row, kept, special]
    schema = shape.events
    return pa.table(columns, schema=pa.schema([schema.field(name) for name in STATE]))


def _values(
    ordered: pa.Table, taken: pa.Table, outcomes: list[FoldResult], held: pa.Table | None, places: dict[Key, int]
) -> tuple[pa.Array, pa.Array]:
    """Return rows and special texts in which the columns in `sent_at` and `borrowed` are filled
    in."""
    row = _one(taken["row"])
    if not any(outcome.sent_at or outcome.borrowed for outcome in outcomes):
        return row, _one(taken["special"])
    sources = [_one(ordered["row"])] + ([] if held is None else [_one(held["row"])])
    texts = _one(ordered["special"]).to_pylist() + ([] if held is None else _one(held["special"]).to_pylist())
    specials = [dict(entries) for entries in _one(taken["special"]).to_pylist()]
    columns = []
    for field_ in row.type:
        index: list[int | None] = []
        for number, outcome in enumerate(outcomes):
            place: int | None = outcome.sent_at.get(field_.name, outcome.last)
            if field_.name in outcome.borrowed:
                at = places.get(outcome.borrowed[field_.name])
                place = None if at is None else len(ordered) + at
            index.append(place)
            if place is not None and place != outcome.last and field_.name in (known := dict(texts[place] or ())):
                specials[number][field_.name] = known[field_.name]
        values = pa.concat_arrays([pc.struct_field(source, [field_.name]) for source in sources])
        columns.append(values.take(pa.array(index, pa.int64())))
    merged = pa.StructArray.from_arrays(columns, fields=list(row.type), mask=pc.is_null(row))
    return merged, pa.array([list(entries.items()) for entries in specials], TEXTS)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
