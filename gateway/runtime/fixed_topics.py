"""Topics that belong to no relation: those of markers (or of Debezium's transaction metadata) and
of logical decoding messages."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from gateway.config.debezium_options import DebeziumOptions
from gateway.config.settings import Settings
from gateway.debezium.envelope_schema import MESSAGE_KEY, TRANSACTION_KEY, TRANSACTION_VALUE, Schema, message_schema
from gateway.debezium.json_machine import JsonSink
from gateway.debezium.machine import DebeziumTopics, KeyedSink
from gateway.events.logical_message import LogicalMessageEncoder
from gateway.kafka.batches import BatchWriter, TopicSink
from gateway.kafka.topics import Topics
from gateway.observe import metrics
from gateway.transactions.transaction import ExcludedMessage, MessageTopic
from schemas.lsn import Lsn
from schemas.records import LOGICAL_MESSAGE, POSITION, TRANSACTION_MARKER
from schemas.registry_client import RegistryClient
from schemas.topic_names import POSITION_TOPIC, key_subject, message_topic, transaction_topic, value_subject
from schemas.wire_format import frame

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FixedSchemas:
    """Schema ids in the registry. `transaction` is that of markers or, in Debezium's dialect, of
    BEGIN and END records. Those, and Debezium's messages, also have key schemas."""

    transaction: int
    position: int
    message: int
    transaction_key: int = 0
    message_key: int = 0


async def register_fixed_schemas(registry: RegistryClient, settings: Settings) -> FixedSchemas:
    """Register the schemas of the fixed topics and return their ids. Raises SchemaError."""
    markers, messages = transaction_topic(settings.kafka.prefix), message_topic(settings.kafka.prefix)
    is_debezium = settings.writes_debezium
    return FixedSchemas(
        await registry.register(value_subject(markers), TRANSACTION_VALUE if is_debezium else TRANSACTION_MARKER),
        await registry.register(value_subject(POSITION_TOPIC), POSITION),
        await registry.register(
            value_subject(messages), message_schema(settings.debezium.options()) if is_debezium else LOGICAL_MESSAGE
        ),
        await registry.register(key_subject(markers), TRANSACTION_KEY) if is_debezium else 0,
        await registry.register(key_subject(messages), MESSAGE_KEY) if is_debezium else 0,
    )


async def open_message_topic(
    settings: Settings, topics: Topics, writer: BatchWriter, schema_id: int, *, is_new: bool
) -> MessageTopic:
    """Open the topic of logical decoding messages. It may be created only if `is_new`; otherwise, a
    missing topic was deleted. Raises WalgateError."""
    topic = message_topic(settings.kafka.prefix)
    if not is_new:
        await topics.refuse_deleted(await topics.missing([topic]))
    await topics.ensure([topic])
    return MessageTopic(
        topic,
        schema_id,
        LogicalMessageEncoder(frame(schema_id)).encode,
        _message_outlet(topic, topics, writer),
        _log_left_out,
        frozenset(settings.source.message_prefixes),
        heartbeats_only=not settings.source.messages,
    )


def debezium_topics(
    prefix: str, topics: Topics, writer: BatchWriter, schemas: FixedSchemas, options: DebeziumOptions
) -> DebeziumTopics:
    """Return the topics of Debezium's dialect. Call it after `open_message_topic`, which creates
    one of them."""
    outlet = _message_outlet(message_topic(prefix), topics, writer)
    messages = _with_format(outlet, MESSAGE_KEY, message_schema(options), options)
    frames = frame(schemas.message_key), frame(schemas.message)
    if not options.provide_transaction_metadata:
        return DebeziumTopics(messages, *frames)
    topic = transaction_topic(prefix)
    outlet = writer.outlet(topic, topics.partition_count(topic), "BEGIN and END")
    transactions = _with_format(outlet, TRANSACTION_KEY, TRANSACTION_VALUE, options)
    return DebeziumTopics(messages, *frames, transactions, frame(schemas.transaction_key), frame(schemas.transaction))


def _message_outlet(topic: str, topics: Topics, writer: BatchWriter) -> TopicSink:
    return writer.outlet(topic, topics.partition_count(topic), "logical messages")


def _with_format(outlet: TopicSink, key: Schema, value: Schema, options: DebeziumOptions) -> KeyedSink:
    if options.format == "avro":
        return outlet
    return JsonSink(outlet, key, value, with_schema=options.format_schemas_enable)


def _log_left_out(message: ExcludedMessage) -> None:
    metrics.MESSAGES_EXCLUDED.inc()
    log.warning(
        "message_excluded",
        reason="a logical decoding message is larger than kafka.max_record_bytes",
        prefix=message.prefix,
        message_bytes=message.message_bytes,
        message_lsn=str(Lsn(message.message_lsn)),
        xid=message.xid,
        hint="this is recorded in the field `excluded` of the transaction's marker; source.message_prefixes limits which "
        "logical decoding messages are written to Kafka",
    )
