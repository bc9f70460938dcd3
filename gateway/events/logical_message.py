"""Encodes logical messages (pg_logical_emit_message) in Avro:
schemas/records/LogicalMessage.avsc."""

from __future__ import annotations

from gateway.events.transaction_context import TransactionContext
from schemas.varint import encode_long

_MESSAGE = b"\0"


class LogicalMessageEncoder:
    """Encodes logical messages. `frame` is the Confluent frame of the LogicalMessage schema."""

    def __init__(self, frame: bytes) -> None:
        self._head = frame + _MESSAGE

    def encode(
        self,
        context: TransactionContext,
        change_lsn: int,
        ordinal: int,
        transactional: bool,
        message_lsn: int,
        prefix: str,
        content: bytes,
    ) -> bytes:
        name = prefix.encode()
        return b"".join(
            (
                self._head,
                context.identity,
                encode_long(change_lsn),
                encode_long(ordinal),
                context.commit,
                b"\1" if transactional else b"\0",
                encode_long(message_lsn),
                encode_long(len(name)),
                name,
                encode_long(len(content)),
                content,
            )
        )
