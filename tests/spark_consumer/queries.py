"""Streaming queries in tests, on a machine that may be busy."""

from __future__ import annotations

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_consumer.errors import slow_start_in

_ATTEMPTS = 6


def run_to_end(writer: DataStreamWriter) -> None:
    """Takes what is there now; again where Spark could not start a Python process within its ten seconds."""
    for attempt in range(_ATTEMPTS):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as problem:
            if slow_start_in(str(problem)) is None or attempt == _ATTEMPTS - 1:
                raise
        else:
            return
