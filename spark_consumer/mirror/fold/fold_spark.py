"""Fold of one table's keyed events into one last state for each key: a deletion, or a row and the
names of the columns that the events never sent.

In the order of (commit_lsn, ordinal), the last event of a key decides. A column that this event did
not send has the value of the last event that sent it. If the key was deleted meanwhile, the put
after that sent all columns, so no value from before a deletion is used. The one exception is a
change of key with columns that were not sent, whose values are under another key: see
fold_arrow.py.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.tables.table_schema import TableSchema

STATE = ("key", "deleted", "row", "unchanged", "special")


def position() -> Column:
    return f.struct("commit_lsn", "ordinal")


def last_states(events: DataFrame, unsent: set[str]) -> DataFrame:
    """Return the last states (columns STATE), one row for each key; `unchanged` then names the
    columns whose value is in the target. `unsent`: all names that occur in `unchanged` of these
    events."""
    names = sorted(unsent)
    state = f.struct(*STATE[1:])
    sent_values = [_last_sent(name, place) for place, name in enumerate(names)]
    folded = events.groupBy("key").agg(f.max_by(state, position()).alias("last"), *sent_values)
    if not names:
        return folded.select("key", "last.*")
    row, special, unchanged = f.col("last.row"), f.col("last.special"), f.col("last.unchanged")
    for place, name in enumerate(names):
        found = f.col(f"told{place}")
        fill = f.array_contains(f.col("last.unchanged"), name) & found.isNotNull()
        row = row.withField(quoted(name), f.when(fill, found["value"]).otherwise(f.col("last.row")[name]))
        entry = f.create_map(f.lit(name), found["special"])
        special = f.when(fill & found["special"].isNotNull(), f.map_concat(special, entry)).otherwise(special)
        unchanged = f.when(fill, f.array_remove(unchanged, name)).otherwise(unchanged)
    alive = ~f.col("last.deleted")
    return folded.select(
        "key",
        f.col("last.deleted").alias("deleted"),
        f.when(alive, row).alias("row"),
        unchanged.alias("unchanged"),
        special.alias("special"),
    )


def _last_sent(name: str, place: int) -> Column:
    """Return the value and special text of a column in the last event that sent it."""
    sent_values = f.struct(f.col("row")[name].alias("value"), f.col("special")[name].alias("special"))
    sent = ~f.col("deleted") & ~f.array_contains("unchanged", name)
    return f.max_by(f.when(sent, sent_values), f.when(sent, position())).alias(f"told{place}")


def moved_keys(events: DataFrame, shape: TableSchema) -> DataFrame:
    """Return every key that takes part in a change of key, once, in the column `key`."""
    moved = events.where(f.col("origin").isNotNull())
    return moved.select(f.explode(f.array("key", "origin")).alias("key")).distinct()
