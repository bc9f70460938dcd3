"""Message: the logical decoding message that `pg_logical_emit_message` wrote to the WAL."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.pgoutput.cursor import Cursor
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Message:
    """'M': "Identifies the message as a logical decoding message." It is sent if the `messages`
    option is on."""

    xid: int | None
    """ "Xid of the transaction (only present for streamed transactions). [...] since protocol
    version 2." """
    transactional: bool
    """ "Flags; Either 0 for no flags or 1 if the logical decoding message is transactional." """
    message_lsn: Lsn
    """ "The LSN of the logical decoding message." """
    prefix: str
    """ "The prefix of the logical decoding message." """
    content: bytes = field(repr=False)
    """ "The content of the logical decoding message." It may be any bytes, text or binary."""


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The fields that precede the content of a message; `prefix` may be truncated."""

    xid: int | None
    transactional: bool
    message_lsn: Lsn
    prefix: str


def read_message_head(payload: bytes, in_stream: bool) -> MessageHead:
    """Read the fields before the content from the first bytes of a message. These may contain only
    a part of the prefix, whose length is not limited."""
    cursor = Cursor(payload, 1, "Message")
    return MessageHead(
        xid=cursor.read_stream_xid() if in_stream else None,
        transactional=cursor.read_flag("flags"),
        message_lsn=cursor.read_lsn("message_lsn"),
        prefix=payload[cursor.position :].partition(b"\0")[0].decode("utf-8", "replace"),
    )


def read_message(cursor: Cursor, in_stream: bool) -> Message:
    return Message(
        xid=cursor.read_stream_xid() if in_stream else None,
        transactional=cursor.read_flag("flags"),
        message_lsn=cursor.read_lsn("message_lsn"),
        prefix=cursor.read_string("prefix"),
        content=cursor.read_bytes("content"),
    )
