"""Facts about transactions that the state machine keeps and hands out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.names import HEARTBEAT_PREFIX


class RecordSink(Protocol):
    """Where the records of one topic go. A record counts towards the manifest that it is appended
    with."""

    def append(self, key: bytes | None, value: bytes, manifest: Manifest | None) -> None: ...

    def append_everywhere(self, value: bytes, manifest: Manifest | None) -> None:
        """The same record without a key to every partition of the topic."""

    def too_large(self, what: str, size: int) -> StopForOperator:
        """The error for a row that is larger than the topic takes; `what` it does, that has so many
        bytes."""
        ...


class RelationChangeTracker(Protocol):
    """Is told what a transaction changes in one relation while that is under snapshot
    (gateway/snapshot/change_tracking.py). Keys come framed; None where the relation has none."""

    hold_key: Callable[[bytes | None], None]
    """Once a row, and once more for the old key of one that was changed."""
    left_out_count: int
    """The encoder's, when `left_out` was last called: when it is another, the row was an UPDATE
that left columns
out."""

    def enter(self, transaction: Transaction) -> None:
        """Before the first of some changes of another transaction."""
        ...

    def left_out(self, encoder: RowEncoder, key: bytes | None, old_key: bytes | None) -> None: ...

    def truncated(self) -> None: ...


def tell(
    changes: RelationChangeTracker, encoder: RowEncoder, key: bytes | None, moved: tuple[bytes | None, bytes] | None
) -> None:
    """Of a row that was encoded; `moved`: see RowEncoder.update."""
    changes.hold_key(key)
    if moved is not None:
        changes.hold_key(moved[0])
    if encoder.left_out_count != changes.left_out_count:
        changes.left_out(encoder, key, key if moved is None else moved[0])


@dataclass(slots=True)
class RelationVersion:
    """A relation as one Relation message described it, ready for its rows."""

    name: str
    schema_id: int
    encoder: RowEncoder
    outlet: RecordSink
    noted_in: Manifest | None = None
    """The newest transaction that has noted the schema id."""
    changes: RelationChangeTracker | None = None


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A relation whose changes are counted and not written. `since_lsn`: commit LSN of the first
    transaction without them."""

    relation_oid: int
    namespace: str
    name: str
    topic: str
    reason: str
    since_lsn: int

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class ExcludedTable:
    """A relation that source.excluded_tables names: its changes are counted and not written.

    `is_marked`: it has a topic, so that readers may have copies of its rows. Manifests then name
    it.
    """

    relation_oid: int
    namespace: str
    name: str
    topic: str
    is_marked: bool


EXCLUDED_REASON: Final = "left out by source.excluded_tables"


class MessageSink(Protocol):
    def offer(self, value: bytes, manifest: Manifest | None) -> bool:
        """Append a record without a key, unless it is larger than the topic takes; then False."""
        ...


CHUNK_PREFIX: Final = "walgate.chunk"
COMMAND_PREFIX: Final = "walgate.snapshot"
OWN_PREFIXES: Final = frozenset({CHUNK_PREFIX, COMMAND_PREFIX})
"""Of logical messages by which gateways and their operators speak to gateways: they are not
published."""

MessageEncoder = Callable[[TransactionContext, int, int, bool, int, str, bytes], bytes]
"""(context, change_lsn, ordinal, transactional, message_lsn, prefix, content) -> framed
LogicalMessage."""


@dataclass(frozen=True, slots=True)
class ExcludedMessage:
    """A logical decoding message that is larger than its topic takes. `xid` 0: it is of no
    transaction. `prefix` may be cut."""

    xid: int
    message_lsn: int
    prefix: str
    message_bytes: int


@dataclass(frozen=True, slots=True)
class MessageTopic:
    """The topic of logical decoding messages, and which of them it gets: those of `prefixes`, of
    every prefix where it is empty. `leave_out` hears of each one that is too large."""

    topic: str
    schema_id: int
    encode: MessageEncoder
    outlet: MessageSink
    leave_out: Callable[[ExcludedMessage], None]
    prefixes: frozenset[str] = frozenset()
    heartbeats_only: bool = False
    """source.messages is off: they are asked for because of the heartbeats, and of what snapshots
say to gateways."""

    def takes(self, prefix: str) -> bool:
        """Heartbeats only where they are asked for by name."""
        return not self.heartbeats_only and is_published(prefix, self.prefixes)


def is_published(prefix: str, prefixes: Collection[str]) -> bool:
    """Of a logical message, by source.message_prefixes."""
    if prefix in OWN_PREFIXES:
        return False
    return prefix in prefixes if prefixes else prefix != HEARTBEAT_PREFIX


@dataclass(slots=True)
class Transaction:
    """One transaction that is being received; for an in-progress one `commit_lsn` and `commit_time`
    are None."""

    xid: int
    manifest: Manifest
    context: TransactionContext
    commit_lsn: int | None = None
    commit_time: int | None = None
    origin: str | None = None
    context_subxid: int = -1
    ordinal: int = 0
    silent: bool = True
    """No event yet since its Begin or Stream Start: the marker of that is still owed."""
    has_messages: bool = False
    """Logical messages were sent with it."""
    is_heartbeat: bool = False
    """It is delivered when the position behind it is durable, though it may have no event."""
    skipped: bool = False
    """An operator wants it left out."""


class ChangeObserver(Protocol):
    """Who is told what changes while tables are under snapshot
    (gateway/snapshot/change_tracking.py). All xids are those of the wire."""

    @property
    def is_tracking(self) -> bool:
        """Tables are under snapshot now; the machine is given its watch again when that changes."""
        ...

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        """What to encode the relation's changes with: where it is under snapshot, with `changes`
        that are to be told."""
        ...

    def message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        """A message with one of OWN_PREFIXES. Not None: to be handed over where the transaction
        commits."""
        ...

    def committed(self, xid: int) -> None:
        """An ordinary transaction."""
        ...

    def committed_whole(self, xid: int, manifest: Manifest) -> None:
        """One that was streamed or prepared."""
        ...

    def prepared(self, xid: int) -> None: ...

    def aborted(self, xid: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction whose rows are (or are about to be) durable, waiting for its end
    without limit of time."""

    gid: str
    xid: int
    prepare_lsn: int
    origin: str | None
    manifest: Manifest
