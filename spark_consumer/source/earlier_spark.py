"""Streaming reads on Spark 4.0 and 4.1.

These versions tell a Python source neither where a micro-batch begins nor how much it may take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_consumer.source.offsets import StreamOffset

if TYPE_CHECKING:
    from spark_consumer.source.datasource import StreamReader


class EarlierStreamReader(DataSourceStreamReader):
    """Keep track of how far the batches have advanced, and call `reader` with that offset.

    For a new query, Spark requests the latest offset, then the initial one. For a query that
    continues, it first requests the partitions from the last planned offset to the same offset,
    which shows where the query is. With `availableNow` and `once`, Spark requests the latest offset
    once, and the query ends after that batch.
    """

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self._initial: StreamOffset | None = None
        self._reached: StreamOffset | None = None
        self._is_first = True  # whether the next batch may be the only one

    def initialOffset(self) -> StreamOffset:
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> StreamOffset:  # type: ignore[override]
        start = self.initialOffset() if self._reached is None else self._reached
        self._reached = self._reader.next_offset(start, self._reader.max_changes, at_once=self._is_first)
        self._is_first = False
        return self._reached

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        if self._reached is None or self._reached["position"] < end["position"]:
            self._reached = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: StreamOffset) -> None:
        self._reader.commit(end)
