"""A stream of messages for the state machine, and a record of what it made of them.

Rows are encoded as `(operation, xid, subxid, ordinal)` so that a test can say which transaction an
event belongs to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.native_record_writer import EventVersion, EventWriter
from gateway.transactions.transaction import ExcludedMessage, MessageSelection, MessageTopic, Transaction
from schemas.lsn import Lsn

RELATION_OID = 4711
OLD_KEY = b"frameold"


@dataclass
class Event:
    operation: str
    context: TransactionContext
    change_lsn: int
    ordinal: int
    manifest: Manifest | None = None


class RecordingEncoder:
    """Stands for a RowEncoder; `version` tells one relation version from another."""

    left_out_count = 0
    key: bytes | None = b"k"

    def __init__(self, version: str = "v1") -> None:
        self.version = version

    def _event(self, operation: str, context: TransactionContext, change_lsn: int, ordinal: int) -> Any:
        return Event(f"{operation}:{self.version}", context, change_lsn, ordinal)

    def insert(self, data: bytes, position: int, end: int, context: TransactionContext, lsn: int, ordinal: int) -> Any:
        return self.key, self._event("INSERT", context, lsn, ordinal)

    def update(self, data: bytes, position: int, end: int, context: TransactionContext, lsn: int, ordinal: int) -> Any:
        moved = (OLD_KEY, self._event("DELETE", context, lsn, ordinal)) if data[position:end] == b"moved" else None
        return self.key, self._event("UPDATE", context, lsn, ordinal), moved

    def delete(self, data: bytes, position: int, end: int, context: TransactionContext, lsn: int, ordinal: int) -> Any:
        return self.key, self._event("DELETE", context, lsn, ordinal)

    def truncate(self, context: TransactionContext, lsn: int, ordinal: int) -> Any:
        return self._event("TRUNCATE", context, lsn, ordinal)


@dataclass
class RecordingOutlet:
    """Keeps events in order and counts them in their manifest, as acknowledged batches would be."""

    topic: str = "cdc.public.t"
    events: list[Event] = field(default_factory=list)
    is_full: bool = False
    """Takes no record by `offer`."""

    def append(self, key: bytes | None, value: Any, manifest: Manifest | None) -> None:
        value.manifest = manifest
        self.events.append(value)
        if manifest is not None:
            manifest.add((self.topic, 0), len(self.events) - 1, 1)

    def append_everywhere(self, value: Any, manifest: Manifest | None) -> None:
        self.append(None, value, manifest)

    def offer(self, value: Any, manifest: Manifest | None) -> bool:
        if not self.is_full:
            self.append(None, value, manifest)
        return not self.is_full

    def too_large(self, what: str, size: int) -> StopForOperator:
        return StopForOperator(f"{self.topic} {what}")


@dataclass
class RecordingChanges:
    """Keeps what it is told. `xids`: of the transactions that were entered."""

    xids: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    unchanged: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    truncated_count: int = 0
    left_out_count: int = 0

    def __post_init__(self) -> None:
        self.hold_key: Callable[[bytes | None], None] = self.keys.append

    def enter(self, transaction: Transaction) -> None:
        self.xids.append(transaction.xid)

    def left_out(self, encoder: RowEncoder, key: bytes | None, old_key: bytes | None) -> None:
        self.left_out_count = encoder.left_out_count
        self.unchanged.append((key, old_key))

    def truncated(self) -> None:
        self.truncated_count += 1


@dataclass
class MessageEvent(Event):
    content: bytes = b""

    def __len__(self) -> int:
        return len(self.content)


def encode_message(context: TransactionContext, change_lsn: int, ordinal: int, *rest: Any) -> Any:
    return MessageEvent("MESSAGE", context, change_lsn, ordinal, content=rest[-1])


class Stream:
    """Feeds a machine; each step takes the next LSN."""

    def __init__(self, epoch: int = 3, **start: Any) -> None:
        self.rows = RecordingOutlet()
        self.messages = RecordingOutlet("cdc.message")
        self.left_out: list[ExcludedMessage] = []
        prefixes = frozenset(start.get("message_prefixes", ()))
        topic: Any = MessageTopic("cdc.message", 99, encode_message, self.messages)
        self.machine = TransactionMachine(
            epoch=epoch,
            resume_lsn=start.get("resume_lsn", 0),
            last_commit_lsn=start.get("last_commit_lsn", 0),
            prepared=start.get("prepared", ()),
            writer=EventWriter(epoch, topic),
            messages=MessageSelection(self.left_out.append, prefixes),
            quarantined=start.get("quarantined", ()),
            skip_lsn=start.get("skip_lsn", 0),
        )
        self.lsn = start.get("resume_lsn", 0)
        self.announce()

    def next_lsn(self) -> Lsn:
        self.lsn += 8
        return Lsn(self.lsn)

    def announce(self, version: str = "v1", subxid: int | None = None, schema_id: int = 7) -> None:
        encoder: Any = RecordingEncoder(version)
        self.machine.announce(RELATION_OID, subxid, EventVersion("public.t", schema_id, encoder, self.rows))

    def receive(self, message: object) -> None:
        self.machine.receive(message, self.next_lsn())

    def row(self, kind: bytes = b"I", subxid: int | None = None, content: bytes = b"", oid: int = RELATION_OID) -> None:
        payload = kind + (b"" if subxid is None else struct.pack("!I", subxid)) + struct.pack("!I", oid) + content
        self.machine.change(payload, 0, len(payload), self.next_lsn())

    def drained(self, payload: bytes, message_bytes: int) -> None:
        self.machine.drained(payload, 0, len(payload), message_bytes)

    def kinds(self) -> list[str]:
        return [marker.kind for marker in self.machine.take_markers()]
