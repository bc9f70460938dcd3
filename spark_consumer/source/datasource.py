"""The Python data sources `walgate` (committed changes) and `walgate-transactions` (one row a transaction).

Thin shells: what to read is planned in planning.py, read and counted in reading.py, shaped in frames.py. There is no state but
the offset {position in the transaction topic, last commit LSN}; Kafka keeps the rows, also those of streamed transactions.

Who runs where: one Python process on the driver plans (StreamReader, BatchReader); the workers call `read`, which must use
nothing but the partition it is given and what was there when the query began.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from schemas.lsn import format_lsn
from schemas.topic_names import message_topic, value_subject
from spark_consumer.errors import MarkerError, OptionError, RangeExpired, UnsupportedSchema
from spark_consumer.reader.marker_log import STEP, MarkerLog
from spark_consumer.reader.markers import CommittedTransaction, MarkerDecoder, check_order
from spark_consumer.reader.planning import Read, first_complete, plan
from spark_consumer.reader.positions import resolve
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.reader.table_marks import TableMark, marks_of
from spark_consumer.reader.topics import refuse_debezium, table_of_topic, topic_of_table
from spark_consumer.source.frames import RAW, TRANSACTIONS, TableFrame, marks_batch, raw_batch, transactions_batch
from spark_consumer.source.options import Options, parse_options
from spark_consumer.source.reading import read_chunks
from spark_consumer.tables import TableName, is_one_of

_TRANSACTIONS_PER_TASK = 10_000
# Of a micro-batch with a limit. The driver has them in memory: 1.2 kB each.
_TRANSACTIONS_PER_TRIGGER = 200_000

FirstKept = Callable[[str, int], int]  # (topic, partition) -> offset
StreamOffset = dict[str, int]  # {"position": next marker offset, "commit_lsn": of the last transaction before it}


def register(spark: SparkSession) -> None:
    """Makes both formats known to a session, where Spark has not found them by itself (pyspark_walgate)."""
    for source in (WalgateChanges, WalgateTransactions):
        try:
            spark.dataSource.register(source)
        except AnalysisException as problem:
            if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


class ReadTask(InputPartition):
    """What one Spark task reads. `schemas`: id -> JSON text, of the typed table only."""

    def __init__(self, reads: list[Read], schemas: dict[int, str]) -> None:
        self.reads = reads
        self.schemas = schemas


class MarkTask(InputPartition):
    """What the markers say about the tables, at hand when the read is planned."""

    def __init__(self, signs: list[TableMark]) -> None:
        self.signs = signs


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
        signs = marks_of(transactions, self._wants_table) if options.include_markers else []
        texts: dict[int, str] = {}
        if tasks and options.table is not None:
            namespace = options.table.record_namespace(options.prefix)
            ids = {schema_id for transaction in transactions for schema_id in transaction.schema_ids}
            texts = {i: json.dumps(schemas[i]) for i in sorted(ids) if schemas[i].get("namespace") == namespace}
        reads: list[InputPartition] = [ReadTask(reads, texts) for reads in tasks]
        return [*reads, MarkTask(signs)] if signs else reads

    def wants(self, topic: str) -> bool:
        options = self._options
        table = table_of_topic(options.registry, options.prefix, topic)
        if options.table is not None:
            return table == options.table
        if table is None:
            return options.include_messages and topic == message_topic(options.prefix)
        return self._wants_table(table)

    def _wants_table(self, table: TableName) -> bool:
        options = self._options
        return (not options.tables or table in options.tables) and not is_one_of(table, options.exclude)

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(task, MarkTask):
            yield marks_batch(task.signs, self._options.marker_topic)
        if not isinstance(task, ReadTask):  # or Spark's own empty partition, when a batch read has nothing to read
            return
        for chunk in read_chunks(self._options.broker, task.reads):
            if self._frame is None:
                table = table_of_topic(self._options.registry, self._options.prefix, chunk.read.topic)
                yield raw_batch(chunk, None if table is None else str(table))
            else:
                yield from self._frame.batches(chunk, task.schemas)


class TransactionShape:
    """One row a transaction."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @property
    def schema(self) -> pa.Schema:
        return TRANSACTIONS

    def tasks(self, transactions: list[CommittedTransaction], _: SchemaCache) -> list[InputPartition]:
        transactions = [transaction for transaction in transactions if not transaction.is_notice]
        starts = range(0, len(transactions), _TRANSACTIONS_PER_TASK)
        return [TransactionTask(transactions[start : start + _TRANSACTIONS_PER_TASK]) for start in starts]

    def wants(self, _: str) -> bool:
        return False  # no records: the markers say it all

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(task, TransactionTask):
            table_of = partial(table_of_topic, self._options.registry, self._options.prefix)
            yield transactions_batch(task.transactions, table_of)


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
            topic = self.options.marker_topic
            self._log = MarkerLog(self.options.broker, topic, MarkerDecoder(self.schemas, topic))
        return self._log

    def check_kept(self, transactions: list[CommittedTransaction], first_kept: FirstKept) -> None:
        """Raises RangeExpired, with the position from which on all is there. For the first transactions of a read: retention does
        not shorten the topics of markers and rows alike."""
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
        """First offset of a topic-partition that Kafka has; asked for once."""
        return cache(lambda topic, partition: self.options.broker.offsets(topic, partition)[0])

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
        """Spark's `latestOffset`: the end of the transaction topic. Less the end offset of a batch it is the lag: Spark asks a
        Python source for no metrics."""
        end = self._planner.log.bounds()[1]
        return {"position": end, "commit_lsn": self._planner.log.newest_lsn(end)}

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
        return _behind(admitted, start["commit_lsn"])

    def _check_topic(self, start: StreamOffset, low: int, end: int) -> None:
        """Raises MarkerError unless the offset was counted in this topic: the marker before it tells, if it is still there."""
        position, commit_lsn = start["position"], start["commit_lsn"]
        if end < position:
            raise _other_topic(f"the marker topic ends at {end}", start)
        if not self._is_checked and commit_lsn and low < position:
            _check_last(self._planner.log.between(position - 1, position), start, commit_lsn)
        self._is_checked = True

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        if end["position"] <= start["position"]:
            return []
        transactions = self._planner.log.between(start["position"], end["position"])
        _check_last(transactions, end, start["commit_lsn"])  # a query that was killed begins with what it had planned
        if not start["commit_lsn"]:
            self._planner.check_kept(transactions, self._planner.first_kept())
        return self._planner.tasks(transactions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.shape.read(partition)

    def commit(self, end: StreamOffset) -> None:
        self._planner.log.forget_before(end["position"])


def _behind(transactions: list[CommittedTransaction], commit_lsn: int) -> StreamOffset:
    """The offset behind these; `commit_lsn`: of the last transaction before them. A notice has none of its own."""
    for transaction in transactions:
        commit_lsn = commit_lsn if transaction.is_notice else transaction.commit_lsn
    return {"position": transactions[-1].marker_offset + 1, "commit_lsn": commit_lsn}


def _check_last(transactions: list[CommittedTransaction], offset: StreamOffset, commit_lsn: int) -> None:
    """Raises MarkerError unless `offset` was counted behind the last of these; `commit_lsn`: of the last transaction before."""
    if not transactions or _behind(transactions, commit_lsn) != offset:
        found = transactions[-1] if transactions else "no commit"
        raise _other_topic(f"marker {offset['position'] - 1} of the marker topic is {found}", offset)


def _other_topic(what: str, offset: StreamOffset) -> MarkerError:
    return MarkerError(
        f"the query is at commit_lsn {format_lsn(offset['commit_lsn'])} at offset {offset['position']} of the "
        f"marker topic, but {what}",
        hint="First check kafka.bootstrap.servers, prefix and the checkpoint location. If one of them is wrong, correct it and "
        "restart the query: nothing is lost. If all are right, the topic was recreated, and changes may be missing from the "
        "output of this query: use a new checkpoint location, and a new mirror or changelog.",
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
    """The first transactions with together no more than `max_changes` events, but always one, and all notices before the next."""
    changes = 0
    for count, transaction in enumerate(transactions):
        changes += transaction.event_count
        is_full = changes > max_changes or count >= _TRANSACTIONS_PER_TRIGGER
        if is_full and not transaction.is_notice and any(not before.is_notice for before in transactions[:count]):
            return transactions[:count]
    return transactions


class BatchReader(DataSourceReader):
    def __init__(self, planner: _Planner) -> None:
        self._planner = planner

    def partitions(self) -> Sequence[InputPartition]:
        planner = self._planner
        position, end = (resolve(at, planner.log) for at in (planner.options.starting, planner.options.ending))
        first_kept, commit_lsn = planner.first_kept(), 0
        tasks: list[InputPartition] = []
        while position < end:  # step by step: a transaction is larger than its part of the plan
            reached = min(position + STEP, end)
            transactions = planner.log.between(position, reached)
            check_order(transactions, commit_lsn)
            planner.check_kept(transactions, first_kept)
            tasks += planner.tasks(transactions)
            commit_lsn = _behind(transactions, commit_lsn)["commit_lsn"] if transactions else commit_lsn
            planner.log.forget_before(reached)
            position = reached
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.shape.read(partition)


class WalgateChanges(DataSource):
    """`format("walgate")`: docs/spark.md has the options and columns."""

    @classmethod
    def name(cls) -> str:
        return "walgate"

    def _options(self, *, streaming: bool | None) -> Options:
        return parse_options({**self.options}, streaming=streaming)

    def _shape(self, options: Options) -> Shape:
        return ChangeShape(options, None if options.table is None else table_frame(options, options.table))

    def schema(self) -> StructType:
        options = self._options(streaming=None)
        refuse_debezium(options.registry, options.prefix)
        return from_arrow_schema(self._shape(options).schema)

    def _planner(self, loaded: StructType, *, streaming: bool) -> _Planner:
        """`loaded`: the columns that the frame got when it was made."""
        options = self._options(streaming=streaming)
        shape = self._shape(options)
        if from_arrow_schema(shape.schema).simpleString() != loaded.simpleString():
            raise UnsupportedSchema(
                f"the columns of {options.table} have changed since load()",
                hint="Call load() again: a DataFrame keeps its columns.",
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


def table_frame(options: Options, table: TableName) -> TableFrame:
    """Columns of the newest version of a table's schema. Raises SourceUnavailable, UnsupportedSchema."""
    topic = topic_of_table(options.registry, options.prefix, table)
    return TableFrame.of(options.registry.latest(value_subject(topic))[1])
