"""The offset of a Debezium connector: how far it has read, in the formats in which it is stored.

    offsets.dat         of Debezium Server and standalone workers: a serialized java.util.HashMap of
                        byte[]
    GET /connectors/<name>/offsets of Kafka Connect
                        {"offsets": [{"partition": {"server": ...}, "offset": {...}}]}
    a record of the offsets topic
                        {"key": ["<name>", {"server": ...}], "value": {...}}, or the value alone

`lsn` is the LSN of the last event that was written, `lsn_commit` the end of the last transaction
that was completed. The offset of an event is within its transaction, even if no other row follows.
The serialized form is described in the Java Object Serialization Specification, chapter 6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.errors import StopForOperator
from schemas.lsn import Lsn

_SERIALIZED: Final = b"\xac\xed\x00\x05"
_BYTES: Final = re.compile(
    rb"u(?:r\x00\x02\[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\x00\x00xp|q\x00\x7e\x00.)(?P<length>.{4})|p", re.DOTALL
)
"""TC_ARRAY with the class byte[] or a reference to it, and the count of bytes; or TC_NULL."""
_ENTRIES: Final = re.compile(rb"w\x08.{4}(?P<count>.{4})", re.DOTALL)
"""Data that HashMap writes after its fields: TC_BLOCKDATA with capacity and count."""
_NOT_EVENTS: Final = frozenset({"BEGIN", "COMMIT", "NOOP"})
_HINT: Final = (
    "specify the offset storage file of the stopped connector (offset.storage.file.filename), or a file with the "
    "response of GET /connectors/<name>/offsets"
)


@dataclass(frozen=True, slots=True)
class DebeziumOffset:
    """The offset of a connector. `written_xid` is the transaction whose events were written up to
    `lsn`, or 0 if `lsn` is not the LSN of an event."""

    lsn: Lsn
    commit_lsn: Lsn
    written_xid: int = 0
    of_snapshot: bool = False
    """Whether nothing has been streamed yet: `lsn` is the server's LSN when the snapshot was
    taken."""
    in_snapshot: bool = False
    """Whether the connector has not finished a snapshot, initial or incremental."""


def load_offset(path: Path, server: str) -> DebeziumOffset:
    """Read the offset of the connector with `topic.prefix` = `server` from a file. Raises
    StopForOperator."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StopForOperator(f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    return read_offset(content, server)


def read_offset(content: bytes, server: str) -> DebeziumOffset:
    """Find the offset of the connector with `topic.prefix` = `server`. Raises StopForOperator."""
    try:
        found = list(_serialized(content) if content.startswith(_SERIALIZED) else _of_json(json.loads(content)))
        offsets = [value for name, value in found if value is not None and name in (server, None)]
        if len(offsets) == 1:
            return _offset(offsets[0])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StopForOperator(
            "adopt: this is not an offset of a Debezium connector for PostgreSQL", hint=_HINT
        ) from error
    names = ", ".join(sorted({name for name, _ in found if name})) or "none"
    raise StopForOperator(
        f"adopt: found {len(offsets)} offsets for topic prefix {server!r}, expected exactly one; prefixes in the file: {names}",
        hint="kafka.prefix must be the connector's topic.prefix. If the file contains no offset, the name of the connector in "
        "the URL may be wrong, or the connector stored none before it was stopped",
    )


Found = tuple[str | None, dict[str, Any] | None]
"""The connector's topic prefix (None: not stored) and the offset (None: it was reset)."""


def _of_json(value: Any) -> Iterator[Found]:
    if "offsets" in value:
        for each in value["offsets"]:
            yield each["partition"]["server"], each["offset"]
    elif "key" in value:
        yield _server(value["key"]), value["value"]
    else:
        yield None, value


def _server(key: Any) -> str:
    """Return the topic prefix in the key `[connector, {"server": prefix}]`."""
    _, partition = key
    name: str = partition["server"]
    return name


def _serialized(content: bytes) -> Iterator[Found]:
    """Yield the entries of a serialized HashMap. Raises ValueError."""
    entries = _ENTRIES.search(content)
    if entries is None:
        raise ValueError("not a HashMap")
    place = entries.end()
    for _ in range(int.from_bytes(entries["count"], "big")):
        key, place = _byte_array(content, place)
        value, place = _byte_array(content, place)
        if key is not None:
            yield _server(json.loads(key)), None if value is None else json.loads(value)
    if content[place:] != b"x":  # TC_ENDBLOCKDATA
        raise ValueError("bytes left over")


def _byte_array(content: bytes, place: int) -> tuple[bytes | None, int]:
    head = _BYTES.match(content, place)
    if head is None:
        raise ValueError(f"no byte array at byte {place}")
    if head["length"] is None:
        return None, head.end()
    end = head.end() + int.from_bytes(head["length"], "big")
    if end > len(content):
        raise ValueError("cut off")
    return content[head.end() : end], end


def _offset(value: dict[str, Any]) -> DebeziumOffset:
    lsn, commit_lsn = Lsn(value["lsn"]), Lsn(value.get("lsn_commit") or 0)
    if value.get("snapshot"):
        done = value.get("last_snapshot_record") or value.get("snapshot_completed")
        return DebeziumOffset(lsn, commit_lsn, of_snapshot=True, in_snapshot=not done)
    is_event = value.get("messageType") not in _NOT_EVENTS
    reads_tables = any(name.startswith("incremental_snapshot") and each is not None for name, each in value.items())
    written_xid = value.get("txId") or 0 if is_event else 0  # a non-transactional message has none
    return DebeziumOffset(lsn, commit_lsn, written_xid, in_snapshot=reads_tables)
