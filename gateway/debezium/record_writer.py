"""Write the records of Debezium's dialect for what the state machine receives.

Transactions are written only after they have committed, never while they are streamed or prepared.
There are therefore no markers and no manifests: each record contains all that its reader needs. A
transaction that the operator skips is only logged. A row becomes one or more records:

    INSERT                  c
    UPDATE                  u; if the key has changed: d of the old key, its tombstone, c of the new
    DELETE                  d, tombstone
    TRUNCATE                t, unless it is a skipped operation

A tombstone is a record with a key and a null value, for the compaction of the topic. Rows without a
key have no tombstones. With `provide_transaction_metadata`, the transaction topic gets BEGIN and
END records, and each record of an event contains its place in the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.connect_forms import AS_BINARY
from gateway.debezium.source_block import (
    SourceContext,
    SourceNames,
    message_value,
    transaction_begin,
    transaction_block,
    transaction_end,
    transaction_key,
    written_at,
)
from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker
from gateway.events.transaction_context import TransactionContext
from gateway.pgoutput.logical_message import Message
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from gateway.transactions.transaction import Prepared, Transaction
from gateway.values.column_readers import some_bytes

_NO_BLOCK: Final = b"\0"
_TICK_NS: Final = 500_000
"""Records that are written within this many nanoseconds have the same time of writing."""


class KeyedSink(Protocol):
    """The destination of one topic's records, which are partitioned as by Kafka's own clients."""

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None: ...

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        """Append the record; return False if it is larger than the topic accepts."""
        ...

    def too_large(self, what: str, size: int) -> StopForOperator: ...


@dataclass(frozen=True, slots=True)
class DebeziumTopics:
    """The topics that belong to no relation, with the frames of their registered schemas.
    `transactions` is None if no transaction records are written."""

    messages: KeyedSink
    message_key_frame: bytes
    message_value_frame: bytes
    transactions: KeyedSink | None = None
    transaction_key_frame: bytes = b""
    transaction_value_frame: bytes = b""


@dataclass(slots=True)
class _Counts:
    """The number of events in the current transaction: in total, and by collection."""

    total: int = 0
    collections: dict[str, int] = field(default_factory=dict)


class DebeziumWriter(RecordWriter):
    """Write Debezium's records. `clock_ns` returns nanoseconds since the Unix epoch. `written` is
    the xid of the transaction in which the replaced connector stopped, and the LSN of the last
    change that it wrote of this transaction."""

    def __init__(
        self,
        *,
        epoch: int,
        last_commit_lsn: int,
        names: SourceNames,
        topics: DebeziumTopics,
        options: DebeziumSettings,
        clock_ns: Callable[[], int],
        written: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__()
        self.skips_creates = "c" in options.skipped_operations
        self.skips_updates = "u" in options.skipped_operations
        self.skips_deletes = "d" in options.skipped_operations
        self.writes_tombstones = options.tombstones_on_delete
        self.writes_blocks = options.provide_transaction_metadata
        self.source = SourceContext(names, None, 0, 0, 0, None)
        """The parts of `source` that the rows of the current transaction share."""
        self.written_lsn = 0
        """The LSN up to which the replaced connector wrote the current transaction, or 0."""
        self._skips_truncates = "t" in options.skipped_operations
        self._as_binary = AS_BINARY[options.binary_handling_mode]
        self._names = names
        self._topics = topics
        self._clock_ns = clock_ns
        self._has_commits = last_commit_lsn > 0
        self._last_end_lsn = 0
        self._written_ns = -_TICK_NS
        self._written_at = b""
        # Placeholders: rows carry no context, and there are no manifests.
        self._context = TransactionContext(0, -1, epoch, None, None, None)
        self._manifest = Manifest(epoch)
        self._block_head = _NO_BLOCK
        self._counts = _Counts()
        self._written = written
        self._held: tuple[RelationVersion, int, bytes, int, int] | None = None
        self._has_pending = False

    # -- transactions

    def open(
        self, xid: int, commit_lsn: int | None, commit_time: int | None, resume_lsn: int, in_stream: bool
    ) -> Transaction:
        transaction = Transaction(xid, self._manifest, self._context, commit_lsn, commit_time)
        self._last_end_lsn = resume_lsn if self._has_commits else 0
        self.source = self.source_of(transaction)
        written_xid, written_lsn = self._written
        self.written_lsn = written_lsn if xid == written_xid else 0
        self._held = None
        return transaction

    def source_of(self, transaction: Transaction, *, is_read: bool = False) -> SourceContext:
        """Return the parts of `source` that the rows of a transaction share. `is_read` means that
        these are rows of a snapshot."""
        assert transaction.commit_lsn is not None
        return SourceContext(
            self._names, transaction.xid, transaction.commit_lsn, transaction.commit_time or 0, self._last_end_lsn,
            transaction.origin, self._written_at, is_read=is_read,
        )  # fmt: skip

    def refresh(self, source: SourceContext) -> None:
        """Set the time of writing of the next records to the current time."""
        now_ns = self._clock_ns()
        if not 0 <= now_ns - self._written_ns < _TICK_NS:
            self._written_ns = now_ns
            self._written_at = written_at(now_ns)
        source.written = self._written_at

    def enter(self, transaction: Transaction, in_stream: bool) -> None:
        self.source = self.source_of(transaction)

    def begin(self, transaction: Transaction, resume_lsn: int) -> None:
        """Do nothing: BEGIN is written by `block`, before the first event that has a place in the
        transaction."""

    def relation(self, transaction: Transaction, version: RelationVersion) -> None:
        """Do nothing: there are no manifests."""

    def end(
        self, transaction: Transaction, kind: str, marker_lsn: int, end_lsn: int, time: int, gid: str | None
    ) -> bool:
        if self._counts.total:
            self._end_transaction(transaction)
            self._counts = _Counts()
        self._has_commits = True
        return transaction.ordinal > 0

    def _end_transaction(self, transaction: Transaction) -> None:
        topics, source, counts = self._topics, self.source, self._counts
        assert topics.transactions is not None
        key = transaction_key(topics.transaction_key_frame, source.transaction_id)
        value = transaction_end(
            topics.transaction_value_frame, source.transaction_id, transaction.commit_time or 0, counts.total,
            counts.collections,
        )  # fmt: skip
        topics.transactions.append_hashed(key, value)

    def block(self, transaction: Transaction, collection: str) -> bytes:
        """Count one more event and return its transaction block. The first event causes BEGIN to be
        written."""
        transaction.ordinal += 1
        if not self.writes_blocks:
            return _NO_BLOCK
        counts = self._counts
        if not counts.total:
            self._begin_transaction(transaction)
        counts.total += 1
        order = counts.collections[collection] = counts.collections.get(collection, 0) + 1
        return transaction_block(self._block_head, counts.total, order)

    def _next_block(self, collection: str) -> bytes:
        """Return the block that `block` would return, without counting an event, because the
        message may be too large to be written."""
        if not self.writes_blocks:
            return _NO_BLOCK
        counts = self._counts
        head = some_bytes(self.source.transaction_id.encode())
        return transaction_block(head, counts.total + 1, counts.collections.get(collection, 0) + 1)

    def _begin_transaction(self, transaction: Transaction) -> None:
        topics, source = self._topics, self.source
        assert topics.transactions is not None
        self._block_head = some_bytes(source.transaction_id.encode())
        key = transaction_key(topics.transaction_key_frame, source.transaction_id)
        value = transaction_begin(topics.transaction_value_frame, source.transaction_id, transaction.commit_time or 0)
        topics.transactions.append_hashed(key, value)

    # -- rows

    def was_written(
        self,
        version: RelationVersion,
        transaction: Transaction,
        kind: int,
        data: bytes,
        row: int,
        end: int,
        change_lsn: int,
    ) -> bool:
        """Return whether the replaced connector wrote a change whose LSN is not greater than
        `written_lsn`.

        The first row at `written_lsn` itself is held back, and taken as written. If another row
        follows at the same LSN, as in a COPY, it is unknown how many of these rows were written, so
        all of them are written again.
        """
        if change_lsn < self.written_lsn:
            return True
        if self._held is None:
            self._held = version, kind, data, row, end
            return True
        self.written_lsn = 0
        held, held_kind, held_data, held_row, held_end = self._held
        held.row(transaction, held_kind, held_data, held_row, held_end, change_lsn)
        return False

    def truncate(
        self, transaction: Transaction, versions: Sequence[RelationVersion], change_lsn: int, relation_count: int
    ) -> None:
        # At the last LSN itself, records of only some of the tables may have been written.
        was_written = change_lsn < self.written_lsn + (relation_count == 1)
        if self._skips_truncates or was_written or not versions:
            return
        self.refresh(self.source)
        for version in versions:
            version.truncate(transaction, change_lsn)

    # -- logical messages

    def message(self, transaction: Transaction | None, message: Message, change_lsn: int, resume_lsn: int) -> int:
        if transaction is not None and change_lsn <= self.written_lsn:
            return 0
        now_ns = self._clock_ns()
        if transaction is None:
            source = SourceContext(self._names, None, 0, now_ns // 1000, resume_lsn, None)
            block = _NO_BLOCK
        else:
            source = self.source
            self.refresh(source)  # for the rows that follow: a message takes the place of a first row
            block = self._next_block(message.prefix)
        topics = self._topics
        value = message_value(
            topics.message_value_frame,
            source,
            message.message_lsn,
            block,
            now_ns,
            message.prefix,
            self._as_binary(message.content),
        )
        key = topics.message_key_frame + some_bytes(message.prefix.encode())
        if not topics.messages.offer_hashed(key, value):
            return len(value)
        if transaction is not None:
            self.block(transaction, message.prefix)
        return 0

    def exclude_message(self, transaction: Transaction, prefix: str) -> None:
        """Do nothing: there are no manifests. The message is logged."""

    # -- what is not written in this dialect

    def accept_stream(self) -> bool:
        return False

    def accept_prepared(self, xid: int) -> None:
        raise StopForOperator(
            "two_phase is enabled for the slot, so prepared transactions are sent before they commit (transaction "
            f"{xid}), and with kafka.dialect = debezium, consumers would treat them as committed",
            hint="either use a new source.slot (created without two_phase) and a new kafka.prefix, or, on PostgreSQL 18 and "
            'later, disable two_phase for the slot: run psql "dbname=... replication=database" '
            "-c 'ALTER_REPLICATION_SLOT <slot> (TWO_PHASE false)', then start the gateway",
        )

    def stop_segment(self, transaction: Transaction, resume_lsn: int) -> None:
        raise AssertionError("a segment of a stream, which was not accepted")

    def abort(self, transaction: Transaction, subxid: int, lsn: int, time: int | None) -> None:
        raise AssertionError("the rollback of a stream, which was not accepted")

    def end_prepared(self, prepared: Prepared, kind: str, marker_lsn: int, end_lsn: int, time: int) -> None:
        """Do nothing: the transaction was prepared while the records had another dialect."""

    def add_pending(self, marker: Marker) -> None:
        """Record that a marker is pending, although it is not written: the state that it reports
        becomes durable at the point where the marker would have become durable."""
        self._has_pending = True

    @property
    def pending_count(self) -> int:
        return int(self._has_pending)

    def take_pending(self) -> list[Marker]:
        self._has_pending = False
        return []
