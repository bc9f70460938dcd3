"""Encode `source` and `transaction` of Debezium's records. The parts that the rows of a transaction
share are encoded once."""

from __future__ import annotations

from typing import Final

from gateway.values.column_readers import some_bytes
from schemas.varint import encode_long, encode_lsn, encode_some_long, encode_some_lsn

_NULL: Final = b"\0"
_SOME: Final = b"\2"
_NULL_AND_SOME: Final = _NULL + _SOME
_NO_ORIGIN: Final = _NULL * 3
_STREAMED: Final = b"\0" + some_bytes(b"false")[1:]
"""The field `snapshot` with its default value, which is of the union's first branch."""
_READ: Final = b"\0" + some_bytes(b"incremental")[1:]
"""The field `snapshot` of rows that were read while streaming continued."""


def _text(value: str) -> bytes:
    return some_bytes(value.encode())[1:]


class SourceNames:
    """The parts of `source` that all records of a gateway share. The field `version` is the
    gateway's version, `name` the topic prefix."""

    __slots__ = ("before_sequence", "before_time", "read_before_sequence")

    def __init__(self, version: str, prefix: str, database: str) -> None:
        self.before_time = _text(version) + _text("postgresql") + _text(prefix)
        self.before_sequence = _STREAMED + _text(database) + _SOME
        self.read_before_sequence = _READ + _text(database) + _SOME


class SourceContext:
    """The parts of `source` that the rows of one transaction share. `last_commit_end_lsn` is 0 if
    it is not known. Times are microseconds since the Unix epoch.

    The `source` of a record consists of `head_of` for the number of digits of change_lsn, these
    digits, `times`, the table, `transaction`, the LSN, and `end`. `written` follows the operation.
    """

    __slots__ = (
        "_before_sequence",
        "_commit_lsn",
        "_sequence",
        "_xid",
        "digits",
        "end",
        "head",
        "times",
        "transaction",
        "written",
    )

    def __init__(
        self,
        names: SourceNames,
        xid: int | None,
        commit_lsn: int,
        commit_time: int,
        last_commit_end_lsn: int,
        origin: str | None,
        written: bytes = b"",
        *,
        is_read: bool = False,
    ) -> None:
        self._xid = xid
        self._commit_lsn = commit_lsn
        before_sequence = names.read_before_sequence if is_read else names.before_sequence
        self._before_sequence = names.before_time + encode_lsn(commit_time // 1000) + before_sequence
        self._sequence = b'["%d","' % last_commit_end_lsn if last_commit_end_lsn else b'[null,"'
        self.digits = 0
        self.head = b""
        self.times = b'"]' + encode_some_lsn(commit_time) + encode_some_lsn(commit_time * 1000)
        self.transaction = _NULL_AND_SOME if xid is None else encode_some_long(xid) + _SOME
        self.end = _NO_ORIGIN if origin is None else _NULL + some_bytes(origin.encode()) + _NULL
        self.written = written

    @property
    def transaction_id(self) -> str:
        return f"{self._xid}:{self._commit_lsn:d}"

    def head_of(self, digits: int) -> bytes:
        """Return the bytes before an LSN of `digits` digits. The last result is kept in `head`,
        because the LSNs of a transaction rarely differ in length."""
        if digits != self.digits:
            self.digits = digits
            self.head = self._before_sequence + encode_long(len(self._sequence) + digits + 2) + self._sequence
        return self.head


def written_at(now_ns: int) -> bytes:
    """Encode the time at which a record was written: ts_ms, ts_us, ts_ns."""
    return encode_some_lsn(now_ns // 1_000_000) + encode_some_lsn(now_ns // 1000) + encode_some_lsn(now_ns)


def transaction_key(frame: bytes, transaction_id: str) -> bytes:
    return frame + _text(transaction_id)


def transaction_begin(frame: bytes, transaction_id: str, commit_time: int) -> bytes:
    return frame + _text("BEGIN") + _text(transaction_id) + _NULL + _NULL + encode_long(commit_time // 1000)


def transaction_end(
    frame: bytes, transaction_id: str, commit_time: int, event_count: int, collections: dict[str, int]
) -> bytes:
    """Encode an END record. `collections` has the number of events of each `schema.table`, and at
    least one entry."""
    parts = [frame, _text("END"), _text(transaction_id), encode_some_long(event_count), _SOME]
    parts.append(encode_long(len(collections)))
    parts += [_SOME + _text(name) + encode_long(count) for name, count in collections.items()]
    return b"".join([*parts, _NULL, encode_long(commit_time // 1000)])


def transaction_block(head: bytes, total_order: int, collection_order: int) -> bytes:
    """Encode a transaction block. `head` is the index of union branch 1 and the id."""
    return head + encode_long(total_order) + encode_long(collection_order)


def message_value(
    frame: bytes, source: SourceContext, message_lsn: int, block: bytes, now_ns: int, prefix: str, content: bytes
) -> bytes:
    """Encode a logical decoding message, whose source has an empty schema and table."""
    digits = b"%d" % message_lsn
    return b"".join(
        (
            frame, _text("m"), encode_some_long(now_ns // 1_000_000),
            source.head_of(len(digits)), digits, source.times, _NULL, _NULL, source.transaction, encode_long(message_lsn),
            source.end, block, some_bytes(prefix.encode()), some_bytes(content),
        )
    )  # fmt: skip
