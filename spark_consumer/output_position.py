"""The file `<path>/_position`, a line of JSON: how far a mirror or changelog is complete, and which
process writes it.

A changelog writes the file after each batch. A mirror writes it only after a batch without new
rows, such as a repeated one, which appends nothing. For other batches, `changes` shows how far the
mirror is complete.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_consumer.jvm import file_text, write_text

_NOT_WHOLE = ("java.io.FileNotFoundException", "org.apache.hadoop.fs.ChecksumException")


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """The position of a mirror or changelog. `query` is the id of the query, and `batch` the number
    of the last batch that it has written.

    Only a changelog has the other fields. `writer` is the name of the process that last opened it.
    All changes up to `commit_lsn` are written; -1 if that is not known. `tables` has the commit LSN
    of the last batch that was written to each table, but not of batches of an older release.
    """

    query: str | None = None
    batch: int = -1
    writer: str = ""
    commit_lsn: int = -1
    tables: dict[str, int] = field(default_factory=dict)


def read_position(spark: SparkSession, path: str) -> OutputPosition | None:
    """Return the position of a mirror or changelog. Return None if it has none, because an older
    release has written it, or if the file was not written to its end."""
    try:
        return OutputPosition(**json.loads(file_text(spark, f"{path}/_position")))
    except (ValueError, TypeError):
        return None
    except Py4JJavaError as problem:
        if is_not_whole(problem):
            return None
        raise


def is_not_whole(problem: Py4JJavaError) -> bool:
    """Return whether a file could not be read because it was not written to its end."""
    return problem.java_exception.getClass().getName() in _NOT_WHOLE


def write_position(spark: SparkSession, path: str, position: OutputPosition) -> None:
    write_text(spark, f"{path}/_position", json.dumps(asdict(position)))


def running_query(spark: SparkSession) -> str | None:
    """Return the id of the streaming query whose batch is being written; None if there is none."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId")
