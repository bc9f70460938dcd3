"""How far a changelog is complete, and who writes it: `<path>/_position`, a line of JSON, which is
written after each batch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_consumer.jvm import file_text, folder_names, write_text

_NAME = "_position"


@dataclass(frozen=True, slots=True)
class ChangelogPosition:
    """`writer`: a name of the process that has opened the changelog last. `query`, `batch`: id of
    its query, and number of the last batch that it has written. `commit_lsn`: all changes up to it
    are written; -1: not known."""

    writer: str
    query: str | None = None
    batch: int = -1
    commit_lsn: int = -1


def read_position(spark: SparkSession, path: str) -> ChangelogPosition | None:
    """Return the position of a changelog. Return None if it has none, because an older release has
    written it, or if the file was not written to its end."""
    if _NAME not in folder_names(spark, path):
        return None
    try:
        return ChangelogPosition(**json.loads(file_text(spark, f"{path}/{_NAME}")))
    except (ValueError, TypeError, Py4JJavaError):
        return None


def write_position(spark: SparkSession, path: str, position: ChangelogPosition) -> None:
    write_text(spark, f"{path}/{_NAME}", json.dumps(asdict(position)))
