"""Map topics to tables and back. The name of a topic tells its table if it contains the table's
full name; otherwise `pg.relation` of its schema does."""

from __future__ import annotations

from schemas.schema_metadata import recorded_relation
from schemas.topic_names import (
    DEBEZIUM_TRANSACTION_RECORD,
    may_hold,
    message_topic,
    relation_of_topic,
    topic_is_free,
    topic_names,
    transaction_topic,
    value_subject,
)
from spark_consumer.errors import MalformedRecord, OptionError, SourceRefused, SourceUnavailable
from spark_consumer.reader.registry import Registry, Schema
from spark_consumer.tables import TableName

_SUFFIX = value_subject("")
LOST_SCHEMAS = (
    "The schema registry has lost schemas and given their IDs to others, or it is another one than the gateway uses. "
    "Check the option registry.url, or restore the registry from a backup that has all schemas, and start again."
)

_tables: dict[tuple[str, str], TableName | None] = {}
"""Tables of topics without the table's full name, by registry and topic. A topic never changes its
table."""
_namespaces: dict[tuple[str, str], str | None] = {}
"""Namespaces of schemas by registry and subject; None for those of other applications."""


def table_of_topic(registry: Registry, prefix: str, topic: str) -> TableName | None:
    """Return the table of a topic; None for the topics of markers and messages. Raises
    SourceUnavailable and SourceRefused."""
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
    """Return all schemas of a table by id, the newest last. Raises SourceUnavailable and
    SourceRefused, also if the registry has no schema of the table, or shows none to this user.

    The table may have had several topics: the setting kafka.topic_names can be changed. Subjects of
    other applications are passed over.
    """
    namespace = table.record_namespace(prefix)
    found: list[dict[int, Schema]] = []
    refused = ""
    for subject in _subjects_of_table(registry, prefix, table):
        try:
            if _namespace(registry, subject) == namespace:
                found.append(registry.versions(subject))
        except SourceRefused as problem:
            refused = refused or str(problem)
    if not any(found):
        missing = f"the schema registry has no schema of {table} under the prefix {prefix!r}"
        if refused:
            raise SourceRefused(f"{missing} that this user may read: {refused}")
        raise SourceUnavailable(
            missing,
            hint="Check the options `prefix` and `registry.url`, and that the gateway has written to this prefix.",
        )
    schemas: dict[int, Schema] = {}
    for versions in sorted(filter(None, found), key=lambda versions: next(reversed(versions))):
        schemas |= versions
    return schemas


def _namespace(registry: Registry, subject: str) -> str | None:
    """Return the namespace of a subject's newest schema; None if there is none."""
    place = registry.settings.get("url", ""), subject
    if place not in _namespaces:
        found = registry.find(subject)
        if found is None:  # there may be one later
            return None
        _namespaces[place] = found[1].get("namespace")
    return _namespaces[place]


def _subjects_of_table(registry: Registry, prefix: str, table: TableName) -> list[str]:
    """Return the subjects that may be those of a table: of its default names, and of all topics
    that the setting kafka.topic_names has named. The names of all other topics follow from their
    tables."""
    default = [value_subject(topic) for topic in topic_names(prefix, table.namespace, table.name)]
    try:
        subjects = registry.subjects(f"{prefix}.")
    except SourceRefused:  # a reader may have the permission to read subjects, but not to list them
        return default
    topics = [subject.removesuffix(_SUFFIX) for subject in subjects if subject.endswith(_SUFFIX)]
    named = [value_subject(topic) for topic in topics if topic_is_free(prefix, topic)]
    return ([subject for subject in default if subject in subjects] or default) + named


def table_of_schema(schema: Schema) -> TableName | None:
    """Return the table of a value schema; None for the schema of messages."""
    relation = recorded_relation(schema)
    return None if relation is None else TableName(*relation)


def topic_may_hold(prefix: str, topic: str, table: TableName | None) -> bool:
    """Return whether a topic may have records of this table, or messages if it is None."""
    if table is None:
        return topic == message_topic(prefix)
    return may_hold(prefix, topic, table.namespace, table.name)


def check_table(table: TableName, schema_id: int, schema: Schema) -> None:
    """Raise MalformedRecord if the schema of a table's records is that of another table."""
    if table_of_schema(schema) != table:
        raise other_schema(str(table), schema_id, schema)


def other_schema(place: str, schema_id: int, schema: Schema) -> MalformedRecord:
    """Return the error for a record whose schema is that of another table."""
    table = table_of_schema(schema)
    return MalformedRecord(
        f"{place}: a record has the schema {schema_id}, which is that of {table or schema.get('name')}",
        hint=LOST_SCHEMAS,
    )
