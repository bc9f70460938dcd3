"""Encode logical messages (pg_logical_emit_message) in Avro:
schemas/records/LogicalMessage.avsc."""

from __future__ import annotations

from gateway.events.transaction_context import TransactionContext
from schemas.varint import encode_long

_MESSAGE = b"\0"


def encode_logical_message(
    frame: bytes,
    context: TransactionContext,
    change_lsn: int,
    ordinal: int,
    transactional: bool,
    message_lsn: int,
    prefix: str,
    content: bytes,
) -> bytes:
    """Encode a logical message. `frame` is the Confluent frame of the LogicalMessage schema."""
    name = prefix.encode()
    return b"".join(
        (
            frame,
            _MESSAGE,
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
