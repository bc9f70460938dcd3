"""Measures what a day of batches leaves behind in a mirror, compared with an hour: `python -m
bench.spark_day`.

The day is scaled: an hour takes --hour-s seconds of real time, and every interval of the upkeep (an
hour between two removals, the grace period for readers, the retention of 24 hours) is scaled alike.
An hour has 3,600 / --share batches and 60 / --share merges. The batches are commits of one small
file each, written into the log of `changes` as Delta writes them, but without Spark; those at which
Delta writes a checkpoint are Delta's own. A merge appends a file to a table, records the version,
and runs the mirror's own upkeep. Prints a line of JSON after each hour: files, log entries, and the
seconds that versions.read and a count of the table took (median of 5); finally the whole day by the
hour.

Files that VACUUM must keep for an hour are kept for a scaled hour, by a property of each table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable

from bench.cost import file_sizes
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.arrow import to_frame
from spark_consumer.jobs.session import local_session
from spark_consumer.mirror import changes, maintenance, table_format, version_manifest, versions
from spark_consumer.mirror.delta import cleanup, delta_table
from spark_consumer.mirror.delta.delta_write import _CHECKPOINT_INTERVAL, write_once
from spark_consumer.mirror.delta.session_settings import COMPACT, session_defaults
from spark_consumer.mirror.paths import changes_path, table_path
from spark_consumer.mirror.slice_contents import BatchSize
from spark_consumer.mirror.spark_settings import settings, tune
from spark_consumer.source.frames import RAW
from spark_consumer.tables import TableName

HOURS, BATCHES, MERGES = 24, 3600, 60
CHECKPOINT_EVERY = int(_CHECKPOINT_INTERVAL)
_OF_DELTA_ALONE = {"txnId", "inCommitTimestampOpt", "allFiles", "fileSizeHistogram", "histogramOpt",
                   "deletedRecordCountsHistogramOpt"}  # fmt: skip
ITEMS = TableName("public", "items")


class Batches:
    """Commits of one change each, as changes.append creates them."""

    def __init__(self, spark: Any, path: str) -> None:
        self._spark, self._path = spark, path
        self._location = Path(changes_path(path))
        self._log = self._location / "_delta_log"
        self._schema = pa.schema([RAW.field(name) for name in changes.COLUMNS])
        self.lsn = 0

    def append(self, count: int) -> None:
        version = max(int(entry.stem) for entry in self._log.glob("*.json"))
        checksum = self._checksum(version)
        for number in range(version + 1, version + 1 + count):
            self.lsn += 1
            row = {"table": str(ITEMS), "op": "INSERT", "commit_lsn": self.lsn, "commit_time": datetime.now(UTC), "ordinal": 0,
                   "schema_id": 1, "value": b"a change of a few bytes" * 5}  # fmt: skip
            table = pa.Table.from_pylist([row], self._schema)
            if number % CHECKPOINT_EVERY == 0:
                with settings(self._spark, {COMPACT: "false"}):
                    changes.append(to_frame(self._spark, table), self._path, BatchSize(1, 0, 1, self.lsn, self.lsn))
                checksum = self._checksum(number)
            else:
                self._commit(table, row, number, checksum)

    def _commit(self, table: pa.Table, row: dict[str, Any], number: int, checksum: dict[str, Any]) -> None:
        name, now = f"part-00000-{uuid4()}-c000.snappy.parquet", round(time.time() * 1000)
        pq.write_table(table, self._location / name)
        bound = {"table": row["table"], "commit_lsn": self.lsn,
                 "commit_time": row["commit_time"].isoformat(timespec="milliseconds")}  # fmt: skip
        stats = {"numRecords": 1, "minValues": bound, "maxValues": bound, "nullCount": dict.fromkeys(bound, 0)}
        size = (self._location / name).stat().st_size
        mark = {"appId": table_format.APPLICATION, "version": self.lsn, "lastUpdated": now}
        actions: list[dict[str, Any]] = [
            {"commitInfo": {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}},
            {"txn": mark},
            {"add": {"path": name, "partitionValues": {}, "size": size, "modificationTime": now, "dataChange": True,
                     "stats": json.dumps(stats)}},
        ]  # fmt: skip
        checksum["tableSizeBytes"] += size
        checksum["numFiles"] += 1
        checksum["setTransactions"] = [mark]
        (self._log / f"{number:020}.crc").write_text(json.dumps(checksum))
        (self._log / f"{number:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))

    def _checksum(self, version: int) -> dict[str, Any]:
        """Return the checksum of a version written by Delta or `_commit`, without the fields that a
        commit by hand leaves out."""
        found = json.loads((self._log / f"{version:020}.crc").read_text())
        return {name: value for name, value in found.items() if name not in _OF_DELTA_ALONE}


def scale_upkeep(hour_s: float) -> None:
    """Scale every interval of the upkeep. VACUUM itself accepts only whole hours; seconds only by a
    property of the table."""
    maintenance._EVERY_S = cleanup.GRACE_S = hour_s
    cleanup.LOG_GRACE_S = hour_s / 4

    def vacuum(spark: Any, location: str, age: timedelta) -> None:
        wanted = round(age.total_seconds() + hour_s)
        if delta_table.own_retention_s(spark, location) != wanted:
            properties = f"'delta.deletedFileRetentionDuration' = 'interval {wanted} seconds'"
            spark.sql(f"ALTER TABLE {delta_table.sql_table(location)} SET TBLPROPERTIES ({properties})")
        DeltaTable.forPath(spark, location).vacuum()

    cleanup._vacuum = vacuum


def merge(spark: Any, keeper: maintenance.Maintenance, path: str, lsn: int) -> None:
    location = table_path(path, ITEMS)
    properties = {} if delta_table.exists(spark, location) else delta_table.properties(["id"], deletion_vectors=True)
    rows = to_frame(spark, pa.table({"id": pa.array([lsn], pa.int64())}))
    with settings(spark, {COMPACT: "false"}):
        write_once(rows, location, "append", lsn, properties=properties)
    tables = {str(ITEMS): delta_table.version(spark, location)}
    keeper.note_version(location, tables[str(ITEMS)] - 1, tables[str(ITEMS)])
    version_manifest.record(
        spark, path, replace(version_manifest.RecordedVersion.before_all(), commit_lsn=lsn, tables=tables)
    )


def measure(spark: Any, path: str) -> dict[str, float]:
    names = [file.relative_to(path) for file in file_sizes(Path(path))]
    in_log = sum("_delta_log" in name.parts for name in names)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        version = versions.read(spark, path)
        rows = version[str(ITEMS)].count()
        took.append(time.perf_counter() - began)
        assert rows, "an empty version"
    return {"files": len(names) - in_log, "log_entries": in_log, "read_s": round(median(took), 2)}


def run(hour_s: float, share: int) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
    tune(spark, session_defaults(compacts=True))
    scale_upkeep(hour_s)
    with tempfile.TemporaryDirectory(prefix="walgate-bench-") as path:
        changes.create(spark, path)
        batches, keeper = Batches(spark, path), maintenance.Maintenance(path, HOURS * hour_s)
        figures: list[dict[str, float]] = []
        began = time.monotonic()
        for hour in range(1, HOURS + 1):
            for number in range(MERGES // share):
                batches.append(BATCHES // MERGES)
                merge(spark, keeper, path, batches.lsn)
                if problems := keeper.run_if_due(spark, [str(ITEMS)], compacts=True):
                    raise SystemExit("; ".join(problems))
                due = began + (hour - 1 + (number + 1) / (MERGES // share)) * hour_s
                time.sleep(max(0.0, due - time.monotonic()))
            figures.append(measure(spark, path))
            late = round(time.monotonic() - began - hour * hour_s, 1)
            print(json.dumps({"hour": hour, **figures[-1], "behind_the_clock_s": late}), flush=True)
        ratios = {name: round(value / figures[0][name], 2) for name, value in figures[-1].items()}
        print(json.dumps({"batches": batches.lsn, "day by hour": ratios}), flush=True)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hour-s", type=float, default=30.0)
    parser.add_argument("--share", type=int, default=4, help="divisor of 60")
    arguments = parser.parse_args()
    run(arguments.hour_s, arguments.share)
