"""Reads the protocol's field types from one message, each checked before it is believed.

A message is complete by definition (CopyData gave its length), so a short one is an error, and so
is one byte too many: every reader ends with `finish`. What is refused beyond the length is what the
manual fixes (55.9, Logical Replication Message Formats) and what PostgreSQL's own reader refuses
(`proto.c`, `worker.c`), nothing else.
"""

from __future__ import annotations

import struct
from typing import Final

from gateway.pgoutput.errors import PgOutputError
from schemas.lsn import Lsn

# Microseconds from the Unix epoch to 2000-01-01, where PostgreSQL's time begins.
PG_EPOCH: Final = 946_684_800_000_000
# PostgreSQL's calendar begins in 4714 BC; its last 30 years do not fit a signed 64-bit count from
# the Unix epoch, as long as its end stays free: '-infinity' and 'infinity' are the ends of the
# wire's range, and of ours.
FIRST_TIME: Final = -211_813_488_000_000_000
LAST_TIME: Final = (1 << 63) - 2 - PG_EPOCH
_INFINITIES: Final = (-(1 << 63), (1 << 63) - 1)

_INT16: Final = struct.Struct("!h")
_INT32: Final = struct.Struct("!i")
_UINT32: Final = struct.Struct("!I")
_INT64: Final = struct.Struct("!q")
_UINT64: Final = struct.Struct("!Q")


class Cursor:
    """A position in one message. Every method raises PgOutputError and moves `position` to the byte
    after what it read.

        `origin`: where `payload` begins in the message, for a caller that has read its head. Offsets in
        errors count from there.
    """

    __slots__ = ("message_name", "origin", "payload", "position")

    def __init__(self, payload: bytes, position: int, message_name: str, origin: int = 0) -> None:
        self.payload = payload
        self.position = position
        self.message_name = message_name
        self.origin = origin

    def remaining(self) -> int:
        return len(self.payload) - self.position

    def error(self, field: str, offset: int, expected: str, actual: str) -> PgOutputError:
        return PgOutputError(self.message_name, field, self.origin + offset, expected, actual)

    def read_byte(self, field: str) -> int:
        position = self._claim(field, 1)
        return self.payload[position]

    def read_int16(self, field: str) -> int:
        position = self._claim(field, 2)
        number: int = _INT16.unpack_from(self.payload, position)[0]
        return number

    def read_int32(self, field: str) -> int:
        position = self._claim(field, 4)
        number: int = _INT32.unpack_from(self.payload, position)[0]
        return number

    def read_uint32(self, field: str) -> int:
        """TransactionId or Oid: unsigned on the server, Int32 in the manual."""
        position = self._claim(field, 4)
        number: int = _UINT32.unpack_from(self.payload, position)[0]
        return number

    def read_lsn(self, field: str) -> Lsn:
        position = self._claim(field, 8)
        return int.__new__(Lsn, _UINT64.unpack_from(self.payload, position)[0])  # in range as it is 64 bits

    def read_set_lsn(self, field: str) -> Lsn:
        """An LSN of which `proto.c` says `elog(ERROR, "... not set in ... message")` when it is
        0/0."""
        lsn = self.read_lsn(field)
        if not lsn:
            raise self.error(field, self.position - 8, "a nonzero LSN", "0/0")
        return lsn

    def read_time(self, field: str) -> int:
        """Microseconds since the Unix epoch, UTC; on the wire since 2000-01-01.

        Infinite times do occur: a transaction with a replication origin has the time that
        `pg_replication_origin_xact_setup` was given.
        """
        position = self._claim(field, 8)
        time: int = _INT64.unpack_from(self.payload, position)[0]
        if FIRST_TIME <= time <= LAST_TIME:
            return time + PG_EPOCH
        if time in _INFINITIES:
            return time
        raise self.error(field, position, f"from {FIRST_TIME} to {LAST_TIME} microseconds since 2000-01-01", str(time))

    def read_unused_flags(self) -> int:
        """Int8(0): "Flags; currently unused." """
        flags = self.read_byte("flags")
        if flags:
            raise self.error("flags", self.position - 1, "0, the flags are unused", str(flags))
        return flags

    def read_flag(self, field: str) -> bool:
        """A byte that is 0 or 1."""
        flag = self.read_byte(field)
        if flag > 1:
            raise self.error(field, self.position - 1, "0 or 1", str(flag))
        return flag == 1

    def read_stream_xid(self) -> int:
        """Xid of a (sub)transaction in progress; `worker.c` refuses 0 as invalid."""
        xid = self.read_uint32("xid")
        if not xid:
            raise self.error("xid", self.position - 4, "a transaction id", "0")
        return xid

    def read_string(self, field: str) -> str:
        """String: bytes up to a NUL, UTF-8 because the session's client_encoding is."""
        start = self.position
        end = self.payload.find(b"\0", start)
        if end < 0:
            raise self.error(field, start, "a NUL-terminated string", f"{self.remaining()} bytes without NUL")
        try:
            text = self.payload[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.error(field, start + error.start, "UTF-8", f"an invalid byte ({error.reason})") from None
        self.position = end + 1
        return text

    def read_bytes(self, field: str) -> bytes:
        """Int32 length, then so many bytes."""
        length = self.read_int32(f"length of {field}")
        if length < 0:
            raise self.error(f"length of {field}", self.position - 4, "0 or more", str(length))
        position = self._claim(field, length)
        return self.payload[position : position + length]

    def read_count(self, field: str) -> int:
        """Int16 number of what follows. It may lie: never make room for so many before they are
        read."""
        count = self.read_int16(field)
        if count < 0:
            raise self.error(field, self.position - 2, "0 or more", str(count))
        return count

    def finish(self) -> None:
        if self.position != len(self.payload):
            raise self.error("end", self.position, "the end of the message", f"{self.remaining()} more bytes")

    def _claim(self, field: str, size: int) -> int:
        """Moves behind the next `size` bytes and returns where they begin."""
        position = self.position
        if size > len(self.payload) - position:
            raise self.error(field, position, f"{size} bytes", f"{self.remaining()} bytes up to the end")
        self.position = position + size
        return position
