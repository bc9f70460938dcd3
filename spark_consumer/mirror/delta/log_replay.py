"""Reader for a mirror's Delta tables without Spark: replays the log to a version, and reads the
Parquet files with pyarrow.

It supports the tables that this package writes (classic checkpoints, column mapping by name,
deletion vectors, no partitions). It does not look for other features, except that it refuses a
table whose files lack the columns by which it is partitioned. Protocol:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_consumer.errors import MirrorError
from spark_consumer.mirror.delta.deletion_vectors import deleted_places, unique_id

_COMMIT = re.compile(r"(\d{20})\.json")
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")


@dataclass
class DeltaFiles:
    """A version of a table. `columns` maps each column's name to its name in the files; `schema`
    has its type.

    `files`: (path, id of the deletion vector) -> descriptor of that vector. `transactions`:
    application -> the version that it noted last.
    """

    folder: Path
    version: int = -1
    columns: dict[str, str] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    files: dict[tuple[str, str | None], dict[str, Any] | None] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    partitioned_by: list[str] = field(default_factory=list)

    def batches(self) -> Iterator[pa.Table]:
        """Yield one Arrow table for each file. A column that the file does not have is null, of
        type null."""
        for (path, _), vector in self.files.items():
            file = pq.ParquetFile(self.folder / unquote(path), coerce_int96_timestamp_unit="us")
            there = set(file.schema_arrow.names)
            if any(self.columns[name] not in there for name in self.partitioned_by):  # only in the log
                raise MirrorError(f"{self.folder} is partitioned", hint="Read it with Spark.")
            read = file.read(columns=[physical for physical in self.columns.values() if physical in there])
            columns = [
                read[physical] if physical in there else pa.nulls(len(read)) for physical in self.columns.values()
            ]
            rows = pa.table(columns, names=list(self.columns))
            if vector is not None:
                kept = np.ones(len(read), bool)
                kept[deleted_places(self.folder, vector)] = False
                rows = rows.take(np.flatnonzero(kept))
            yield rows

    def apply(self, action: dict[str, Any]) -> None:
        """Apply one action of the log. In a row of a checkpoint, which has a column for each kind
        of action, the columns of the other kinds are null."""
        if added := action.get("add"):
            vector = added.get("deletionVector")
            self.files[added["path"], unique_id(vector)] = vector
        if removed := action.get("remove"):
            self.files.pop((removed["path"], unique_id(removed.get("deletionVector"))), None)
        if transaction := action.get("txn"):
            self.transactions[transaction["appId"]] = transaction["version"]
        if metadata := action.get("metaData"):
            self.partitioned_by = metadata.get("partitionColumns") or []
            fields = json.loads(metadata["schemaString"])["fields"]
            physical = "delta.columnMapping.physicalName"
            self.columns = {item["name"]: item["metadata"].get(physical, item["name"]) for item in fields}
            self.schema = pa.schema([(item["name"], _arrow_type(item["type"])) for item in fields])


_TYPES = {
    "string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "date": pa.date32(),
    "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


def _arrow_type(spec: Any) -> pa.DataType:
    """Return the type of a column in the schema of a table."""
    if isinstance(spec, str):
        if decimal := _DECIMAL.fullmatch(spec):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return _TYPES.get(spec, pa.null())
    if spec["type"] == "array":
        return pa.list_(_arrow_type(spec["elementType"]))
    if spec["type"] == "map":
        return pa.map_(_arrow_type(spec["keyType"]), _arrow_type(spec["valueType"]))
    return pa.struct([(item["name"], _arrow_type(item["type"])) for item in spec["fields"]])


def open_delta(folder: Path, version: int | None = None) -> DeltaFiles:
    """Return the table at a version (None: the newest). Raises MirrorError if there is no such
    table or version."""
    log = folder / "_delta_log"
    names = sorted(path.name for path in log.iterdir()) if log.is_dir() else []
    commits = {int(match[1]): name for name in names if (match := _COMMIT.fullmatch(name))}
    last = version if version is not None else max(commits, default=-1)
    if last not in commits:
        raise MirrorError(f"{folder} is not a Delta table" + (f", or has no version {version}" if version else ""))
    checkpoints = [(int(match[1]), name) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    base = max((number for number, _ in checkpoints if number <= last), default=-1)
    table = DeltaFiles(folder, last)
    for number, name in checkpoints:
        if number == base:
            for action in pq.read_table(log / name, columns=["add", "metaData", "txn"]).to_pylist():
                table.apply(action)
    for number in range(base + 1, last + 1):
        if number not in commits:
            raise MirrorError(f"{folder}: version {number} is missing from the Delta log")
        with (log / commits[number]).open() as lines:
            for line in lines:
                table.apply(json.loads(line))
    return table
