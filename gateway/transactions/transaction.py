"""State of transactions, and the interfaces between the state machine and its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.names import HEARTBEAT_PREFIX
from gateway.pgoutput.two_phase import BeginPrepare
from schemas.topic_names import format_relation


class RecordSink(Protocol):
    """The destination of the records of one topic. A record counts towards the manifest that it is
    appended with."""

    def append(self, key: bytes | None, value: bytes, manifest: Manifest | None) -> None: ...

    def append_everywhere(self, value: bytes, manifest: Manifest | None) -> None:
        """Append the same record, without a key, to every partition of the topic."""

    def too_large(self, what: str, size: int) -> StopForOperator:
        """Return the error for a row of `size` bytes, which is more than the topic takes. `what` is
        a clause for the message of the error."""
        ...


class RelationChangeTracker(Protocol):
    """Receive what transactions change in one relation while it is under snapshot
    (gateway/snapshot/change_tracking.py). Keys are framed, or None if the relation has none."""

    hold_key: Callable[[bytes | None], None]
    """A function that is called once for each row, and once more with the old key if the key has
    changed."""
    left_out_count: int
    """The encoder's `left_out_count` when `left_out` was last called. If the encoder's count
    differs after a row, the row was an UPDATE that left columns out."""

    def enter(self, transaction: Transaction) -> None:
        """Record that the changes that follow are of this transaction."""
        ...

    def left_out(self, encoder: RowEncoder, key: bytes | None, old_key: bytes | None) -> None: ...

    def truncated(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A relation in quarantine: its changes are counted and not written. `since_lsn` is the commit
    LSN of the first transaction whose changes of the relation are missing."""

    relation_oid: int
    namespace: str
    name: str
    topic: str
    reason: str
    since_lsn: int

    @property
    def full_name(self) -> str:
        return format_relation(self.namespace, self.name)

    @property
    def is_marked(self) -> bool:
        """Whether manifests name the relation: always true in quarantine."""
        return True


@dataclass(frozen=True, slots=True)
class ExcludedTable:
    """A relation that source.excluded_tables names: its changes are counted and not written.

    `is_marked` tells whether the relation has a topic, so that consumers may have copies of its
    rows. Manifests then name the relation.
    """

    relation_oid: int
    namespace: str
    name: str
    topic: str
    is_marked: bool

    @property
    def reason(self) -> str:
        return "left out by source.excluded_tables"


class MessageSink(Protocol):
    def offer(self, value: bytes, manifest: Manifest | None) -> bool:
        """Append a record without a key and return True, or return False if it is larger than the
        topic takes."""
        ...


CHUNK_PREFIX: Final = "walgate.chunk"
COMMAND_PREFIX: Final = "walgate.snapshot"
OWN_PREFIXES: Final = frozenset({CHUNK_PREFIX, COMMAND_PREFIX})
"""The prefixes of logical messages that gateways and operators send to gateways. Such messages are
not published."""

MessageEncoder = Callable[[TransactionContext, int, int, bool, int, str, bytes], bytes]
"""Encodes (context, change_lsn, ordinal, transactional, message_lsn, prefix, content) as a framed
LogicalMessage."""


@dataclass(frozen=True, slots=True)
class ExcludedMessage:
    """A logical message that is larger than its topic takes. `xid` is 0 if it is not in a
    transaction. `prefix` may be truncated."""

    xid: int
    message_lsn: int
    prefix: str
    message_bytes: int


@dataclass(frozen=True, slots=True)
class MessageSelection:
    """The logical messages that are published: those with one of `prefixes`, or all if `prefixes`
    is empty. `leave_out` is called for each of these messages that is too large."""

    leave_out: Callable[[ExcludedMessage], None]
    prefixes: frozenset[str] = frozenset()
    heartbeats_only: bool = False
    """Whether source.messages is off: the server then sends messages only for the sake of
    heartbeats and snapshots."""

    def takes(self, prefix: str) -> bool:
        """Return whether messages with this prefix are published. Heartbeats are published only if
        their prefix is listed."""
        return not self.heartbeats_only and is_published(prefix, self.prefixes)


@dataclass(frozen=True, slots=True)
class MessageTopic:
    """The topic of logical messages in Walgate's own dialect."""

    topic: str
    schema_id: int
    encode: MessageEncoder
    sink: MessageSink


def is_published(prefix: str, prefixes: Collection[str]) -> bool:
    """Return whether source.message_prefixes publishes logical messages with this prefix."""
    if prefix in OWN_PREFIXES:
        return False
    return prefix in prefixes if prefixes else prefix != HEARTBEAT_PREFIX


@dataclass(slots=True)
class Transaction:
    """A transaction that is being received. `commit_lsn` and `commit_time` are None while it is in
    progress."""

    xid: int
    manifest: Manifest
    context: TransactionContext
    commit_lsn: int | None = None
    commit_time: int | None = None
    origin: str | None = None
    context_subxid: int = -1
    ordinal: int = 0
    silent: bool = True
    """Whether no event has arrived since the Begin or Stream Start, whose marker is still to be
    written."""
    has_messages: bool = False
    """Whether the transaction has logical messages."""
    is_heartbeat: bool = False
    """Whether the transaction is a heartbeat. A heartbeat counts as delivered once the position
    after it is durable, even without an event."""
    skipped: bool = False
    """Whether the operator wants the transaction left out."""
    prepare: BeginPrepare | None = None
    """The message that began the transaction, if it is prepared without having been streamed."""

    @property
    def subxid(self) -> int:
        """The xid of the subtransaction whose changes arrive now; -1 if there is none."""
        return -1 if self.context_subxid == self.xid else self.context_subxid


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction whose rows are (or are about to be) durable. It waits for its COMMIT
    PREPARED or ROLLBACK PREPARED without a time limit."""

    gid: str
    xid: int
    prepare_lsn: int
    origin: str | None
    manifest: Manifest
