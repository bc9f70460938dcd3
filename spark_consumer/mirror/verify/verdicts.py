"""Results that `walgate verify` reads: one file for each table, about its last snapshot that has
ended, whatever the purpose (see schemas/verdict.py).

They are written before the version of the mirror is recorded: a slice that is applied again writes
the same results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from schemas.verdict import MOST_KEYS, Difference, TableVerdict, encode_lsn, encode_verdict, ended_path, reached_path
from schemas.verdict import verdict_path as path_of
from spark_consumer.jvm import write_text
from spark_consumer.mirror.paths import differences_path
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_states import VERIFY, SnapshotWindow

_COUNTS = {"CHANGED": "changed", "MISSING": "missing", "SURPLUS": "surplus"}


def write_verdicts(
    spark: SparkSession,
    path: str,
    ended: Mapping[str, SnapshotWindow],
    rows: Mapping[str, int],
    unknown: Collection[str],
    end_lsn: int,
) -> None:
    """Write the results of the table snapshots that ended at `end_lsn`. `rows` is the number of
    rows that each of them read; `unknown` are tables whose surplus rows are not known."""
    counts, keys = _differences(spark, path, ended)
    for name, window in ended.items():
        verdict = TableVerdict(
            name,
            window.purpose,
            window.snapshot_id,
            window.begin_lsn,
            end_lsn,
            rows[name],
            keys=tuple(keys.get(name, ())),
            surplus_unknown=name in unknown,
            **counts.get(name, {}),
        )
        write_text(spark, path_of(path, name), encode_verdict(verdict))


def write_ended(spark: SparkSession, path: str, end_lsn: int) -> None:
    """Record that a snapshot has ended as a whole: tables without a result are not in this
    mirror."""
    write_text(spark, ended_path(path), encode_lsn(end_lsn))


def write_reached(spark: SparkSession, path: str, commit_lsn: int) -> None:
    write_text(spark, reached_path(path), encode_lsn(commit_lsn))


def _differences(
    spark: SparkSession, path: str, ended: Mapping[str, SnapshotWindow]
) -> tuple[dict[str, dict[str, Any]], dict[str, list[Difference]]]:
    """Return, by table, the number of differences of each kind, and the first differences. A key
    that was read twice counts once."""
    begun = [(name, each.snapshot_id, each.begin_lsn) for name, each in ended.items() if each.purpose == VERIFY]
    if not begun or not TABLE_FORMAT.exists(spark, differences_path(path)):
        return {}, {}
    windows = spark.createDataFrame([*begun], "table string, snapshot_id string, begin_lsn long")
    found = TABLE_FORMAT.rows(spark, differences_path(path))
    own = found.join(f.broadcast(windows), ["table", "snapshot_id"]).where("commit_lsn > begin_lsn")
    # Rows without a key are counted one by one.
    rows = f.count_distinct("key") + f.count_if(f.col("key").isNull())
    counts: dict[str, dict[str, Any]] = {}
    for row in own.groupBy("table", "kind").agg(rows.alias("rows")).collect():
        counts.setdefault(row["table"], {})[_COUNTS[row["kind"]]] = row["rows"]
    keys: dict[str, list[Difference]] = {}
    chosen = own.select("table", "kind", "key", "columns").distinct().orderBy("table", "kind", "key")
    for row in chosen.limit(MOST_KEYS).collect() if counts else ():
        keys.setdefault(row["table"], []).append(Difference(row["kind"], row["key"], tuple(row["columns"])))
    return counts, keys
