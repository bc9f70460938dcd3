"""Walgate's own dialect: change events, and markers with their manifests.

Rows are sent to their topic at once, even if it is not known whether their transaction commits;
their `commit_lsn` is then null. Rows count once the marker that ends their transaction is there.
Markers are only collected here: `gateway/kafka` writes them when every row before them is
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker
from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.pgoutput.letters import INSERT, UPDATE
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.row import TuplePart
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from gateway.transactions.transaction import MessageTopic, Prepared, RecordSink, RelationChangeTracker, Transaction
from schemas.varint import encode_long

_SKIPPED: Final = "skipped by the operator: walgate skip"


class EventVersion(RelationVersion):
    """A version of a relation whose changes become change events in `sink`."""

    __slots__ = ("sink",)

    def __init__(
        self,
        name: str,
        schema_id: int,
        encoder: RowEncoder,
        sink: RecordSink,
        changes: RelationChangeTracker | None = None,
    ) -> None:
        super().__init__(name, schema_id, encoder, changes)
        self.sink = sink

    def tracked(self, changes: RelationChangeTracker) -> RelationVersion:
        return EventVersion(self.name, self.schema_id, self.encoder, self.sink, changes)

    def row(self, transaction: Transaction, kind: int, data: bytes, row: int, end: int, change_lsn: int) -> None:
        encoder, ordinal, manifest = self.encoder, transaction.ordinal, transaction.manifest
        transaction.ordinal = ordinal + 1
        moved = None
        if kind == INSERT:
            key, value = encoder.insert(data, row, end, transaction.context, change_lsn, ordinal)
        elif kind == UPDATE:
            key, value, moved = encoder.update(data, row, end, transaction.context, change_lsn, ordinal)
            if moved is not None:
                self.sink.append(moved[0], moved[1], manifest)
        else:
            key, value = encoder.delete(data, row, end, transaction.context, change_lsn, ordinal)
        self.sink.append(key, value, manifest)
        changes = self.changes
        if changes is not None:
            changes.hold_key(key)
            if moved is not None:
                changes.hold_key(moved[0])
            if encoder.left_out_count != changes.left_out_count:
                changes.left_out(encoder, key, key if moved is None else moved[0])

    def truncate(self, transaction: Transaction, change_lsn: int) -> None:
        value = self.encoder.truncate(transaction.context, change_lsn, transaction.ordinal)
        self.sink.append_everywhere(value, transaction.manifest)
        transaction.ordinal += 1

    def read(self, transaction: Transaction, rows: Iterable[tuple[bytes | None, bytes]], change_lsn: int) -> None:
        context, manifest, ordinal = transaction.context, transaction.manifest, transaction.ordinal
        head = self.encoder.read_head + context.identity + encode_long(change_lsn)
        commit = context.commit
        append = self.sink.append
        for key, tail in rows:
            append(key, b"".join((head, encode_long(ordinal), commit, tail)), manifest)
            ordinal += 1
        transaction.ordinal = ordinal

    def track(self, data: bytes, kind: int, row: int, end: int) -> None:
        """Do nothing: `row` tells the tracker each key."""

    def failing(self, part: TuplePart) -> str | None:
        return self.encoder.failing(part)

    def too_large(self, what: str, size: int) -> StopForOperator:
        return self.sink.too_large(what, size)


class EventWriter(RecordWriter):
    """Write change events and markers."""

    def __init__(self, epoch: int, messages: MessageTopic) -> None:
        super().__init__()
        self._epoch = epoch
        self._messages = messages
        self._markers: list[Marker] = []

    def open(
        self, xid: int, commit_lsn: int | None, commit_time: int | None, resume_lsn: int, in_stream: bool
    ) -> Transaction:
        context = TransactionContext(xid, -1, self._epoch, commit_lsn, commit_time, None, in_stream)
        return Transaction(xid, Manifest(self._epoch), context, commit_lsn, commit_time)

    def enter(self, transaction: Transaction, in_stream: bool) -> None:
        transaction.context = TransactionContext(
            transaction.xid, transaction.subxid, self._epoch, transaction.commit_lsn, transaction.commit_time,
            transaction.origin, in_stream,
        )  # fmt: skip

    def begin(self, transaction: Transaction, resume_lsn: int) -> None:
        if transaction.context.in_stream:
            marker = Marker("STREAM_START", transaction.xid, resume_lsn, origin=transaction.origin)
        elif transaction.prepare is not None:
            begun = transaction.prepare
            marker = Marker(
                "BEGIN_PREPARE", transaction.xid, begun.prepare_lsn, -1, begun.end_lsn, begun.prepare_time, begun.gid,
                transaction.origin,
            )  # fmt: skip
        else:
            assert transaction.commit_lsn is not None
            marker = Marker(
                "BEGIN",
                transaction.xid,
                transaction.commit_lsn,
                time=transaction.commit_time,
                origin=transaction.origin,
            )
        self._markers.append(marker)

    def relation(self, transaction: Transaction, version: RelationVersion) -> None:
        if version.schema_id not in transaction.manifest.schema_ids:
            transaction.manifest.schema_ids.append(version.schema_id)

    def truncate(
        self, transaction: Transaction, versions: Sequence[RelationVersion], change_lsn: int, relation_count: int
    ) -> None:
        for version in versions:
            version.truncate(transaction, change_lsn)

    # -- logical messages

    def message(self, transaction: Transaction | None, message: Message, change_lsn: int, resume_lsn: int) -> int:
        topic = self._messages
        if transaction is None:
            context, ordinal, manifest = TransactionContext(0, -1, self._epoch, None, None, None), 0, None
        else:
            context, ordinal, manifest = transaction.context, transaction.ordinal, transaction.manifest
        value = topic.encode(
            context, change_lsn, ordinal, message.transactional, message.message_lsn, message.prefix, message.content
        )
        if not topic.sink.offer(value, manifest):
            return len(value)
        if transaction is not None:
            if topic.schema_id not in transaction.manifest.schema_ids:
                transaction.manifest.schema_ids.append(topic.schema_id)
            transaction.ordinal += 1
        return 0

    def exclude_message(self, transaction: Transaction, prefix: str) -> None:
        transaction.manifest.exclude_message(self._messages.topic, prefix)

    # -- ends

    def end(
        self, transaction: Transaction, kind: str, marker_lsn: int, end_lsn: int, time: int, gid: str | None
    ) -> bool:
        manifest = transaction.manifest
        manifest.event_count = transaction.ordinal
        is_empty = manifest.is_empty
        if transaction.skipped:
            self._markers.append(
                Marker("SKIP", transaction.xid, marker_lsn, -1, end_lsn, time, gid, transaction.origin, None, _SKIPPED)
            )
        elif not is_empty:
            self._markers.append(
                Marker(kind, transaction.xid, marker_lsn, -1, end_lsn, time, gid, transaction.origin, manifest)
            )
            if kind in ("COMMIT", "STREAM_COMMIT"):
                self.marked_lsn, self.marked_time = marker_lsn, time
        return not is_empty

    # -- streamed and prepared transactions

    def accept_stream(self) -> bool:
        return True

    def accept_prepared(self, xid: int) -> None:
        """Do nothing: prepared transactions are written like others."""

    def stop_segment(self, transaction: Transaction, resume_lsn: int) -> None:
        self._markers.append(Marker("STREAM_STOP", transaction.xid, resume_lsn))

    def abort(self, transaction: Transaction, subxid: int, lsn: int, time: int | None) -> None:
        manifest, xid = transaction.manifest, transaction.xid
        is_whole = subxid == xid
        manifest.event_count = transaction.ordinal
        if transaction.ordinal and not is_whole:
            manifest.aborted_subxids.append(subxid)
        if not manifest.is_empty:
            complete = manifest if is_whole else None
            self._markers.append(
                Marker("STREAM_ABORT", xid, lsn, subxid, None, time, None, transaction.origin, complete)
            )

    def end_prepared(self, prepared: Prepared, kind: str, marker_lsn: int, end_lsn: int, time: int) -> None:
        if prepared.manifest.is_empty:
            return
        self._markers.append(
            Marker(kind, prepared.xid, marker_lsn, -1, end_lsn, time, prepared.gid, prepared.origin, prepared.manifest)
        )
        if kind == "COMMIT_PREPARED":
            self.marked_lsn, self.marked_time = marker_lsn, time

    # -- pending markers

    def add_pending(self, marker: Marker) -> None:
        self._markers.append(marker)

    @property
    def pending_count(self) -> int:
        return len(self._markers)

    def take_pending(self) -> list[Marker]:
        markers, self._markers = self._markers, []
        return markers
