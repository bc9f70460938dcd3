"""CopyData frames of a replication stream (PostgreSQL manual, 54.4 Streaming Replication Protocol
and 54.7 Message Formats).

    XLogData   'd' Int32 length  'w' Int64 start LSN  Int64 end of WAL  Int64 time
               payload (one pgoutput message)
    Keepalive  'd' Int32 length  'k' Int64 end of WAL Int64 time        Byte1 reply requested
    Status     'd' Int32 length  'r' Int64 written    Int64 flushed     Int64 applied
               Int64 time        Byte1 reply requested

LSNs are unsigned, times are in microseconds since 2000-01-01, and the length includes itself but
not the 'd'.

A Frame says where an XLogData or a Keepalive is in the bytes that were received. The receive
buffer, which finds the frames, has a third kind: the drained frame. It is an XLogData that is too
large to be held; only the first bytes of its payload are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from librt.strings import read_i32_be

from gateway.errors import StopForOperator

XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
COPY_DATA: Final = ord("d")
HEADER_BYTES: Final = 5
"""The size of the letter and the length of each message."""
DRAINED: Final = 0
"""The kind of a drained frame. No message from a server has this letter."""

Frame = tuple[int, int, int, int]
"""A frame is one of

    (XLOG_DATA, start LSN, first byte of the payload, end of the payload)
    (DRAINED, start LSN, first byte of the payload, end of what was kept of it)
    (KEEPALIVE, end of WAL, 1 if the server asks for a reply, end of the frame)

This is a plain tuple, because there is one for each row."""


class Received(NamedTuple):
    """Bytes from the server, and the frames in them, in order."""

    data: bytes
    frames: list[Frame]


# After 'd': the length, 'w', three Int64, and at least the letter of a pgoutput message.
XLOG_DATA_LENGTH: Final = 4 + 25 + 1
KEEPALIVE_LENGTH: Final = 4 + 18
PAYLOAD_AT: Final = 1 + 4 + 25
_STATUS: Final = struct.Struct("!BiBQQQqB")
_PG_EPOCH_S: Final = 946_684_800


class FrameError(StopForOperator):
    """The server sent something that the protocol does not allow. `offset` counts from the first
    byte of the message."""

    def __init__(self, what: str, offset: int, expected: str, actual: str) -> None:
        super().__init__(
            f"replication stream: {what} at byte {offset}: expected {expected}, got {actual}",
            hint="check whether there is a proxy or pooler in between. If there is none, report the error with the "
            "versions of PostgreSQL and of the gateway",
        )
        self.offset = offset


def split(data: bytes) -> Iterator[Frame]:
    """Yield the frames of a file that consists of whole CopyData frames. Raises FrameError at
    anything else, after yielding the frames that precede it. (ReceiveBuffer splits the stream.)"""
    position, size = 0, len(data)
    while position < size:
        if data[position] != COPY_DATA:
            raise FrameError("message", 0, "CopyData 'd'", f"byte 0x{data[position]:02x}")
        if size - position < HEADER_BYTES + 1:
            raise FrameError("CopyData", 0, "at least 6 bytes", str(size - position))
        length, content = read_i32_be(data, position + 1), data[position + HEADER_BYTES]
        check_frame(length, content)
        end = position + 1 + length
        if end > size:
            raise FrameError("CopyData", 0, f"{length + 1} bytes", str(size - position))
        lsn = int.from_bytes(data[position + 6 : position + 14])
        third = position + PAYLOAD_AT if content == XLOG_DATA else checked_reply(data[end - 1])
        yield content, lsn, third, end
        position = end


def check_frame(length: int, content: int) -> None:
    """Raise FrameError unless a CopyData of this length, whose content begins with the byte
    `content`, is an XLogData or a Keepalive."""
    if content == KEEPALIVE:
        if length != KEEPALIVE_LENGTH:
            raise FrameError("keepalive", 1, f"the length {KEEPALIVE_LENGTH}", str(length))
    elif content != XLOG_DATA:
        raise FrameError("CopyData", 5, "'w' or 'k'", f"byte 0x{content:02x}")
    elif length < XLOG_DATA_LENGTH:
        raise FrameError("XLogData", 1, f"a length of at least {XLOG_DATA_LENGTH}", str(length))


def checked_reply(reply: int) -> int:
    """Return the last byte of a Keepalive. Raises FrameError unless it is 0 or 1."""
    if reply > 1:
        raise FrameError("keepalive", KEEPALIVE_LENGTH, "0 or 1", str(reply))
    return reply


def skip_messages(data: bytes, start: int, largest: int) -> int:
    """Return where data[start:], which begins with a message, has the first header that is not
    whole, or whose length is greater than `largest` or less than 4. The last message may end after
    `data`.

    0.1 us a message, compiled 0.01 us: all of a snapshot's rows pass here.
    """
    at = start
    with suppress(IndexError):
        while 4 <= (length := read_i32_be(data, at + 1)) <= largest:
            at += 1 + length
    return at


def drained_size(data: bytes, start: int) -> int:
    """Return the size in bytes of the whole payload of a drained frame. The payload begins at
    `start`."""
    length: int = read_i32_be(data, start - PAYLOAD_AT + 1)
    return 1 + length - PAYLOAD_AT


def standby_status(written_lsn: int, flush_lsn: int, now_s: float, *, reply_requested: bool = False) -> bytes:
    """Return a framed standby status update. The applied LSN equals the flushed one, as both mean
    that changes are durable in Kafka.

    `now_s` is Unix time; the server only shows it (pg_stat_replication.reply_time).
    """
    time_us = int((now_s - _PG_EPOCH_S) * 1_000_000)
    return _STATUS.pack(COPY_DATA, 38, ord("r"), written_lsn, flush_lsn, flush_lsn, time_us, reply_requested)
