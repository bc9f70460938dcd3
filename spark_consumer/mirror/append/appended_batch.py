"""Summary of a micro-batch to be appended. Nothing is decoded for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark_consumer.mirror.slice_contents import BatchSize, is_mark
from spark_consumer.reader.table_marks import SNAPSHOT_END


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A micro-batch that is not empty. `commit_time`: that of its last transaction; `ends`: number
    of its marks SNAPSHOT_END, of tables and of whole snapshots; `tables`: number of changes of each
    table; `first_lsns`: commit LSN of the first change of each table. In both, the tables with most
    changes come first. `versions`: pairs of a table and the id of a schema of its changes."""

    size: BatchSize
    transactions: int
    ends: int
    commit_time: datetime | None
    versions: list[tuple[str, int]]
    tables: Mapping[str, int]
    first_lsns: Mapping[str, int]

    @property
    def last_lsn(self) -> int:
        return self.size.last_lsn


def summary_of(rows: DataFrame) -> AppendedBatch | None:
    """Return the summary of the rows of a batch (changes.COLUMNS), or None if there are none."""
    counted = (
        rows.groupBy("table", "schema_id", "commit_lsn")
        .agg(
            f.count("*").alias("rows"),
            f.count_if(~is_mark()).alias("changes"),
            f.count_if(f.col("op") == SNAPSHOT_END).alias("ends"),
            f.sum(f.length("value")).alias("value_bytes"),
            f.max("commit_time").alias("commit_time"),
        )
        .toArrow()
    )
    if not len(counted):
        return None
    sums: dict[str, Any] = {name: pc.sum(counted[name]).as_py() for name in ("rows", "changes", "ends", "value_bytes")}
    lsns = pc.min_max(counted["commit_lsn"]).as_py()
    changed = counted.filter(pc.greater(counted["changes"], 0))
    tables = changed.group_by("table").aggregate([("changes", "sum"), ("commit_lsn", "min")])
    tables = tables.sort_by([("changes_sum", "descending")]).to_pylist()
    versions = changed.group_by(["table", "schema_id"]).aggregate([]).to_pylist()
    time: datetime | None = pc.max(counted["commit_time"]).as_py()
    return AppendedBatch(
        BatchSize(sums["changes"], sums["rows"] - sums["changes"], sums["value_bytes"] or 0, lsns["min"], lsns["max"]),
        pc.count_distinct(changed["commit_lsn"]).as_py(),
        sums["ends"],
        None if time is None else time.astimezone(UTC),
        [(row["table"], row["schema_id"]) for row in versions],
        {row["table"]: row["changes_sum"] for row in tables},
        {row["table"]: row["commit_lsn_min"] for row in tables},
    )
