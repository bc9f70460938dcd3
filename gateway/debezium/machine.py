"""The state machine in Debezium's dialect: it receives the same messages as TransactionMachine and
writes records for Debezium's consumers.

Only committed transactions are received (never streamed, never prepared ones), so there are no
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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from librt.strings import read_i32_be

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
from gateway.events.manifest import Manifest
from gateway.events.marker import Marker
from gateway.events.transaction_context import TransactionContext
from gateway.names import HEARTBEAT_PREFIX
from gateway.pgoutput import BeginPrepare, Message, MessageHead, Origin, StreamStart, Truncate
from gateway.pgoutput.letters import INSERT, UPDATE
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import (
    OWN_PREFIXES,
    ChangeObserver,
    ExcludedMessage,
    ExcludedTable,
    MessageTopic,
    Prepared,
    RelationVersion,
    Transaction,
    tell,
)
from gateway.values.column_readers import some_bytes

_UNSIGNED: Final = 0xFFFFFFFF
_NO_BLOCK: Final = b"\0"
_TICK: Final = 0xFF
"""Mask of the ordinals between which the clock is not read: 256 rows of a transaction share the
time at which they were written."""
_TICK_NS: Final = 500_000
"""Nanoseconds within which transactions share the time at which they were written."""
_NAMED_PREFIX: Final = 100


class KeyedSink(Protocol):
    """Destination of one topic's records, partitioned as Kafka's own clients do it."""

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None: ...

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        """Append the record; return False if it is larger than the topic accepts."""
        ...

    def too_large(self, what: str, size: int) -> StopForOperator: ...


@dataclass(slots=True)
class DebeziumVersion:
    """A version of a relation in Debezium's dialect, in addition to its RelationVersion."""

    collection: str
    """`schema.table`"""
    encoder: DebeziumEncoder
    outlet: KeyedSink


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


class DebeziumMachine(TransactionMachine):
    """State machine that writes Debezium's records. `clock_ns` returns nanoseconds since the Unix
    epoch. Raises what TransactionMachine raises."""

    records_exclusions: ClassVar[bool] = False

    def __init__(
        self,
        *,
        epoch: int,
        resume_lsn: int,
        last_commit_lsn: int,
        prepared: Iterable[Prepared],
        messages: MessageTopic,
        names: SourceNames,
        topics: DebeziumTopics,
        options: DebeziumOptions,
        clock_ns: Callable[[], int],
        skip_lsn: int = 0,
        written: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(
            epoch=epoch,
            resume_lsn=resume_lsn,
            last_commit_lsn=last_commit_lsn,
            prepared=prepared,
            messages=messages,
            skip_lsn=skip_lsn,
        )
        self.versions: dict[int, DebeziumVersion] = {}
        self.snapshot_versions: dict[int, DebeziumVersion] = {}
        """Versions of the relations whose existing rows are read, by oid."""
        self.on_left_out: Callable[[int], bool] | None = None
        """Called with a relation's oid when an UPDATE of it came without a value; returns whether
        changes to the relation are tracked from that UPDATE on."""
        self._tracks = False
        self._owes = False
        self._names = names
        self._topics = topics
        self._clock_ns = clock_ns
        self._message_topic = messages
        self._skips_creates = "c" in options.skipped_operations
        self._skips_updates = "u" in options.skipped_operations
        self._skips_deletes = "d" in options.skipped_operations
        self._skips_truncates = "t" in options.skipped_operations
        self._as_binary = AS_BINARY[options.binary_handling_mode]
        self._writes_tombstones = options.tombstones_on_delete
        self._writes_blocks = options.provide_transaction_metadata
        self._source: SourceContext | None = None
        self._written_ns = -_TICK_NS
        self._written_at = b""
        # Placeholders: rows carry no context, and there are no manifests.
        self._context = TransactionContext(0, -1, epoch, None, None, None)
        self._manifest = Manifest(epoch)
        self._block_head = _NO_BLOCK
        self._counts = _Counts()
        self._written = written
        self._written_lsn = 0
        self._held: tuple[bytes, int, int] | None = None

    # -- transactions
    # -------------------------------------------------------------------------------------------------

    def _open(self, xid: int, commit_lsn: int | None, commit_time: int | None, in_stream: bool = False) -> Transaction:
        if self._tracks:
            return super()._open(xid, commit_lsn, commit_time, in_stream)
        return Transaction(xid, self._manifest, self._context, commit_lsn, commit_time)

    def begin(self, commit_lsn: int, commit_time: int, xid: int) -> None:
        super().begin(commit_lsn, commit_time, xid)
        self._source = self._source_of(self._demand_transaction("Begin"))
        written_xid, written_lsn = self._written
        self._written_lsn = written_lsn if xid == written_xid else 0
        self._held = None

    def _source_of(self, transaction: Transaction, *, is_read: bool = False) -> SourceContext:
        assert transaction.commit_lsn is not None
        last = self.resume_lsn if self.last_commit_lsn else 0
        return SourceContext(
            self._names, transaction.xid, transaction.commit_lsn, transaction.commit_time or 0, last, transaction.origin,
            self._written_at, is_read=is_read,
        )  # fmt: skip

    def _refresh(self, source: SourceContext) -> None:
        """Set the current time as the one at which the next records are written."""
        now_ns = self._clock_ns()
        if not 0 <= now_ns - self._written_ns < _TICK_NS:
            self._written_ns = now_ns
            self._written_at = written_at(now_ns)
        source.written = self._written_at

    def _origin(self, message: Origin, change_lsn: int) -> None:
        """Take an origin, which the protocol allows between rows too."""
        super()._origin(message, change_lsn)
        self._source = self._source_of(self._demand_transaction("Origin"))

    def _finish(
        self, transaction: Transaction, kind: str, marker_lsn: int, end_lsn: int, time: int, gid: str | None = None
    ) -> None:
        if self._counts.total:
            self._end_transaction(transaction)
            self._counts = _Counts()
        self.event_count += transaction.ordinal
        self._note_commit(marker_lsn)
        self._note_undelivered(time, transaction.is_heartbeat or transaction.ordinal > 0)
        if transaction.is_heartbeat:
            self.heartbeat_time = time
        self._resume_behind(end_lsn)

    def _end_transaction(self, transaction: Transaction) -> None:
        topics, source, counts = self._topics, self._source, self._counts
        assert topics.transactions is not None and source is not None
        key = transaction_key(topics.transaction_key_frame, source.transaction_id)
        value = transaction_end(
            topics.transaction_value_frame, source.transaction_id, transaction.commit_time or 0, counts.total,
            counts.collections,
        )  # fmt: skip
        topics.transactions.append_hashed(key, value)

    def _block(self, transaction: Transaction, collection: str) -> bytes:
        """Count one more event and return its transaction block; the first one writes BEGIN."""
        transaction.ordinal += 1
        transaction.silent = False
        if not self._writes_blocks:
            return _NO_BLOCK
        counts = self._counts
        if not counts.total:
            self._begin_transaction(transaction)
        counts.total += 1
        order = counts.collections[collection] = counts.collections.get(collection, 0) + 1
        return transaction_block(self._block_head, counts.total, order)

    def _begin_transaction(self, transaction: Transaction) -> None:
        topics, source = self._topics, self._source
        assert topics.transactions is not None and source is not None
        self._block_head = some_bytes(source.transaction_id.encode())
        key = transaction_key(topics.transaction_key_frame, source.transaction_id)
        value = transaction_begin(topics.transaction_value_frame, source.transaction_id, transaction.commit_time or 0)
        topics.transactions.append_hashed(key, value)

    # -- rows: the hot path
    # -------------------------------------------------------------------------------------------

    def change(self, data: bytes, position: int, end: int, change_lsn: int) -> None:
        transaction, source = self._current, self._source
        if transaction is None or source is None:
            raise self._out_of_order(f"a row message ({chr(data[position])})", "inside a transaction")
        if transaction.skipped or (
            change_lsn <= self._written_lsn and self._was_written(data, position, end, change_lsn)
        ):
            return
        row = position + 5
        relation_oid: int = read_i32_be(data, row - 4)
        relation_oid &= _UNSIGNED
        version = self.versions.get(relation_oid)
        if version is None or self._refused:
            if self._leaves_out(transaction, relation_oid):
                return
            version = self._debezium_version(relation_oid)
        if self._tracks:
            self._track(transaction, relation_oid, data, row, end, change_lsn)
        if not transaction.ordinal & _TICK:
            self._refresh(source)
        kind = data[position]
        if kind == INSERT:
            if not self._skips_creates:
                if self._writes_blocks:
                    block = self._block(transaction, version.collection)
                else:
                    block = _NO_BLOCK
                    transaction.ordinal += 1
                    transaction.silent = False
                key, value = version.encoder.insert(data, row, end, source, change_lsn, block)
                version.outlet.append_hashed(key, value)
        elif kind == UPDATE:
            if not version.encoder.new_tuple_only(data, row, end):
                self._change_both(transaction, version, source, data, row, end, change_lsn)
            elif not self._skips_updates:
                block = self._block(transaction, version.collection)
                key, value = version.encoder.update(data, row, end, source, change_lsn, block)
                version.outlet.append_hashed(key, value)
        elif not self._skips_deletes:
            key, before = version.encoder.delete(data, row, end)
            self._delete(transaction, version, source, key, before, change_lsn)

    # -- snapshots
    # ------------------------------------------------------------------------------------------------------

    def set_observer(self, watch: ChangeObserver | None) -> None:
        super().set_observer(watch)
        self._tracks = watch is not None and watch.is_tracking

    def _track(
        self, transaction: Transaction, relation_oid: int, data: bytes, row: int, end: int, change_lsn: int
    ) -> None:
        """Encode a change of a table under snapshot in Walgate's own dialect too, for its key,
        which identifies the changed row; the record is discarded."""
        version = self._active.get(relation_oid) or self._activate(relation_oid)
        changes = version.changes
        if changes is None:
            return
        context, manifest, kind = transaction.context, transaction.manifest, data[row - 5]
        if version.noted_in is not manifest:
            version.noted_in = manifest
            changes.enter(transaction)
        moved = None
        if kind == INSERT:
            key, _ = version.encoder.insert(data, row, end, context, change_lsn, 0)
        elif kind == UPDATE:
            key, _, moved = version.encoder.update(data, row, end, context, change_lsn, 0)
        else:
            key, _ = version.encoder.delete(data, row, end, context, change_lsn, 0)
        tell(changes, version.encoder, key, moved)

    def left_out(self, relation_oid: int, data: bytes, row: int, end: int) -> None:
        """Handle the Update message at `row`, which came without a value and was written without
        it."""
        if self.on_left_out is not None and self.on_left_out(relation_oid):
            self._track(self._demand_transaction("Update"), relation_oid, data, row, end, 0)

    def read(self, version: RelationVersion, rows: Iterable[tuple[bytes | None, bytes]], change_lsn: int) -> None:
        """Write rows of a snapshot, each a pair of its key and its tuple."""
        transaction = self._demand_transaction("rows of a snapshot")
        found = self.snapshot_versions[version.encoder.description.oid]
        source = self._source_of(transaction, is_read=True)
        self._refresh(source)
        read, append = found.encoder.read, found.outlet.append_hashed
        transaction.silent = False
        for _, data in rows:
            append(*read(data, source, change_lsn))
            transaction.ordinal += 1

    def add_pending_marker(self, marker: Marker) -> None:
        """Note a marker that is not written: the state that it reports becomes durable when the
        marker itself would have."""
        self._owes = True

    @property
    def pending_marker_count(self) -> int:
        return int(self._owes)

    def announce(self, relation_oid: int, subxid: int | None, version: RelationVersion | ExcludedTable) -> None:
        super().announce(relation_oid, subxid, version)
        if isinstance(version, ExcludedTable):
            self.versions.pop(relation_oid, None)

    def take_markers(self) -> list[Marker]:
        self._owes = False
        return []

    def _was_written(self, data: bytes, position: int, end: int, change_lsn: int) -> bool:
        """Return whether the replaced connector wrote the change.

        The first row at the last written LSN is held back as written. If another one follows at the
        same LSN, as in a COPY, it is unknown how many of them were written: all are written again.
        """
        if change_lsn < self._written_lsn:
            return True
        if self._held is None:
            self._held = data, position, end
            return True
        self._written_lsn = 0
        self.change(*self._held, change_lsn)
        return False

    def _debezium_version(self, relation_oid: int) -> DebeziumVersion:
        version = self.versions.get(relation_oid)
        if relation_oid in self._refused:
            raise self._refused[relation_oid]
        if version is None:
            raise self._out_of_order(f"a change of relation {relation_oid}", "after a Relation message for it")
        return version

    def _change_both(
        self,
        transaction: Transaction,
        version: DebeziumVersion,
        source: SourceContext,
        data: bytes,
        row: int,
        end: int,
        change_lsn: int,
    ) -> None:
        """Write an update that has a key or old tuple."""
        encoder = version.encoder
        old_key, before, key, after = encoder.both(data, row, end)
        if old_key == key:
            if not self._skips_updates:
                block = self._block(transaction, version.collection)
                value = encoder.updated(before, after, source, change_lsn, block)
                version.outlet.append_hashed(key, value)
            return
        if not self._skips_deletes:
            self._delete(transaction, version, source, old_key, before, change_lsn)
        if not self._skips_creates:
            block = self._block(transaction, version.collection)
            version.outlet.append_hashed(key, encoder.created(after, source, change_lsn, block))

    def _delete(
        self,
        transaction: Transaction,
        version: DebeziumVersion,
        source: SourceContext,
        key: bytes | None,
        before: list[bytes],
        change_lsn: int,
    ) -> None:
        block = self._block(transaction, version.collection)
        version.outlet.append_hashed(key, version.encoder.deleted(before, source, change_lsn, block))
        if key is not None and self._writes_tombstones:
            version.outlet.append_hashed(key, None)

    def _truncate(self, message: Truncate, change_lsn: int) -> None:
        transaction = self._demand_transaction("Truncate")
        kept = [oid for oid in message.relation_oids if not self._leaves_out(transaction, oid)]
        for relation_oid in kept if self._tracks else ():
            changes = (self._active.get(relation_oid) or self._activate(relation_oid)).changes
            if changes is not None:
                changes.enter(transaction)
                changes.truncated()
        # At the last LSN itself, records of only some of the tables may have been written.
        was_written = change_lsn < self._written_lsn + (len(message.relation_oids) == 1)
        if self._skips_truncates or transaction.skipped or was_written:
            return
        assert self._source is not None
        self._refresh(self._source)
        for relation_oid in kept:
            version = self._debezium_version(relation_oid)
            block = self._block(transaction, version.collection)
            version.outlet.append_hashed(None, version.encoder.truncate(self._source, change_lsn, block))

    # -- logical messages
    # ---------------------------------------------------------------------------------------------

    def _message(self, message: Message, change_lsn: int) -> None:
        transaction = self._transaction_of(message)
        if message.prefix == HEARTBEAT_PREFIX and transaction is not None:
            transaction.is_heartbeat = True
        if transaction is not None and (transaction.skipped or change_lsn <= self._written_lsn):
            return
        if not self._message_topic.takes(message.prefix):
            if self.watch is not None and transaction is not None and message.prefix in OWN_PREFIXES:
                found = self.watch.message(message.prefix, message.content, transaction.xid, False)
                self.arrived = found or self.arrived
            return
        now_ns = self._clock_ns()
        if transaction is None:
            source = SourceContext(self._names, None, 0, now_ns // 1000, self.resume_lsn, None)
            block = _NO_BLOCK
        else:
            assert self._source is not None
            source = self._source
            block = self._block(transaction, message.prefix)
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
            self._leave_out(message, transaction, len(value))

    def _leave_out(self, message: Message | MessageHead, transaction: Transaction | None, message_bytes: int) -> None:
        xid = 0 if transaction is None else transaction.xid
        left_out = ExcludedMessage(xid, message.message_lsn, message.prefix[:_NAMED_PREFIX], message_bytes)
        self._message_topic.leave_out(left_out)

    # -- messages that are not received in this dialect
    # ---------------------------------------------------------------------------

    def _stream_start(self, message: StreamStart, change_lsn: int) -> None:
        raise self._out_of_order("Stream Start", "only committed transactions, as streaming was not requested")

    def _begin_prepare(self, message: BeginPrepare, change_lsn: int) -> None:
        raise StopForOperator(
            "two_phase is enabled for the slot, so prepared transactions are sent before they commit (transaction "
            f"{message.xid}), and with kafka.dialect = debezium, consumers would treat them as committed",
            hint="either use a new source.slot (created without two_phase) and a new kafka.prefix, or, on PostgreSQL 18 and "
            'later, disable two_phase for the slot: run psql "dbname=... replication=database" '
            "-c 'ALTER_REPLICATION_SLOT <slot> (TWO_PHASE false)', then start the gateway",
        )

    def _refuse_drained(self, relation_oid: int, message_bytes: int) -> None:
        if not self.is_skipping:
            outlet = self._debezium_version(relation_oid).outlet
            raise outlet.too_large(f"comes in a message of {message_bytes} bytes", message_bytes)
