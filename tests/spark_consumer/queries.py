"""Streaming queries in tests, on a machine that may be busy."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_consumer.errors import slow_start_in

_ATTEMPTS = 6
_LOOK_EVERY_S = 1  # Spark 4.0 takes whole seconds


def run_to_end(writer: DataStreamWriter) -> None:
    """Takes what is there now; again where Spark could not start a Python process within its ten
    seconds."""
    run_to_end_of(writer.trigger(availableNow=True).start)


def run_to_end_of(start: Callable[[], StreamingQuery]) -> None:
    """Waits for the query that `start` starts; again where Spark could not start a Python
    process."""
    for attempt in range(_ATTEMPTS):
        try:
            start().awaitTermination()
        except StreamingQueryException as problem:
            if slow_start_in(str(problem)) is None or attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def stop_behind(writer: DataStreamWriter, is_enough: Callable[[], bool], expected: str) -> None:
    """Runs the query until `is_enough`, or until it fails with the words that are `expected`."""
    query = writer.start()
    try:
        while not is_enough() and not query.awaitTermination(_LOOK_EVERY_S):
            pass
        query.stop()
    except StreamingQueryException as problem:
        if slow_start_in(str(problem)) is None and expected not in str(problem):
            raise
