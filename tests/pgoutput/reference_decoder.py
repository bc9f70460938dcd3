"""A second decoder, slow and literal: an interpreter of the manual's page, field by field, byte by
byte.

It was written from the page 55.9 Logical Replication Message Formats and shares no code with the
gateway's. What PostgreSQL's own reader refuses beyond that page is the `_set` and `_valid` of the
formats, and the calendar of `read_time`.
"""

from __future__ import annotations

from collections.abc import Iterator

# Field types in the order of the page. `xid`: only inside a stream.
FORMATS = """
B Begin            lsn_set:commit_lsn time:commit_time int32:xid
M Message          xid:xid bit:transactional lsn:message_lsn string:prefix bytes:content
C Commit           zero:flags lsn:commit_lsn lsn:end_lsn time:commit_time
O Origin           lsn:origin_lsn string:name
R Relation         xid:xid int32:relation_oid namespace:namespace string:name identity:replica_identity columns:columns
Y Type             xid:xid int32:type_oid namespace:namespace string:name
I Insert           xid:xid int32:relation_oid new:new
U Update           xid:xid int32:relation_oid update:parts
D Delete           xid:xid int32:relation_oid delete:parts
T Truncate         xid:xid truncate:parts
S StreamStart      int32_valid:xid bit:first_segment
E StreamStop
c StreamCommit     int32_valid:xid zero:flags lsn:commit_lsn lsn:end_lsn time:commit_time
A StreamAbort      int32_valid:xid int32:subxid abort:parts
b BeginPrepare     lsn_set:prepare_lsn lsn_set:end_lsn time:prepare_time int32:xid string:gid
P Prepare          zero:flags lsn_set:prepare_lsn lsn_set:end_lsn time:prepare_time int32:xid string:gid
K CommitPrepared   zero:flags lsn_set:commit_lsn lsn_set:end_lsn time:commit_time int32:xid string:gid
r RollbackPrepared zero:flags lsn_set:prepare_end_lsn lsn_set:rollback_end_lsn rollback:times int32:xid string:gid
p StreamPrepare    zero:flags lsn_set:prepare_lsn lsn_set:end_lsn time:prepare_time int32:xid string:gid
"""
# Of version 2; Stream Abort is as well, but 18 sends it in version 1.
VERSION_2 = "SEcp"


class Refused(Exception):
    """The bytes are no message."""


class ReferenceDecoder:
    """`decode()` gives the dataclass's name and its fields; a tuple's values are None, "u", ("t",
    bytes), ("b", bytes)."""

    def __init__(self, payload: bytes, in_stream: bool, protocol_version: int) -> None:
        self.bytes: Iterator[int] = iter(payload)
        self.left = len(payload)
        self.in_stream = in_stream
        self.protocol_version = protocol_version

    def decode(self) -> tuple[str, dict[str, object]]:
        letter = chr(self.byte())
        for line in FORMATS.split("\n"):
            if line[:2] == letter + " ":
                name, *fields = line[2:].split()
                self.demand(letter not in VERSION_2 or self.protocol_version >= 2)
                values: dict[str, object] = {}
                for field in fields:
                    kind, field_name = field.split(":")
                    value = getattr(self, "read_" + kind)()
                    if isinstance(value, dict):
                        values.update(value)
                    else:
                        values[field_name] = value
                self.demand(self.left == 0)
                return name, values
        raise Refused

    def demand(self, condition: bool) -> None:
        if not condition:
            raise Refused

    def byte(self) -> int:
        self.demand(self.left > 0)
        self.left -= 1
        return next(self.bytes)

    def unsigned(self, size: int) -> int:
        number = 0
        for _ in range(size):
            number = number * 256 + self.byte()
        return number

    def signed(self, size: int) -> int:
        number = self.unsigned(size)
        return number - 256**size if number >= 256**size // 2 else number

    # -- field types
    # ------------------------------------------------------------------------------------------------

    def read_int32(self) -> int:
        return self.unsigned(4)

    def read_int32_valid(self) -> int:
        number = self.unsigned(4)
        self.demand(number != 0)
        return number

    def read_xid(self) -> int | None:
        return self.read_int32_valid() if self.in_stream else None

    def read_lsn(self) -> int:
        return self.unsigned(8)

    def read_lsn_set(self) -> int:
        number = self.unsigned(8)
        self.demand(number != 0)
        return number

    def read_time(self) -> int:
        time = self.signed(8)
        if time in (-(2**63), 2**63 - 1):
            return time
        self.demand(time >= -2451545 * 86400 * 1_000_000)  # Julian day 0
        since_1970 = time + 10957 * 86400 * 1_000_000
        self.demand(since_1970 < 2**63 - 1)
        return since_1970

    def read_zero(self) -> int:
        self.demand(self.byte() == 0)
        return 0

    def read_bit(self) -> bool:
        bit = self.byte()
        self.demand(bit in (0, 1))
        return bit == 1

    def read_string(self) -> str:
        octets = bytearray()
        while octet := self.byte():
            octets.append(octet)
        try:
            return octets.decode("utf-8")
        except UnicodeDecodeError:
            raise Refused from None

    def read_namespace(self) -> str:
        name = self.read_string()
        return "pg_catalog" if name == "" else name

    def read_bytes(self) -> bytes:
        length = self.signed(4)
        self.demand(0 <= length <= self.left)
        return bytes([self.byte() for _ in range(length)])

    def read_identity(self) -> str:
        letter = chr(self.byte())
        self.demand(letter in "dnfi")
        return letter

    def read_columns(self) -> list[tuple[bool, str, int, int]]:
        count = self.signed(2)
        self.demand(count >= 0)
        return [(self.read_bit(), self.read_string(), self.unsigned(4), self.signed(4)) for _ in range(count)]

    # -- tuples and what chooses between them
    # -------------------------------------------------------------------------

    def read_tuple_data(self) -> list[object]:
        count = self.signed(2)
        self.demand(count >= 0)
        values: list[object] = []
        for _ in range(count):
            kind = chr(self.byte())
            self.demand(kind in "nutb")
            values.append({"n": None, "u": "u"}[kind] if kind in "nu" else (kind, self.read_bytes()))
        return values

    def read_new(self) -> list[object]:
        self.demand(self.byte() == ord("N"))
        return self.read_tuple_data()

    def read_update(self) -> dict[str, object]:
        parts: dict[str, object] = {"key": None, "old": None}
        letter = chr(self.byte())
        if letter in "KO":
            parts[{"K": "key", "O": "old"}[letter]] = self.read_tuple_data()
            letter = chr(self.byte())
        self.demand(letter == "N")
        return {**parts, "new": self.read_tuple_data()}

    def read_delete(self) -> dict[str, object]:
        letter = chr(self.byte())
        self.demand(letter in "KO")
        parts: dict[str, object] = {"key": None, "old": None}
        parts[{"K": "key", "O": "old"}[letter]] = self.read_tuple_data()
        return parts

    def read_truncate(self) -> dict[str, object]:
        count = self.signed(4)
        options = self.byte()
        self.demand(count > 0 and options in (0, 1, 2, 3) and self.left == 4 * count)
        oids = [self.unsigned(4) for _ in range(count)]
        return {"relation_oids": oids, "cascade": options in (1, 3), "restart_identity": options in (2, 3)}

    def read_rollback(self) -> dict[str, object]:
        return {"prepare_time": self.read_time(), "rollback_time": self.read_time()}

    def read_abort(self) -> dict[str, object]:
        if self.left == 0:
            return {"abort_lsn": None, "abort_time": None}
        self.demand(self.protocol_version >= 4)
        return {"abort_lsn": self.read_lsn(), "abort_time": self.read_time()}
