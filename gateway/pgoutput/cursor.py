"""Read the fields of one message and check each of them.

CopyData contains the length of a message, so a message that is too short is an error, and so is one
byte too many: every reader ends with `finish`. Besides lengths, the cursor checks exactly what the
manual fixes (55.9, Logical Replication Message Formats) and what PostgreSQL's own reader rejects
(`proto.c`, `worker.c`).
"""

from __future__ import annotations

import struct
from typing import Final

from gateway.pgoutput.errors import PgOutputError
from schemas.lsn import Lsn

# Microseconds from the Unix epoch to 2000-01-01, where PostgreSQL's time begins.
PG_EPOCH: Final = 946_684_800_000_000
# PostgreSQL's calendar begins in 4714 BC, and its last 30 years do not fit into a signed 64-bit
# number of microseconds since the Unix epoch. '-infinity' and 'infinity' are the least and the
# greatest 64-bit number, both on the wire and here.
FIRST_TIME: Final = -211_813_488_000_000_000
LAST_TIME: Final = (1 << 63) - 2 - PG_EPOCH
_INFINITIES: Final = (-(1 << 63), (1 << 63) - 1)

_INT16: Final = struct.Struct("!h")
_INT32: Final = struct.Struct("!i")
_UINT32: Final = struct.Struct("!I")
_INT64: Final = struct.Struct("!q")
_UINT64: Final = struct.Struct("!Q")


class Cursor:
    """A position in one message. The read methods raise PgOutputError, and move `position` past
    what they read.

    `origin` is the offset of `payload` in the message; it is not 0 if the caller has already read
    the head of the message. Offsets in errors count from the beginning of the message.
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
        """Read a TransactionId or Oid: unsigned on the server, Int32 in the manual."""
        position = self._claim(field, 4)
        number: int = _UINT32.unpack_from(self.payload, position)[0]
        return number

    def read_lsn(self, field: str) -> Lsn:
        position = self._claim(field, 8)
        return int.__new__(Lsn, _UINT64.unpack_from(self.payload, position)[0])  # in range as it is 64 bits

    def read_set_lsn(self, field: str) -> Lsn:
        """Read an LSN that `proto.c` rejects if it is 0/0: `elog(ERROR, "... not set in ...
        message")`."""
        lsn = self.read_lsn(field)
        if not lsn:
            raise self.error(field, self.position - 8, "a nonzero LSN", "0/0")
        return lsn

    def read_time(self, field: str) -> int:
        """Read a time, which on the wire counts from 2000-01-01, and return it in microseconds
        since the Unix epoch.

        Infinite times do occur: a transaction with a replication origin has the time that was
        passed to `pg_replication_origin_xact_setup`.
        """
        position = self._claim(field, 8)
        time: int = _INT64.unpack_from(self.payload, position)[0]
        if FIRST_TIME <= time <= LAST_TIME:
            return time + PG_EPOCH
        if time in _INFINITIES:
            return time
        raise self.error(field, position, f"from {FIRST_TIME} to {LAST_TIME} microseconds since 2000-01-01", str(time))

    def read_unused_flags(self) -> int:
        """Read Int8(0): "Flags; currently unused." """
        flags = self.read_byte("flags")
        if flags:
            raise self.error("flags", self.position - 1, "0, the flags are unused", str(flags))
        return flags

    def read_flag(self, field: str) -> bool:
        """Read a byte that is 0 or 1."""
        flag = self.read_byte(field)
        if flag > 1:
            raise self.error(field, self.position - 1, "0 or 1", str(flag))
        return flag == 1

    def read_stream_xid(self) -> int:
        """Read the xid of a (sub)transaction in progress; `worker.c` rejects 0 as invalid."""
        xid = self.read_uint32("xid")
        if not xid:
            raise self.error("xid", self.position - 4, "a transaction id", "0")
        return xid

    def read_string(self, field: str) -> str:
        """Read a String: bytes up to a NUL, in UTF-8 because that is the session's
        client_encoding."""
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
        """Read an Int32 length, then that many bytes."""
        length = self.read_int32(f"length of {field}")
        if length < 0:
            raise self.error(f"length of {field}", self.position - 4, "0 or more", str(length))
        position = self._claim(field, length)
        return self.payload[position : position + length]

    def read_count(self, field: str) -> int:
        """Read the number of the items that follow, an Int16. The number may be wrong, so never
        allocate memory for the items before they are read."""
        count = self.read_int16(field)
        if count < 0:
            raise self.error(field, self.position - 2, "0 or more", str(count))
        return count

    def finish(self) -> None:
        if self.position != len(self.payload):
            raise self.error("end", self.position, "the end of the message", f"{self.remaining()} more bytes")

    def _claim(self, field: str, size: int) -> int:
        """Move past the next `size` bytes and return the position at which they begin."""
        position = self.position
        if size > len(self.payload) - position:
            raise self.error(field, position, f"{size} bytes", f"{self.remaining()} bytes up to the end")
        self.position = position + size
        return position
