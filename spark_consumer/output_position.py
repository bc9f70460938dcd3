"""How far a mirror or changelog is complete, and who writes it: `<path>/_position`, a line of JSON.

A changelog writes it after each batch. A mirror writes it after a batch without rows, which appends
nothing; how far the others reach is in `changes`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_consumer.jvm import file_text, write_text

_NOT_WHOLE = ("java.io.FileNotFoundException", "org.apache.hadoop.fs.ChecksumException")


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """`query`, `batch`: id of the query, and number of the last batch that it has written.

    Only of a changelog: `writer`: a name of the process that has opened it last; `commit_lsn`: all
    changes up to it are written; -1: not known.
    """

    query: str | None = None
    batch: int = -1
    writer: str = ""
    commit_lsn: int = -1


def read_position(spark: SparkSession, path: str) -> OutputPosition | None:
    """Return the position of a mirror or changelog. Return None if it has none, because an older
    release has written it, or if the file was not written to its end."""
    try:
        return OutputPosition(**json.loads(file_text(spark, f"{path}/_position")))
    except (ValueError, TypeError):
        return None
    except Py4JJavaError as problem:
        if problem.java_exception.getClass().getName() in _NOT_WHOLE:
            return None
        raise


def write_position(spark: SparkSession, path: str, position: OutputPosition) -> None:
    write_text(spark, f"{path}/_position", json.dumps(asdict(position)))


def running_query(spark: SparkSession) -> str | None:
    """Return the id of the streaming query whose batch is being written; None outside of one."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId")
