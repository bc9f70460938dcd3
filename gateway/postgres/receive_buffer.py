"""A buffer for bytes from the server, until whole messages can be taken. This module uses neither a
socket nor an event loop.

The buffer holds, in this order: whole CopyData frames that wait to be taken, then the beginning of
one message that is still arriving, then free space. Messages other than CopyData are passed to
`on_control` as soon as they are whole, and do not remain. A keepalive remains, because its place in
the stream has a meaning. But `on_keepalive` is called at once, because the reader may be waiting
for Kafka while the server waits for an answer.

Frames are found only here: `take` returns the bytes, and where the frames are in them.

A row larger than `largest_row` or a logical message larger than `largest_message` is not held. Its
header contains its length, so a drained frame with its first bytes is noted at once, and the rest
is dropped as it arrives. PostgreSQL sends up to 1 GB in one frame, and any user can make it do so
(`pg_logical_emit_message`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from gateway.pgoutput.letters import MESSAGE, ROW_MESSAGES
from gateway.postgres.copy_frames import (
    COPY_DATA,
    DRAINED,
    KEEPALIVE,
    PAYLOAD_AT,
    Frame,
    FrameError,
    Received,
    check_frame,
    checked_reply,
)

CAPACITY: Final = 1 << 18
"""The number of bytes that are taken at once and processed before Kafka is served again. With 1 MB,
the broker's answers would wait 60 ms at each of the eight steps of a Kafka transaction."""
# Reading stops when so little space is left that the system call would cost more than copying the
# bytes received.
_LEAST_SPACE: Final = 16 << 10
# PostgreSQL allocates at most 1 GB - 1 for one message (MaxAllocSize in memutils.h).
_LARGEST: Final = 1 << 30

LARGEST_ROW: Final = 64 << 20
LARGEST_MESSAGE: Final = 16 << 20
HEAD_BYTES: Final = 4096
"""The number of bytes that are kept of a drained payload. They contain the xid and relation oid of
a row, or the flags and prefix of a logical message."""

_HEADER: Final = struct.Struct("!BiB")
_FRAME: Final = struct.Struct("!BiBQ")
_CONTROL: Final = struct.Struct("!Bi")
_COPY_BOTH: Final = ord("W")
_DRAINED_BYTES: Final = PAYLOAD_AT + HEAD_BYTES


class ReceiveBuffer:
    """A buffer of whole frames and the message that is arriving. If `on_control(kind, body)`
    returns False, the stream ends after that message, and what follows is dropped.

    `add` raises FrameError. A message larger than `capacity` makes the buffer grow by doubling as
    its bytes arrive, up to its length; the buffer shrinks back when that message is taken. Rows and
    logical messages whose frame is longer than `largest_row` and `largest_message` are drained; no
    other message of pgoutput grows with the users' data.
    """

    def __init__(
        self,
        on_control: Callable[[int, bytes], bool],
        on_keepalive: Callable[[int, bool], None],
        capacity: int = CAPACITY,
        largest_row: int = LARGEST_ROW,
        largest_message: int = LARGEST_MESSAGE,
    ) -> None:
        self._on_control = on_control
        self._on_keepalive = on_keepalive
        self._capacity = capacity
        # A frame that fits into the buffer is held anyway, and one that is drained must be larger
        # than what is kept of it.
        least = max(capacity, 2 * _DRAINED_BYTES)
        self._largest_row = max(largest_row, least)
        self._largest_message = max(largest_message, least)
        self._draining = 0  # bytes to drop that have yet to arrive
        self._view = memoryview(bytearray(capacity))
        self._frames: list[Frame] = []
        self._complete = 0  # end of the whole frames
        self._filled = 0  # end of what has arrived
        self._copying = False  # CopyBothResponse has arrived: frames follow
        self._ended = False

    @property
    def complete_bytes(self) -> int:
        """The number of bytes that `take` would return now."""
        return self._complete

    @property
    def partial_bytes(self) -> int:
        """The number of bytes that have arrived of a message that is not whole."""
        return self._filled - self._complete

    @property
    def holds_data(self) -> bool:
        """Whether the buffer holds a whole frame that is not a keepalive."""
        return any(kind != KEEPALIVE for kind, *_ in self._frames)

    @property
    def is_full(self) -> bool:
        """Whether reading should pause until `take` is called, because little space is left and
        there is something to take."""
        return self._complete > 0 and len(self._view) - self._filled < min(_LEAST_SPACE, self._capacity // 2)

    def space(self) -> memoryview:
        """Return the memory into which to receive. It is never empty, and is valid until the next
        call of any method."""
        if self._filled == len(self._view):
            grown = memoryview(bytearray(max(len(self._view) + 1, min(2 * len(self._view), self._wanted()))))
            grown[: self._filled] = self._view[: self._filled]
            self._view = grown
        return self._view[self._filled :]

    def _wanted(self) -> int:
        """Return the size of a buffer that holds the whole of the message that is still arriving,
        and what precedes it."""
        if self._filled - self._complete < _CONTROL.size:
            return 2 * len(self._view)
        _, length = _CONTROL.unpack_from(self._view, self._complete)
        return int(self._complete + 1 + length)

    def add(self, count: int) -> None:
        """Process the `count` bytes that were written to `space()`."""
        self._filled += count
        if self._draining:
            self._drop()
        while not self._ended and self._scan_frames() and self._take_control():
            pass

    def take(self) -> Received:
        """Remove the whole frames from the buffer and return them. The frames are copied once, so
        that the reader can slice memory that does not change."""
        view, complete = self._view, self._complete
        data = bytes(view[:complete])
        rest = self._filled - complete
        if len(view) > self._capacity and rest <= self._capacity:
            self._view = memoryview(bytearray(self._capacity))
        self._view[:rest] = view[complete : self._filled]
        self._complete, self._filled = 0, rest
        frames, self._frames = self._frames, []
        return Received(data, frames)

    def _scan_frames(self) -> bool:
        """Note the frames that are whole, and move `_complete` past them. Return True if another
        kind of message follows."""
        unpack, frames = _FRAME.unpack_from, self._frames
        view, filled = self._view, self._filled
        position = self._complete
        if not self._copying:
            return filled > position
        try:
            while filled - position >= 14:
                kind, length, content, lsn = unpack(view, position)
                if kind != 100:
                    return True
                end = position + 1 + length
                if content == 119 and length >= 30:
                    if end <= filled:
                        frames.append((119, lsn, position + 30, end))
                        position = end
                        continue
                    if not self._drain(position, length, lsn):
                        return False
                    position, filled = self._complete, self._filled
                else:
                    check_frame(length, content)
                    if end > filled:
                        return False
                    frames.append((107, lsn, self._report_keepalive(lsn, end), end))
                    position = end
        finally:
            self._complete = position
        if filled - position >= 6 and view[position] == COPY_DATA:
            _, length, content = _HEADER.unpack_from(view, position)
            check_frame(length, content)
        return filled > position and view[position] != COPY_DATA

    def _check_length(self, length: int) -> None:
        if not 4 <= length <= _LARGEST:
            raise FrameError("message", 1, f"a length from 4 to {_LARGEST}", str(length))

    def _drain(self, position: int, length: int, lsn: int) -> bool:
        """Note the incomplete frame at `position` as a drained one if it is too large and the bytes
        to keep have arrived. Return whether it was noted."""
        self._check_length(length)
        view, start, end = self._view, position + PAYLOAD_AT, position + _DRAINED_BYTES
        if self._filled < end:
            return False
        kind = view[start]
        if kind == MESSAGE:
            is_held = length <= self._largest_message
        else:
            is_held = length <= self._largest_row or kind not in ROW_MESSAGES
        if is_held:
            return False
        self._frames.append((DRAINED, lsn, start, end))
        self._complete = end
        self._draining = position + 1 + length - end
        self._drop()
        return True

    def _drop(self) -> None:
        """Remove from the buffer, at `_complete`, the bytes that have arrived of the rest of a
        drained frame."""
        dropped = min(self._draining, self._filled - self._complete)
        rest = self._filled - self._complete - dropped
        view, start = self._view, self._complete
        view[start : start + rest] = view[start + dropped : self._filled]
        self._draining -= dropped
        self._filled = start + rest

    def _report_keepalive(self, end_lsn: int, end: int) -> int:
        """Report the keepalive that ends at `end`. Return 1 if the server asks for a reply,
        otherwise 0."""
        reply = checked_reply(self._view[end - 1])
        self._on_keepalive(end_lsn, reply == 1)
        return reply

    def _take_control(self) -> bool:
        """Remove the message after the whole frames from the buffer, if it is whole. Return True if
        more may follow."""
        view, position = self._view, self._complete
        if self._filled - position < 5:
            return False
        kind, length = _CONTROL.unpack_from(view, position)
        self._check_length(length)
        if kind == COPY_DATA:
            raise FrameError("message", 0, "CopyBothResponse first", "CopyData")
        end = position + 1 + length
        if end > self._filled:
            return False
        body = bytes(view[position + 5 : end])
        rest = self._filled - end
        view[position : position + rest] = view[end : self._filled]
        self._filled = position + rest
        self._copying = self._copying or kind == _COPY_BOTH
        self._ended = not self._on_control(kind, body)
        return not self._ended
