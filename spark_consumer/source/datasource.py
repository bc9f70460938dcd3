"""The Python data sources `walgate` (committed changes) and `walgate-transactions` (one row per
transaction).

The classes are thin: reads are planned in read_planning.py, read and counted in reading.py, and
shaped in frames.py. The only state is the offset {position in the transaction topic, last commit
LSN}; the rows, including those of streamed transactions, stay in Kafka.

One Python process on the driver plans the reads (StreamReader, BatchReader). The workers call
`read`, which may use only its partition and the state of the reader when the query began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_consumer.arrow import spark_schema
from spark_consumer.errors import OptionError, RangeExpired, UnsupportedSchema, briefly
from spark_consumer.reader.marker_log import STEP, MarkerLog
from spark_consumer.reader.markers import CommittedTransaction, MarkerDecoder, check_order
from spark_consumer.reader.positions import resolve
from spark_consumer.reader.read_planning import first_complete
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.reader.topics import refuse_debezium
from spark_consumer.source.batch_admission import Admission
from spark_consumer.source.earlier_spark import EarlierStreamReader
from spark_consumer.source.offsets import (
    StreamOffset,
    check_last,
    last_commit_lsn,
    last_marker,
    offset_after,
    other_topic,
)
from spark_consumer.source.options import Options, parse_options
from spark_consumer.source.shapes import ChangeShape, Shape, TransactionShape
from spark_consumer.source.table_columns import table_frame
from spark_consumer.source.table_options import noted_options, options_of_table, with_options

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1
        SupportsTriggerAvailableNow = object

# Seconds for which an offset is held before transactions that the query does not want. A query with
# markers is a mirror, whose progress is observed.
_HOLD_S, _HOLD_WITH_MARKERS_S = 60.0, 5.0
# Default limit of a query without one. With ReadAllAvailable, trigger(once=True) could not be
# recognized.
_NO_LIMIT = (1 << 63) - 1
# Spark 4.0 and 4.1 tell a reader neither where a batch begins nor that the trigger is
# `availableNow`, with which they run one batch.
ENDS_AVAILABLE_NOW = hasattr(DataSourceStreamReader, "getDefaultReadLimit")

FirstKept = Callable[[str, int], int]  # (topic, partition) -> offset


def register(spark: SparkSession) -> None:
    """Register both formats with a session, unless Spark has found them automatically
    (pyspark_walgate)."""
    for source in (WalgateChanges, WalgateTransactions):
        try:
            spark.dataSource.register(source)
        except AnalysisException as problem:
            if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


class _Planner:
    """The parts that both kinds of reader share on the driver: the transaction topic and the
    schemas. They are opened when they are first used, so that a reader can be pickled."""

    def __init__(self, options: Options, shape: Shape) -> None:
        self.options = options
        self.shape = shape
        self._log: MarkerLog | None = None
        self._schemas: SchemaCache | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_schemas": None}

    @property
    def schemas(self) -> SchemaCache:
        if self._schemas is None:
            self._schemas = SchemaCache(self.options.registry)
        return self._schemas

    @property
    def log(self) -> MarkerLog:
        if self._log is None:
            topic = self.options.marker_topic
            self._log = MarkerLog(self.options.broker, topic, MarkerDecoder(self.schemas, topic))
        return self._log

    def check_kept(self, transactions: list[CommittedTransaction], first_kept: FirstKept) -> None:
        """Raise RangeExpired if wanted records of these transactions are no longer in Kafka. The
        error names the first position from which everything is available. This is called for the
        first transactions of a read, since retention may remove records before their markers."""
        wants = self.shape.wants
        expired = first_complete(transactions, wants, first_kept)
        if expired is not None:
            later = first_complete(self.log.walk(expired, self.log.bounds()[1]), wants, first_kept)
            raise RangeExpired(
                f"records of the transaction whose marker is at offset {expired - 1} are no longer in Kafka",
                hint="Retention has removed records that were never read, or a topic was recreated: the changes in the "
                "missing records are not in the output. Use a new checkpoint location, and a new mirror or changelog, and set "
                f"startingPosition (--starting-position) to marker:{later or expired}, the first position from which everything "
                "is available.",
            )

    def first_kept(self) -> FirstKept:
        """Return a function that returns the first offset of a topic-partition that Kafka has, and
        caches it."""
        return cache(lambda topic, partition: self.options.broker.offsets(topic, partition)[0])

    def tasks(self, transactions: list[CommittedTransaction]) -> list[InputPartition]:
        return self.shape.tasks(transactions, self.schemas)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reads on Spark 4.2 and later."""

    def __init__(self, planner: _Planner) -> None:
        self._planner = planner
        hold_s = _HOLD_WITH_MARKERS_S if planner.options.include_markers else _HOLD_S
        self._admission = Admission(planner.shape.weight, hold_s)
        self._stop_position: int | None = None  # the end, with `availableNow`
        self._is_checked = False  # whether the topic is the one of the offsets

    def initialOffset(self) -> StreamOffset:
        return {"position": resolve(self._planner.options.starting, self._planner.log), "commit_lsn": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(_NO_LIMIT if self.max_changes is None else self.max_changes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._stop_position = self._planner.log.bounds()[1]
        self._admission = Admission(self._planner.shape.weight, 0.0)

    def reportLatestOffset(self) -> StreamOffset | None:
        """Return the end of the transaction topic, which is `latestOffset` in Spark's progress. Its
        distance from the end offset of a batch is the lag, since Spark requests no metrics from a
        Python source."""
        end = self._planner.log.bounds()[1]
        return {"position": end, "commit_lsn": self._planner.log.newest_lsn(end)}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        most = getattr(limit, "max_rows", None)  # None: ReadAllAvailable
        return self.next_offset(start, None if most == _NO_LIMIT else most, at_once=most is None)

    @property
    def max_changes(self) -> int | None:
        """Maximum number of changes in a micro-batch; None if there is no limit."""
        return self._planner.options.max_changes

    def next_offset(self, start: StreamOffset, limit: int | None, *, at_once: bool = False) -> StreamOffset:
        """Return the offset after as many whole transactions as the limit admits, and at least one.

        The offset does not advance until there is a new transaction that the query wants, or the
        hold time is over. With `at_once`, there is no hold time: the batch may be the only one.
        """
        low, end = self._planner.log.bounds()
        if self._stop_position is not None:
            end = self._stop_position
        self._check_topic(start, low, end)
        position, commit_lsn = start["position"], start["commit_lsn"]
        if position == end:
            return start
        admission = Admission(self._planner.shape.weight, 0.0) if at_once else self._admission
        admitted, reached = admission.admitted(self._planner.log, position, commit_lsn, end, limit)
        if reached == position:
            return start
        offset = offset_after(admitted, start, reached)
        return offset if commit_lsn else {**offset, "began": position}

    def _check_topic(self, start: StreamOffset, low: int, end: int) -> None:
        """Raise MarkerError if the offset does not belong to this topic. Either it is after the end
        of the topic, or the marker before it, if Kafka still has it, is another one."""
        position, commit_lsn = start["position"], start["commit_lsn"]
        if end < position:
            raise other_topic(f"the marker topic ends at {end}", start)
        last = last_marker(start)
        if not self._is_checked and commit_lsn and low <= last:
            check_last(self._planner.log.between(last, last + 1), start, {"position": last, "commit_lsn": commit_lsn})
        self._is_checked = True

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        if start == end:
            return []
        # If a first batch was killed, it is planned again from the current initial offset, where
        # `latest` is a different position.
        position = end.get("began", start["position"])
        if end["position"] <= position:
            raise other_topic(f"this batch begins at offset {position}", end)
        transactions = self._planner.log.between(position, end["position"])
        check_last(transactions, end, {**start, "position": position})  # a restarted query repeats the planned batch
        if not start["commit_lsn"]:
            self._planner.check_kept(transactions, self._planner.first_kept())
        return self._planner.tasks(transactions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.shape.read(partition)

    def commit(self, end: StreamOffset) -> None:
        self._planner.log.forget_before(end["position"])


class BatchReader(DataSourceReader):
    """Batch reads.

    The reader takes no filters (pushFilters): in Spark 4.1 and 4.2, all scans of a DataFrame share
    the plan of the first one.
    """

    def __init__(self, planner: _Planner) -> None:
        self._planner = planner

    def partitions(self) -> Sequence[InputPartition]:
        planner, options = self._planner, self._planner.options
        position, end = resolve(options.starting, planner.log), resolve(options.ending, planner.log)
        first_kept, commit_lsn = planner.first_kept(), 0
        tasks: list[InputPartition] = []
        while position < end:  # in steps: a transaction takes more memory than its part of the plan
            reached = min(position + STEP, end)
            transactions = planner.log.between(position, reached)
            check_order(transactions, commit_lsn)
            planner.check_kept(transactions, first_kept)
            tasks += planner.tasks(transactions)
            commit_lsn = last_commit_lsn(transactions, commit_lsn)
            planner.log.forget_before(reached)
            position = reached
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.shape.read(partition)


class WalgateChanges(DataSource):
    """`format("walgate")`; docs/spark.md has its options and columns."""

    @classmethod
    def name(cls) -> str:
        return "walgate"

    def _options(self, *, streaming: bool | None) -> Options:
        return parse_options(options_of_table(self.options), streaming=streaming)

    def _shape(self, options: Options) -> Shape:
        return ChangeShape(options, None if options.table is None else table_frame(options, options.table))

    @briefly
    def schema(self) -> StructType:
        options = self._options(streaming=None)
        refuse_debezium(options.registry, options.prefix)
        return with_options(spark_schema(self._shape(options).schema), self.options)

    def _planner(self, loaded: StructType, *, streaming: bool) -> _Planner:
        """Return the planner of a reader. `loaded`: the columns that the frame got when it was
        created."""
        self.options = {**noted_options(loaded), **self.options}
        options = self._options(streaming=streaming)
        shape = self._shape(options)
        if spark_schema(shape.schema).simpleString() != loaded.simpleString():
            raise UnsupportedSchema(
                f"the columns of {options.table} have changed since load()",
                hint="Call load() again: a DataFrame keeps its columns.",
            )
        return _Planner(options, shape)

    @briefly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = StreamReader(self._planner(schema, streaming=True))
        return reader if ENDS_AVAILABLE_NOW else EarlierStreamReader(reader)

    @briefly
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._planner(schema, streaming=False))


class WalgateTransactions(WalgateChanges):
    """`format("walgate-transactions")`, with the same options except those about tables."""

    @classmethod
    def name(cls) -> str:
        return "walgate-transactions"

    def _options(self, *, streaming: bool | None) -> Options:
        options = super()._options(streaming=streaming)
        chosen = options.table is not None or options.tables or options.exclude
        if chosen or options.include_messages or options.include_markers:
            raise OptionError(
                "table, tables, exclude, includeMessages and includeMarkers select changes, but "
                "walgate-transactions returns transactions",
                hint='Omit these options and filter by the column `tables`, or use format("walgate").',
            )
        return options

    def _shape(self, options: Options) -> Shape:
        return TransactionShape(options)
