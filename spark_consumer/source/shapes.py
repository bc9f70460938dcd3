"""The two shapes of a query's rows, changes and transactions. A shape divides the rows into tasks
and reads the rows of a task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from schemas.topic_names import message_topic
from spark_consumer.reader.markers import CommittedTransaction
from spark_consumer.reader.read_planning import Read, plan
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.reader.table_marks import TableMark, marks_of
from spark_consumer.reader.topics import table_of_topic
from spark_consumer.source.frames import RAW, TRANSACTIONS, TableFrame, marks_batch, raw_batch, transactions_batch
from spark_consumer.source.options import Options
from spark_consumer.source.reading import read_chunks
from spark_consumer.tables import TableName, is_one_of

_TRANSACTIONS_PER_TASK = 10_000

Tables: TypeAlias = dict[str, TableName | None]  # by topic; None for the topics of markers and messages


class ReadTask(InputPartition):
    """The reads of one Spark task. `tables` has the tables of its topics, so that the task does not
    need the registry. `schemas`: id -> JSON text, for a typed table only."""

    def __init__(self, reads: list[Read], tables: Tables, schemas: dict[int, str]) -> None:
        self.reads = reads
        self.tables = tables
        self.schemas = schemas


class MarkTask(InputPartition):
    """Table marks, which are already known when the read is planned."""

    def __init__(self, marks: list[TableMark]) -> None:
        self.marks = marks


class TransactionTask(InputPartition):
    """A slice of the transactions, which are already known when the read is planned. `tables` has
    the tables of their topics."""

    def __init__(self, transactions: list[CommittedTransaction], tables: Tables) -> None:
        self.transactions = transactions
        self.tables = tables


class ChangeShape:
    """The shape of changes: those of all tables in raw form, or those of one table in typed
    columns. A shape is pickled into every task."""

    def __init__(self, options: Options, frame: TableFrame | None) -> None:
        self._options = options
        self._frame = frame
        self._wanted_topics: dict[str, bool] = {}  # a topic never changes its table

    @property
    def schema(self) -> pa.Schema:
        return RAW if self._frame is None else self._frame.schema

    def tasks(self, transactions: list[CommittedTransaction], schemas: SchemaCache) -> list[InputPartition]:
        options = self._options
        tasks = plan(transactions, self.wants, records_per_task=options.records_per_task)
        marks = marks_of(transactions, self._wants_table) if options.include_markers else []
        texts = {} if options.table is None else self._schema_texts(options.table, transactions, schemas)
        reads: list[InputPartition] = [
            ReadTask(reads, _tables_of(options, {read.topic for read in reads}), texts) for reads in tasks
        ]
        return [*reads, MarkTask(marks)] if marks else reads

    def _schema_texts(
        self, table: TableName, transactions: list[CommittedTransaction], schemas: SchemaCache
    ) -> dict[int, str]:
        """Return the schemas of a table's records in these transactions, schema id -> JSON text.
        The registry may lack schemas of other tables; a record whose own schema is missing ends
        the read."""
        owners = [each for each in transactions if any(map(self.wants, each.topics))]
        ids = sorted({schema_id for transaction in owners for schema_id in transaction.schema_ids})
        found = {schema_id: schemas.find(schema_id) for schema_id in ids}
        namespace = table.record_namespace(self._options.prefix)
        return {i: json.dumps(schema) for i, schema in found.items() if schema and schema.get("namespace") == namespace}

    def weight(self, transaction: CommittedTransaction) -> int:
        """Return the approximate number of rows that the frame has for a transaction.

        The number is exact only if each event is one record, and no subtransaction was rolled back.
        """
        rows = sum(item.record_count for item in transaction.ranges if self.wants(item.topic))
        return rows + len(marks_of([transaction], self._wants_table)) if self._options.include_markers else rows

    def wants(self, topic: str) -> bool:
        if topic not in self._wanted_topics:
            self._wanted_topics[topic] = self._wants_topic(topic)
        return self._wanted_topics[topic]

    def _wants_topic(self, topic: str) -> bool:
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
            yield marks_batch(task.marks, self._options.marker_topic)
        if not isinstance(task, ReadTask):  # including Spark's own empty partition, if a batch read has nothing to read
            return
        for chunk in read_chunks(self._options.broker, task.reads):
            table = task.tables[chunk.read.topic]
            if self._frame is None:
                yield raw_batch(chunk, None if table is None else str(table))
            else:
                yield from self._frame.batches(chunk, task.schemas)


class TransactionShape:
    """Transactions, one row for each."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @property
    def schema(self) -> pa.Schema:
        return TRANSACTIONS

    def tasks(self, transactions: list[CommittedTransaction], _: SchemaCache) -> list[InputPartition]:
        transactions = [transaction for transaction in transactions if not transaction.is_notice]
        starts = range(0, len(transactions), _TRANSACTIONS_PER_TASK)
        slices = [transactions[start : start + _TRANSACTIONS_PER_TASK] for start in starts]
        return [TransactionTask(each, _tables_of(self._options, _topics_of(each))) for each in slices]

    def weight(self, transaction: CommittedTransaction) -> int:
        return 0 if transaction.is_notice else 1

    def wants(self, _: str) -> bool:
        return False  # the markers suffice: no records are read

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(task, TransactionTask):
            yield transactions_batch(task.transactions, task.tables)


def _topics_of(transactions: list[CommittedTransaction]) -> set[str]:
    return set().union(*(transaction.topics for transaction in transactions))


def _tables_of(options: Options, topics: set[str]) -> Tables:
    return {topic: table_of_topic(options.registry, options.prefix, topic) for topic in topics}


Shape: TypeAlias = ChangeShape | TransactionShape
