"""The columns of a table's typed frame, which are those of the schema in force.

The newest version in the registry need not be in force. Its transaction may have been rolled back
after it was streamed, or the table was altered back: a version that is used again is not registered
again. The markers list the versions that committed transactions have used.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

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
    """Return the frame of a table. Raises SourceUnavailable, SourceRefused and
    UnsupportedSchema."""
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


class _Search(NamedTuple):
    """Result of a search among the markers before `end`: offset and schemas of the last transaction
    with any of the schemas."""

    end: int = 0
    offset: int = -1
    used: Sequence[int] = ()


# The last searches of this process, by broker, topic and schemas. Without them, a query that
# decodes many tables in each batch would read all the markers for each table that does not change.
_searches: dict[tuple[Hashable, str, frozenset[int]], _Search] = {}
_SEARCHES = 1_000


def _last_used(options: Options, schema_ids: Collection[int]) -> Sequence[int]:
    """Return those of the schemas that the last committed transaction with any of them has used, in
    order of first use. Return none if there is no such transaction among the last markers: the
    newest version is then probably in force, since most transactions are not rolled back."""
    topic = options.marker_topic
    log = MarkerLog(options.broker, topic, MarkerDecoder(SchemaCache(options.registry), topic))
    low, end = log.bounds()
    start = max(low, end - _MARKERS_BACK)
    key = (tuple(sorted(options.broker.settings.items())), topic, frozenset(schema_ids))
    before = _searches.get(key, _Search())
    if before.end > end:  # the topic was recreated
        before = _Search()
    found = log.last_where(lambda each: not set(each.schema_ids).isdisjoint(schema_ids), max(start, before.end), end)
    if found is not None:
        before = _Search(end, found.marker_offset, [each for each in found.schema_ids if each in schema_ids])
    elif before.offset < start:
        before = _Search()
    if len(_searches) >= _SEARCHES:
        _searches.clear()
    _searches[key] = before._replace(end=end)
    return before.used
