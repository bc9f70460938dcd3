"""The columns of a table's typed frame, which are those of the schema in force.

The newest version in the registry need not be in force. Its transaction may have been rolled back
after it was streamed, or the table was altered back: a version that is used again is not registered
again. The markers list the versions that committed transactions have used.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_consumer.errors import UnsupportedSchema
from spark_consumer.reader.marker_log import STEP, MarkerLog
from spark_consumer.reader.markers import MarkerDecoder
from spark_consumer.reader.registry import Schema, SchemaCache
from spark_consumer.reader.topics import schemas_of_table
from spark_consumer.source.frames import TableFrame
from spark_consumer.source.options import Options
from spark_consumer.tables import TableName

_MARKERS_BACK = STEP  # a second


def table_frame(options: Options, table: TableName) -> TableFrame:
    """Return the frame of a table. Raises SourceUnavailable, SourceRefused, UnsupportedSchema."""
    return frame_and_schemas(options, table)[0]


def frame_and_schemas(options: Options, table: TableName) -> tuple[TableFrame, dict[int, Schema]]:
    """Return the frame of a table, and all schemas that the registry has for it, by id. Raises what
    `table_frame` raises."""
    schemas = schemas_of_table(options.registry, options.prefix, table)
    used = _last_used(options, schemas) if len(schemas) > 1 else []
    *others, last = used or list(schemas)[-1:]
    try:
        # The last transaction may have rolled a version back to a savepoint, or returned to one.
        frame = TableFrame.of(schemas[last], [schemas[schema_id] for schema_id in reversed(others)])
    except UnsupportedSchema:  # two names of a column differ only in case
        frame = TableFrame.of(schemas[last])
    return frame, schemas


def _last_used(options: Options, schema_ids: Collection[int]) -> list[int]:
    """Return those of the schemas that the last committed transaction with any of them has used, in
    order of first use. Return none if there is no such transaction among the last markers: the
    newest version is then probably in force, since most transactions are not rolled back."""
    topic = options.marker_topic
    log = MarkerLog(options.broker, topic, MarkerDecoder(SchemaCache(options.registry), topic))
    transaction = log.last_where(lambda each: not set(each.schema_ids).isdisjoint(schema_ids), _MARKERS_BACK)
    return [] if transaction is None else [each for each in transaction.schema_ids if each in schema_ids]
