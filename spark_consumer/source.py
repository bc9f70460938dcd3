"""The Python data sources `walgate` (committed changes) and `walgate-transactions` (one row a transaction).

Thin shells: what to read is planned in planning.py, read and counted in reading.py, shaped in frames.py. There is no state but
the offset {position in the transaction topic, last commit LSN}; Kafka keeps the rows, also those of streamed transactions.

Who runs where: one Python process on the driver plans (StreamReader, BatchReader); the workers call `read`, which must use
nothing but the partition it is given and what was there when the query began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from schemas.names import message_topic, value_subject
from spark_consumer.errors import MarkerError, OptionError, RangeExpired, UnsupportedSchema
from spark_consumer.frames import RAW, TRANSACTIONS, TableFrame, raw_batch, transactions_batch
from spark_consumer.lsn import format_lsn
from spark_consumer.manifest import CommittedTransaction, MarkerDecoder, check_order
from spark_consumer.markers import STEP, MarkerLog
from spark_consumer.options import Options, parse_options
from spark_consumer.planning import Read, first_complete, plan
from spark_consumer.positions import resolve
from spark_consumer.reading import read_chunks
from spark_consumer.registry import SchemaCache
from spark_consumer.tables import TableName

_TRANSACTIONS_PER_TASK = 10_000

StreamOffset = dict[str, int]  # {"position": next marker offset, "commit_lsn": of the last transaction before it}


def register(spark: SparkSession) -> None:
    """Makes both formats known to a session."""
    spark.dataSource.register(WalgateChanges)
    spark.dataSource.register(WalgateTransactions)


class ReadTask(InputPartition):
    """What one Spark task reads. `schemas`: id -> JSON text, of the typed table only."""

    def __init__(self, reads: list[Read], schemas: dict[int, str]) -> None:
        self.reads = reads
        self.schemas = schemas


class TransactionTask(InputPartition):
    """A slice of the transactions themselves: they are at hand when the read is planned."""

    def __init__(self, transactions: list[CommittedTransaction]) -> None:
        self.transactions = transactions


class ChangeShape:
    """Changes: all tables in the raw form, or the typed columns of one table. Pickled into every task."""

    def __init__(self, options: Options, frame: TableFrame | None) -> None:
        self._options = options
        self._frame = frame

    @property
    def schema(self) -> pa.Schema:
        return RAW if self._frame is None else self._frame.schema

    def tasks(self, transactions: list[CommittedTransaction], schemas: SchemaCache) -> list[InputPartition]:
        options = self._options
        tasks = plan(transactions, self.wants, records_per_task=options.records_per_task)
        texts: dict[int, str] = {}
        if tasks and options.table is not None:
            namespace = options.table.record_namespace(options.prefix)
            ids = {schema_id for transaction in transactions for schema_id in transaction.schema_ids}
            texts = {i: json.dumps(schemas[i]) for i in sorted(ids) if schemas[i].get("namespace") == namespace}
        return [ReadTask(reads, texts) for reads in tasks]

    def wants(self, topic: str) -> bool:
        options = self._options
        table = TableName.of_topic(options.prefix, topic)
        if options.table is not None:
            return table == options.table
        if table is None:
            return options.include_messages and topic == message_topic(options.prefix)
        return not options.tables or table in options.tables

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(task, ReadTask):  # Spark's own empty partition, when a batch read has nothing to read
            return
        for read in task.reads:
            table = TableName.of_topic(self._options.prefix, read.topic)
            for chunk in read_chunks(self._options.broker, read):
                if self._frame is None:
                    yield raw_batch(chunk, None if table is None else str(table))
                else:
                    yield from self._frame.batches(chunk, task.schemas)


class TransactionShape:
    """One row a transaction."""

    def __init__(self, options: Options) -> None:
        self._prefix = options.prefix

    @property
    def schema(self) -> pa.Schema:
        return TRANSACTIONS

    def tasks(self, transactions: list[CommittedTransaction], _: SchemaCache) -> list[InputPartition]:
        starts = range(0, len(transactions), _TRANSACTIONS_PER_TASK)
        return [TransactionTask(transactions[start : start + _TRANSACTIONS_PER_TASK]) for start in starts]

    def wants(self, _: str) -> bool:
        return False  # no records: the markers say it all

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(task, TransactionTask):
            yield transactions_batch(task.transactions, self._prefix)


Shape = ChangeShape | TransactionShape


class _Planner:
    """What the two kinds of reader share on the driver: the transaction topic and the schemas, opened when first used, so that
    a reader pickles."""

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
            self._log = MarkerLog(self.options.broker, self.options.marker_topic, MarkerDecoder(self.schemas))
        return self._log

    def check_kept(self, transactions: list[CommittedTransaction]) -> None:
        """Raises RangeExpired, with the position from which on all is there. For the first transactions of a read: retention does
        not shorten the topics of markers and rows alike."""
        broker, wants = self.options.broker, self.shape.wants
        first_kept = cache(lambda topic, partition: broker.offsets(topic, partition)[0])
        expired = first_complete(transactions, wants, first_kept)
        if expired is not None:
            later = first_complete(self.log.walk(expired, self.log.bounds()[1]), wants, first_kept)
            raise RangeExpired(
                f"rows of the transaction at marker {expired - 1} are no longer in Kafka",
                hint="Retention has removed records that were never read, or a topic was made anew. "
                f"What is complete begins at startingPosition marker:{later or expired}, with a new checkpoint.",
            )

    def tasks(self, transactions: list[CommittedTransaction]) -> list[InputPartition]:
        return self.shape.tasks(transactions, self.schemas)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, planner: _Planner) -> None:
        self._planner = planner
        self._stop_position: int | None = None  # of a query that takes what is there now
        self._is_checked = False  # that this is the topic in which the offsets were counted

    def initialOffset(self) -> StreamOffset:
        return {"position": resolve(self._planner.options.starting, self._planner.log), "commit_lsn": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._planner.options.max_changes
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._stop_position = self._planner.log.bounds()[1]

    def reportLatestOffset(self) -> StreamOffset | None:
        """Spark's lag: the end of the transaction topic."""
        return {"position": self._planner.log.bounds()[1], "commit_lsn": 0}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """As many whole transactions as the limit admits, and at least one. Stands still until there is a new one, however many
        other markers come: an offset that moves makes Spark run a batch."""
        low, end = self._planner.log.bounds()
        if self._stop_position is not None:
            end = self._stop_position
        self._check_topic(start, low, end)
        if end == start["position"]:
            return start
        admitted = admit_from(self._planner.log, start["position"], end, limit)
        if not admitted:
            return start
        check_order(admitted, start["commit_lsn"])
        last = admitted[-1]
        return {"position": last.marker_offset + 1, "commit_lsn": last.commit_lsn}

    def _check_topic(self, start: StreamOffset, low: int, end: int) -> None:
        """Raises MarkerError unless the offset was counted in this topic: the marker before it tells, if it is still there."""
        position, commit_lsn = start["position"], start["commit_lsn"]
        if end < position:
            raise _other_topic(f"the transaction topic ends at {end}", start)
        if not self._is_checked and commit_lsn and low < position:
            _check_last(self._planner.log.between(position - 1, position), start)
        self._is_checked = True

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        if end["position"] <= start["position"]:
            return []
        transactions = self._planner.log.between(start["position"], end["position"])
        _check_last(transactions, end)  # a query that was killed begins with what it had planned
        if not start["commit_lsn"]:
            self._planner.check_kept(transactions)
        return self._planner.tasks(transactions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.shape.read(partition)

    def commit(self, end: StreamOffset) -> None:
        self._planner.log.forget_before(end["position"])


def _check_last(transactions: list[CommittedTransaction], offset: StreamOffset) -> None:
    """Raises MarkerError unless `offset` was counted behind the last of these."""
    found = transactions[-1] if transactions else None
    if found is None or (found.marker_offset + 1, found.commit_lsn) != (offset["position"], offset["commit_lsn"]):
        raise _other_topic(
            f"marker {offset['position'] - 1} of the transaction topic is {found or 'no commit'}", offset
        )


def _other_topic(what: str, offset: StreamOffset) -> MarkerError:
    return MarkerError(
        f"the query stands behind commit_lsn {format_lsn(offset['commit_lsn'])} at marker {offset['position']}, but {what}",
        hint="The topic was made anew, or the checkpoint is of another cluster or prefix: what was committed meanwhile may be "
        "missing here. Begin with a new checkpoint, and a new mirror or changelog.",
    )


def admit_from(log: MarkerLog, position: int, end: int, limit: ReadLimit) -> list[CommittedTransaction]:
    """What the limit admits of [position, end), without reading a whole backlog for it."""
    if not isinstance(limit, ReadMaxRows):
        return log.between(position, end)
    reached = position
    while True:
        reached = min(reached + STEP, end)
        transactions = log.between(position, reached)
        admitted = admit(transactions, limit.max_rows)
        if reached == end or len(admitted) < len(transactions):
            return admitted


def admit(transactions: list[CommittedTransaction], max_changes: int) -> list[CommittedTransaction]:
    """The first transactions with together no more than `max_changes` events, but always one."""
    changes = 0
    for count, transaction in enumerate(transactions):
        changes += transaction.event_count
        if changes > max_changes:
            return transactions[: max(1, count)]
    return transactions


class BatchReader(DataSourceReader):
    def __init__(self, planner: _Planner) -> None:
        self._planner = planner

    def partitions(self) -> Sequence[InputPartition]:
        planner = self._planner
        start = resolve(planner.options.starting, planner.log)
        end = resolve(planner.options.ending, planner.log)
        transactions = planner.log.between(start, end) if end > start else []
        check_order(transactions, 0)
        planner.check_kept(transactions)
        return planner.tasks(transactions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.shape.read(partition)


class WalgateChanges(DataSource):
    """`format("walgate")`: docs/spark.md has the options and columns."""

    @classmethod
    def name(cls) -> str:
        return "walgate"

    def _shape(self, options: Options) -> Shape:
        return ChangeShape(options, None if options.table is None else table_frame(options, options.table))

    def schema(self) -> StructType:
        options = parse_options({**self.options}, streaming=None)
        return from_arrow_schema(self._shape(options).schema)

    def _planner(self, loaded: StructType, *, streaming: bool) -> _Planner:
        """`loaded`: the columns that the frame got when it was made."""
        options = parse_options({**self.options}, streaming=streaming)
        shape = self._shape(options)
        if from_arrow_schema(shape.schema).simpleString() != loaded.simpleString():
            raise UnsupportedSchema(
                f"the columns of {options.table} have changed since load()",
                hint="Call load() again: a frame keeps its columns.",
            )
        return _Planner(options, shape)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._planner(schema, streaming=True))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._planner(schema, streaming=False))


class WalgateTransactions(WalgateChanges):
    """`format("walgate-transactions")`: the same options, but those about tables."""

    @classmethod
    def name(cls) -> str:
        return "walgate-transactions"

    def _shape(self, options: Options) -> Shape:
        if options.table is not None or options.tables or options.include_messages:
            raise OptionError(
                "table, tables and includeMessages choose changes; walgate-transactions gives transactions",
                hint='Look into its column `tables`, or use format("walgate").',
            )
        return TransactionShape(options)


def table_frame(options: Options, table: TableName) -> TableFrame:
    """Columns of the newest version of a table's schema. Raises SourceUnavailable, UnsupportedSchema."""
    return TableFrame.of(options.registry.latest(value_subject(table.topic(options.prefix)))[1])
