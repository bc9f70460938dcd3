"""What a micro-batch holds: its tables, their schemas, where a TRUNCATE cuts. One job, which decodes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from spark_consumer.mirror.fold import position
from spark_consumer.tables import TableName


@dataclass(frozen=True, slots=True)
class TablePart:
    """One table. `newest`: schema id of its last record; `cut`: (commit_lsn, ordinal) of its last TRUNCATE."""

    table: TableName
    changes: int
    schema_ids: list[int]
    newest: int
    cut: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class BatchContent:
    """`commit_lsn`, `commit_time`: of the last transaction. `parts`: largest first."""

    commit_lsn: int
    commit_time: datetime | None
    transactions: int
    changes: int
    value_bytes: int
    parts: list[TablePart]


def batch_content(raw: DataFrame) -> BatchContent | None:
    """Of frames.RAW; None: nothing."""
    truncate = f.when(f.col("op") == "TRUNCATE", position())
    found = (
        raw.rollup("table")
        .agg(
            f.count("*").alias("changes"),
            f.collect_set("schema_id").alias("schema_ids"),
            f.max_by("schema_id", position()).alias("newest"),
            f.max(truncate).alias("cut"),
            f.max("commit_lsn").alias("commit_lsn"),
            f.max("commit_time").alias("commit_time"),
            f.count_distinct("commit_lsn").alias("transactions"),
            f.sum(f.length("value")).alias("value_bytes"),
        )
        .collect()
    )
    total = next((row for row in found if row["table"] is None), None)
    if total is None or not total["changes"]:
        return None
    parts = sorted((_part(row) for row in found if row["table"] is not None), key=lambda part: -part.changes)
    return BatchContent(
        total["commit_lsn"], total["commit_time"], total["transactions"], total["changes"], total["value_bytes"], parts
    )


def _part(row: Row) -> TablePart:
    cut = row["cut"]
    return TablePart(
        TableName.parse(row["table"]),
        row["changes"],
        sorted(row["schema_ids"]),
        row["newest"],
        None if cut is None else (cut["commit_lsn"], cut["ordinal"]),
    )
