"""Iceberg's sink for Kafka Connect with its DebeziumTransform, into a Hadoop catalog on this
computer; and what its tables hold.

A table is read as the specification says: metadata, list of manifests, manifests, data files. The
sink only appends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pyarrow.parquet
import pyspark

from gateway.local import Kafka
from tests.debezium.connect import files

NAMESPACE = "mirror"


def plugin() -> list[Path]:
    """The sink with what it needs beside Kafka Connect; Hadoop's file system is Spark's."""
    hadoop = sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))
    assert hadoop, "PySpark brings none"
    return [*files("iceberg"), *hadoop]


def iceberg_sink(kafka: Kafka, warehouse: Path, control_topic: str, topics: list[str]) -> dict[str, str]:
    """Each topic into the table of its name; what is new is committed each second. The control
    topic must be there."""
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "topics": ",".join(topics),
        "iceberg.catalog.type": "hadoop",
        "iceberg.catalog.warehouse": warehouse.as_uri(),
        "iceberg.tables.dynamic-enabled": "true",
        "iceberg.tables.route-field": "_cdc.target",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.evolve-schema-enabled": "true",
        "iceberg.control.topic": control_topic,
        "iceberg.control.commit.interval-ms": "1000",
        "iceberg.kafka.bootstrap.servers": kafka.bootstrap_servers,
        "transforms": "debezium",
        "transforms.debezium.type": "org.apache.iceberg.connect.transforms.DebeziumTransform",
        "transforms.debezium.cdc.target.pattern": f"{NAMESPACE}.{{table}}",
    }


def changes(warehouse: Path, table: str) -> list[dict[str, Any]]:
    """Every row of the table's newest snapshot, in no order; none while there is no table."""
    metadata = warehouse / NAMESPACE / table / "metadata"
    hint = metadata / "version-hint.text"
    if not hint.exists():
        return []
    found = json.loads((metadata / f"v{hint.read_text().strip()}.metadata.json").read_text())
    current = found.get("current-snapshot-id", -1)
    rows: list[dict[str, Any]] = []
    for snapshot in found["snapshots"]:
        if snapshot["snapshot-id"] == current:
            for manifest in _records(snapshot["manifest-list"]):
                assert manifest["content"] == 0, "a file of deletes"
                for entry in _records(manifest["manifest_path"]):
                    if entry["status"] != 2:
                        rows += pyarrow.parquet.read_table(_path(entry["data_file"]["file_path"])).to_pylist()
    return rows


def state(rows: list[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """What is left of each key when its changes are applied in the order of their offsets; a key
    has one partition."""
    left: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: int(row["_cdc"]["offset"])):
        content = {name: value for name, value in row.items() if name != "_cdc"}
        if row["_cdc"]["op"] == "D":
            del left[content[key]]
        else:
            left[content[key]] = content
    return left


def _records(address: str) -> Iterator[Any]:
    with _path(address).open("rb") as file:
        yield from fastavro.reader(file)


def _path(address: str) -> Path:
    return Path(urlsplit(address).path)
