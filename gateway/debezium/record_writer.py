"""Writes the records of Debezium's dialect for what the state machine receives.

Only committed transactions are written (never streamed, never prepared ones), so there are no
markers and no manifests: each record contains all that its reader needs. A transaction that the
operator skips is only logged. A row becomes one or more records:

    INSERT                  c
    UPDATE                  u; if the key has changed: d of the old key, its tombstone, c of the new
    DELETE                  d, tombstone
    TRUNCATE                t, unless it is a skipped operation

A tombstone is a key with a null value, for the compaction of the topic; rows without a key have
none. With `provide_transaction_metadata`, the transaction topic gets BEGIN and END records, and
each record contains its place in the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.config.debezium_options import DebeziumOptions
from gateway.debezium.connect_forms import AS_BINARY
from gateway.debezium.row_encoder import DebeziumEncoder
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
from gateway.events.change_key import ChangeKeys
from gateway.events.manifest import Manifest
from gateway.events.marker import Marker
from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.pgoutput import Message
from gateway.pgoutput.letters import INSERT, UPDATE
from gateway.pgoutput.row import TuplePart
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from gateway.transactions.transaction import Prepared, RelationChangeTracker, Transaction
from gateway.values.column_readers import some_bytes

_NO_BLOCK: Final = b"\0"
_TICK: Final = 0xFF
"""Mask of the ordinals between which the clock is not read: 256 rows of a transaction share the
time at which they were written."""
_TICK_NS: Final = 500_000
"""Nanoseconds within which transactions share the time at which they were written."""


class KeyedSink(Protocol):
    """Destination of one topic's records, partitioned as Kafka's own clients do it."""

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None: ...

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        """Append the record; return False if it is larger than the topic accepts."""
        ...

    def too_large(self, what: str, size: int) -> StopForOperator: ...


@dataclass(frozen=True, slots=True)
class DebeziumTopics:
    """The topics that belong to no relation. Frames are those of the registered schemas;
    `transactions` is None when no transaction records are written."""

    messages: KeyedSink
    message_key_frame: bytes
    message_value_frame: bytes
    transactions: KeyedSink | None = None
    transaction_key_frame: bytes = b""
    transaction_value_frame: bytes = b""


@dataclass(slots=True)
class _Counts:
    """Events of the current transaction."""

    total: int = 0
    collections: dict[str, int] = field(default_factory=dict)


class DebeziumVersion(RelationVersion):
    """A version of a relation whose changes become Debezium's records in `sink`. `encoder`
    gives only the keys that snapshots compare; `records` encodes."""

    __slots__ = ("_keys", "_writer", "records", "sink")

    def __init__(
        self,
        name: str,
        schema_id: int,
        encoder: RowEncoder,
        records: DebeziumEncoder,
        sink: KeyedSink,
        writer: DebeziumWriter,
        changes: RelationChangeTracker | None = None,
        keys: ChangeKeys | None = None,
    ) -> None:
        super().__init__(name, schema_id, encoder, changes)
        self.records = records
        self.sink = sink
        self._writer = writer
        self._keys = keys

    @property
    def reads_tuples(self) -> bool:
        return True

    def tracked(self, changes: RelationChangeTracker) -> RelationVersion:
        if self._keys is None:
            self._keys = ChangeKeys(self.encoder.description, self.encoder.key_frame)
        return DebeziumVersion(
            self.name, self.schema_id, self.encoder, self.records, self.sink, self._writer, changes, self._keys
        )

    def row(self, transaction: Transaction, kind: int, data: bytes, row: int, end: int, change_lsn: int) -> None:
        writer = self._writer
        if change_lsn <= writer.written_lsn and writer.was_written(self, transaction, kind, data, row, end, change_lsn):
            return
        if self.changes is not None:
            self.track(data, kind, row, end)
        source = writer.source
        if not transaction.ordinal & _TICK:
            writer.refresh(source)
        if kind == INSERT:
            if not writer.skips_creates:
                if writer.writes_blocks:
                    block = writer.block(transaction, self.name)
                else:
                    block = _NO_BLOCK
                    transaction.ordinal += 1
                key, value = self.records.insert(data, row, end, source, change_lsn, block)
                self.sink.append_hashed(key, value)
        elif kind == UPDATE:
            if not self.records.new_tuple_only(data, row, end):
                self._change_both(transaction, source, data, row, end, change_lsn)
            elif not writer.skips_updates:
                block = writer.block(transaction, self.name)
                key, value = self.records.update(data, row, end, source, change_lsn, block)
                self.sink.append_hashed(key, value)
        elif not writer.skips_deletes:
            key, before = self.records.delete(data, row, end)
            self._delete(transaction, source, key, before, change_lsn)

    def _change_both(
        self, transaction: Transaction, source: SourceContext, data: bytes, row: int, end: int, change_lsn: int
    ) -> None:
        """Write an update that has a key or old tuple."""
        writer, records = self._writer, self.records
        old_key, before, key, after = records.both(data, row, end)
        if old_key == key:
            if not writer.skips_updates:
                block = writer.block(transaction, self.name)
                self.sink.append_hashed(key, records.updated(before, after, source, change_lsn, block))
            return
        if not writer.skips_deletes:
            self._delete(transaction, source, old_key, before, change_lsn)
        if not writer.skips_creates:
            block = writer.block(transaction, self.name)
            self.sink.append_hashed(key, records.created(after, source, change_lsn, block))

    def _delete(
        self, transaction: Transaction, source: SourceContext, key: bytes | None, before: list[bytes], change_lsn: int
    ) -> None:
        block = self._writer.block(transaction, self.name)
        self.sink.append_hashed(key, self.records.deleted(before, source, change_lsn, block))
        if key is not None and self._writer.writes_tombstones:
            self.sink.append_hashed(key, None)

    def track(self, data: bytes, kind: int, row: int, end: int) -> None:
        changes = self.changes
        if changes is None or self._keys is None:
            return
        key, old_key, lacks_values = self._keys.of(data, kind, row, end)
        changes.hold_key(key)
        if old_key != key:
            changes.hold_key(old_key)
        if lacks_values:
            changes.left_out(self.encoder, key, old_key)

    def failing(self, part: TuplePart) -> str | None:
        return self.records.failing(part)

    def too_large(self, what: str, size: int) -> StopForOperator:
        return self.sink.too_large(what, size)


class DebeziumWriter(RecordWriter):
    """Writes Debezium's records. `clock_ns` returns nanoseconds since the Unix epoch. `written` is
    the xid of the transaction in which the replaced connector stopped, and the LSN of the last
    change of it that the connector wrote."""

    def __init__(
        self,
        *,
        epoch: int,
        last_commit_lsn: int,
        names: SourceNames,
        topics: DebeziumTopics,
        options: DebeziumOptions,
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
        """LSN up to which the replaced connector wrote the current transaction."""
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
        self._held: tuple[DebeziumVersion, int, bytes, int, int] | None = None
        self._has_pending = False

    # -- transactions

    def open(
        self, xid: int, commit_lsn: int | None, commit_time: int | None, resume_lsn: int, in_stream: bool
    ) -> Transaction:
        transaction = Transaction(xid, self._manifest, self._context, commit_lsn, commit_time)
        self._last_end_lsn = resume_lsn if self._has_commits else 0
        self.source = self._source_of(transaction)
        written_xid, written_lsn = self._written
        self.written_lsn = written_lsn if xid == written_xid else 0
        self._held = None
        return transaction

    def _source_of(self, transaction: Transaction, *, is_read: bool = False) -> SourceContext:
        assert transaction.commit_lsn is not None
        return SourceContext(
            self._names, transaction.xid, transaction.commit_lsn, transaction.commit_time or 0, self._last_end_lsn,
            transaction.origin, self._written_at, is_read=is_read,
        )  # fmt: skip

    def refresh(self, source: SourceContext) -> None:
        """Set the current time as the one at which the next records are written."""
        now_ns = self._clock_ns()
        if not 0 <= now_ns - self._written_ns < _TICK_NS:
            self._written_ns = now_ns
            self._written_at = written_at(now_ns)
        source.written = self._written_at

    def enter(self, transaction: Transaction, in_stream: bool) -> None:
        self.source = self._source_of(transaction)

    def begin(self, transaction: Transaction, resume_lsn: int) -> None:
        """Do nothing: `block` writes BEGIN, and only for events that have a place in the
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
        """Count one more event and return its transaction block; the first one writes BEGIN."""
        transaction.ordinal += 1
        if not self.writes_blocks:
            return _NO_BLOCK
        counts = self._counts
        if not counts.total:
            self._begin_transaction(transaction)
        counts.total += 1
        order = counts.collections[collection] = counts.collections.get(collection, 0) + 1
        return transaction_block(self._block_head, counts.total, order)

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
        version: DebeziumVersion,
        transaction: Transaction,
        kind: int,
        data: bytes,
        row: int,
        end: int,
        change_lsn: int,
    ) -> bool:
        """Return whether the replaced connector wrote a change at `written_lsn` or before it.

        The first row at the last written LSN is held back as written. If another one follows at the
        same LSN, as in a COPY, it is unknown how many of them were written: all are written again.
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
            assert isinstance(version, DebeziumVersion)
            block = self.block(transaction, version.name)
            version.sink.append_hashed(None, version.records.truncate(self.source, change_lsn, block))

    def write_read_rows(
        self,
        transaction: Transaction,
        version: RelationVersion,
        rows: Iterable[tuple[bytes | None, bytes]],
        change_lsn: int,
    ) -> None:
        """Write rows of a snapshot, each a pair of its key and its tuple."""
        assert isinstance(version, DebeziumVersion)
        source = self._source_of(transaction, is_read=True)
        self.refresh(source)
        read, append = version.records.read, version.sink.append_hashed
        for _, data in rows:
            append(*read(data, source, change_lsn))
            transaction.ordinal += 1

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
            block = self.block(transaction, message.prefix)
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
        return 0 if topics.messages.offer_hashed(key, value) else len(value)

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
        """Note a marker that is not written: the state that it reports becomes durable when the
        marker itself would have."""
        self._has_pending = True

    @property
    def pending_count(self) -> int:
        return int(self._has_pending)

    def take_pending(self) -> list[Marker]:
        self._has_pending = False
        return []
