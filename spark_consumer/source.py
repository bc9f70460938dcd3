"""The Python data sources `walgate` (committed changes) and `walgate-transactions` (one row a transaction).

Thin shells: what to read is planned in planning.py, read and counted in reading.py, shaped in frames.py. There is no state but
the offset {position in the transaction topic, last commit LSN}; Kafka keeps the rows, also those of streamed transactions.

Who runs where: one Python process on the driver plans (StreamReader, BatchReader); the workers call `read`, which must use
nothing but the partition it is given and what was there when the query began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from schemas.names import message_topic, value_subject
from spark_consumer.frames import RAW, TRANSACTIONS, TableFrame, raw_batch, transactions_batch
from spark_consumer.manifest import CommittedTransaction, MarkerDecoder, check_order
from spark_consumer.markers import MarkerLog
from spark_consumer.options import Options, parse_options
from spark_consumer.planning import Read, plan
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
        tasks = plan(transactions, self._wants, records_per_task=options.records_per_task)
        texts: dict[int, str] = {}
        if tasks and options.table is not None:
            namespace = options.table.record_namespace(options.prefix)
            ids = {schema_id for transaction in transactions for schema_id in transaction.schema_ids}
            texts = {i: json.dumps(schemas[i]) for i in sorted(ids) if schemas[i].get("namespace") == namespace}
        return [ReadTask(reads, texts) for reads in tasks]

    def _wants(self, topic: str) -> bool:
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

    def tasks(self, start: int, end: int) -> list[InputPartition]:
        return self.shape.tasks(self.log.between(start, end), self.schemas) if end > start else []


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, planner: _Planner) -> None:
        self._planner = planner
        self._stop_position: int | None = None  # of a query that takes what is there now

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
        end = self._planner.log.bounds()[1] if self._stop_position is None else self._stop_position
        if end <= start["position"]:
            return start
        transactions = self._planner.log.between(start["position"], end)
        admitted = admit(transactions, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if not admitted:
            return start
        check_order(admitted, start["commit_lsn"])
        last = admitted[-1]
        return {"position": last.marker_offset + 1, "commit_lsn": last.commit_lsn}

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        return self._planner.tasks(start["position"], end["position"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.shape.read(partition)

    def commit(self, end: StreamOffset) -> None:
        self._planner.log.forget_before(end["position"])


def admit(transactions: list[CommittedTransaction], max_changes: int | None) -> list[CommittedTransaction]:
    """The first transactions with together no more than `max_changes` events, but always one."""
    if max_changes is None:
        return transactions
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
        if end > start:
            check_order(planner.log.between(start, end), 0)
        return planner.tasks(start, end)

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

    def _planner(self, *, streaming: bool) -> _Planner:
        options = parse_options({**self.options}, streaming=streaming)
        return _Planner(options, self._shape(options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._planner(streaming=True))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._planner(streaming=False))


class WalgateTransactions(WalgateChanges):
    """`format("walgate-transactions")`: the same options, but those about tables."""

    @classmethod
    def name(cls) -> str:
        return "walgate-transactions"

    def _shape(self, options: Options) -> Shape:
        return TransactionShape(options)


def table_frame(options: Options, table: TableName) -> TableFrame:
    """Columns of the newest version of a table's schema. Raises SourceUnavailable, UnsupportedSchema."""
    return TableFrame.of(options.registry.latest(value_subject(table.topic(options.prefix)))[1])
