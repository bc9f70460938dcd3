"""Topics that belong to no relation: the topic of markers, or of what a dialect has instead of
markers, and the topic of logical decoding messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from gateway.config.source import SourceSettings
from gateway.kafka.batches import BatchWriter, TopicSink
from gateway.kafka.topics import Topics
from gateway.observe import metrics
from gateway.transactions.transaction import ExcludedMessage, MessageSelection
from schemas.lsn import Lsn
from schemas.topic_names import message_topic

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FixedSchemas:
    """Ids of schemas in the registry. `transaction` is the schema of markers, or of what a dialect
    has instead of markers. In a dialect without key schemas, their ids are 0."""

    transaction: int
    position: int
    message: int
    transaction_key: int = 0
    message_key: int = 0


async def open_message_topic(prefix: str, topics: Topics, *, is_new: bool) -> None:
    """Open the topic of logical decoding messages. The topic may be created only if `is_new`;
    otherwise, a missing topic was deleted. Raises WalgateError."""
    topic = message_topic(prefix)
    if not is_new:
        await topics.refuse_deleted(await topics.missing([topic]))
    await topics.ensure([topic])


def message_sink(prefix: str, topics: Topics, writer: BatchWriter) -> TopicSink:
    """Return the sink of logical decoding messages. Call it after `open_message_topic`."""
    topic = message_topic(prefix)
    return writer.sink(topic, topics.partition_count(topic), "logical messages")


def message_selection(source: SourceSettings, *, records_exclusions: bool) -> MessageSelection:
    """Return the rule that selects the logical decoding messages to publish and logs each one that
    is too large. `records_exclusions` says whether the dialect names such a message in the
    transaction's marker."""
    left_out = partial(_log_left_out, _IN_MARKER if records_exclusions else _IN_LOG)
    return MessageSelection(left_out, frozenset(source.message_prefixes), heartbeats_only=not source.messages)


_IN_MARKER: Final = "this is recorded in the field `excluded` of the transaction's marker"
_IN_LOG: Final = "in this kafka.dialect, only the log records this"


def _log_left_out(recorded: str, message: ExcludedMessage) -> None:
    metrics.MESSAGES_EXCLUDED.inc()
    log.warning(
        "message_excluded",
        reason="a logical decoding message is larger than kafka.max_record_bytes",
        prefix=message.prefix,
        message_bytes=message.message_bytes,
        message_lsn=str(Lsn(message.message_lsn)),
        xid=message.xid,
        hint=f"{recorded}; source.message_prefixes limits which logical decoding messages are written to Kafka",
    )
