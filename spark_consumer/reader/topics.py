"""Map topics to tables and back. The name of a topic tells its table if it contains the table's
full name; otherwise `pg.relation` of its schema does."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.schema_metadata import recorded_relation
from schemas.topic_names import (
    DEBEZIUM_TRANSACTION_RECORD,
    is_hashed,
    message_topic,
    relation_of_topic,
    topic_names,
    transaction_topic,
    value_subject,
)
from spark_consumer.errors import OptionError, SourceRefused, SourceUnavailable
from spark_consumer.reader.registry import Registry, Schema
from spark_consumer.tables import TableName

_SUFFIX = value_subject("")

_tables: dict[tuple[str, str], TableName | None] = {}
"""Tables of topics without the table's full name, by registry and topic. A topic never changes its
table."""


def table_of_topic(registry: Registry, prefix: str, topic: str) -> TableName | None:
    """Return the table of a topic; None for the topics of markers and messages. Raises
    SourceUnavailable, SourceRefused."""
    relation = relation_of_topic(prefix, topic)
    if relation is not None:
        return TableName(*relation)
    if topic in (transaction_topic(prefix), message_topic(prefix)):
        return None
    place = registry.settings.get("url", ""), topic
    if place not in _tables:
        _tables[place] = table_of_schema(registry.latest(value_subject(topic))[1])
    return _tables[place]


def refuse_debezium(registry: Registry, prefix: str) -> None:
    """Raise OptionError if the gateway writes the topics of the prefix in Debezium's format."""
    found = registry.find(value_subject(transaction_topic(prefix)))
    if found is not None and found[1].get("name") == DEBEZIUM_TRANSACTION_RECORD:
        raise OptionError(
            f"the topics of prefix {prefix!r} have Debezium's record format (kafka.dialect = debezium), which has no "
            "markers; this source needs the manifests in them. Set kafka.dialect = walgate in a gateway with a slot and a "
            "prefix of its own"
        )


def schemas_of_table(registry: Registry, prefix: str, table: TableName) -> dict[int, Schema]:
    """Return all schemas of a table by id, the newest last. Raises SourceRefused, and
    SourceUnavailable if the registry has no schema of the table.

    The table may have had several topics: the setting kafka.topic_names can be changed.
    """
    namespace = table.record_namespace(prefix)
    newest = {}
    for subject in _subjects_of_table(registry, prefix, table):
        found = registry.find(subject)
        if found is not None and found[1].get("namespace") == namespace:
            newest[subject] = found[0]
    if not newest:
        raise SourceUnavailable(
            f"the schema registry has no schema of {table} under the prefix {prefix!r}",
            hint="Check the options `prefix` and `registry.url`, and that the gateway has written to this prefix.",
        )
    schemas: dict[int, Schema] = {}
    for subject in sorted(newest, key=lambda subject: newest[subject]):
        schemas |= registry.versions(subject)
    return schemas


def _subjects_of_table(registry: Registry, prefix: str, table: TableName) -> Iterator[str]:
    """Yield the subjects that may be those of a table: of its default names, and of all topics that
    the setting kafka.topic_names has named. The names of all other topics follow from their
    tables."""
    yield from map(value_subject, topic_names(prefix, table.namespace, table.name))
    try:
        subjects = registry.subjects(f"{prefix}.")
    except SourceRefused:  # a reader may have the permission to read subjects, but not to list them
        return
    others = {transaction_topic(prefix), message_topic(prefix)}
    for subject in subjects:
        topic = subject.removesuffix(_SUFFIX)
        if not (topic in others or topic == subject or is_hashed(topic) or relation_of_topic(prefix, topic)):
            yield subject


def table_of_schema(schema: Schema) -> TableName | None:
    """Return the table of a value schema; None for the schema of messages."""
    relation = recorded_relation(schema)
    return None if relation is None else TableName(*relation)
