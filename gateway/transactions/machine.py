"""The state machine: pgoutput messages -> change events in their topics, and markers.

Theory
======

A transaction arrives in one of four shapes, which the server chooses; the same transaction may have
another shape after a restart (PostgreSQL manual 55.5, "Streaming Replication Protocol of Logical
Decoding"):

    ordinary            B  rows  C
    prepared            b  rows  P              ...  K (commit prepared) or r (rollback prepared),
                                                     much later
    in-progress         (S rows E)+  [A sub]*   then c (stream commit) or A (abort of all of it)
    in-progress, 2PC    (S rows E)+  [A sub]*   then p (stream prepare)  ...  K or r

A transaction can therefore be in three places:

    current     receives the rows that arrive now: between B and C, b and P, or S and E. At most
                one.
    streams     in-progress transactions between two segments, by xid; segments of several of them
                alternate. During a segment its transaction is in `streams` *and* current.
    prepared    ended by P or p, waiting for K or r; by (gid, xid). Survives the process, as part of
                the position.

    None --B, b--> current --C--> None        None --S--> current, streams --E--> streams
    current --P--> prepared                   streams --c, A--> None
    prepared --K, r--> None                   streams --p--> prepared

Visibility: rows are sent to their topic at once, even if it is not known whether their transaction
commits; their `commit_lsn` is then null. They count once the marker that ends the transaction is
there, with its manifest. Markers are only *owed* here: `gateway/kafka` writes them when every row
before them is acknowledged.

Rules that connect the states:

* A transaction without events leaves no trace: the marker that begins it is owed from its first
  event on (`silent`).
* `resume_lsn` advances at each end (C, c, P, p, K, r: to the *end* LSN) and at a message outside
  transactions. It never depends on open streams: PostgreSQL sends those again from their first
  change as long as they have not ended.
* `resume_lsn` never goes back, although the end LSN does for a transaction that was prepared before
  two-phase was enabled for the slot: the whole of it is sent at its COMMIT PREPARED.
* Everything of an in-progress attempt is void after a restart. Only `prepared` is kept.
* In a stream, a logical message carries the xid of the top-level transaction, a row that of its
  subtransaction. If a subtransaction is rolled back, its messages cannot be identified:
  RolledBackMessages.
* The relation cache has an overlay for each open stream, dropped or merged when the stream ends.
* A relation that source.excluded_tables names has a version of its own kind in the relation cache,
  so that rollbacks and renames apply to it, too. Its changes are counted, and are in `excluded`
  only if the relation has a topic.
* A relation in quarantine gets no records: its changes are counted in `excluded` of their
  transaction's manifest. The transaction at `skip_lsn` is left out as a whole; its last marker is
  SKIP, and a relation that was refused in it is refused again by the next change that needs it.
* Commit LSNs rise strictly from one committed transaction to the next. If they do not, something is
  fundamentally wrong (another server, a slot that went back) and going on would duplicate rows.

The file is longer than others because it has every transition, and nothing else.

A remaining asymmetry: the rollback of a prepared transaction that was never received is legal (it
was prepared before the slot existed) and ignored, while its *commit* is an error; PostgreSQL sends
the rows first in that case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from librt.strings import read_i32_be

from gateway.errors import UNTIL_NOW, DataGap, Retry, StopForOperator, WalgateError
from gateway.events.manifest import Manifest
from gateway.events.marker import Marker, readable_time
from gateway.events.transaction_context import TransactionContext
from gateway.names import HEARTBEAT_PREFIX
from gateway.pgoutput import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Message,
    MessageHead,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    read_message_head,
)
from gateway.pgoutput.letters import INSERT, ROW_MESSAGES, UPDATE
from gateway.relations.relation_cache import RelationCache
from gateway.transactions.transaction import (
    EXCLUDED_REASON,
    OWN_PREFIXES,
    ChangeObserver,
    ExcludedMessage,
    ExcludedTable,
    MessageTopic,
    Prepared,
    Quarantined,
    RelationVersion,
    Transaction,
)
from schemas.lsn import Lsn
from schemas.varint import encode_long

_UNSIGNED: Final = 0xFFFFFFFF
"""Oids and xids are unsigned; what librt reads is signed. librt takes 0.02 us for a value, struct
0.06."""

_SKIPPED: Final = "skipped by the operator: walgate skip"

_NAMED_PREFIX: Final = 100
"""Characters of a prefix that are enough to recognize it: it may be as large as the message."""


class OutOfOrder(StopForOperator):
    """A message arrived where the protocol does not allow it."""


class RolledBackMessages(Retry):
    """Messages of a subtransaction that was rolled back cannot be told from others. Replication
    starts again without streaming; the server then leaves them out."""


class TransactionMachine:
    """Feed it with `receive` and `change` in stream order; take the owed markers with
    `take_markers`.

    `resume_lsn` is where replication may start again once everything so far is durable;
    `at_boundary` tells whether a Kafka transaction may end here. Raises OutOfOrder, DataGap, and
    what the encoders raise.
    """

    records_exclusions: ClassVar[bool] = True
    """Consumers see what was left out, so tables may be put in quarantine."""

    def __init__(
        self,
        *,
        epoch: int,
        resume_lsn: int,
        last_commit_lsn: int,
        prepared: Iterable[Prepared],
        messages: MessageTopic,
        quarantined: Iterable[Quarantined] = (),
        skip_lsn: int = 0,
    ) -> None:
        self.epoch = epoch
        self.resume_lsn = resume_lsn
        self.last_commit_lsn = last_commit_lsn
        self.prepared: dict[tuple[str, int], Prepared] = {(p.gid, p.xid): p for p in prepared}
        self.relations: RelationCache[RelationVersion | ExcludedTable] = RelationCache()
        self.quarantined: dict[int, Quarantined] = {each.relation_oid: each for each in quarantined}
        self.excluded_count: dict[int, int] = dict.fromkeys(self.quarantined, 0)
        self.left_out_count = 0
        """Number of changes of excluded tables."""
        self.skip_lsn = skip_lsn
        self._refused: dict[int, WalgateError] = {}  # relations that were described and have no version
        self.in_stream = False
        self.event_count = 0
        self.transaction_count = 0
        self.last_commit_time = 0
        self.marked_lsn = 0
        self.marked_time = 0
        """Commit LSN and time of the newest commit that has a marker: consumers see no other."""
        self.undelivered_since = 0
        self.undelivered_count = 0
        self.heartbeat_time = 0
        self.watch: ChangeObserver | None = None
        self.arrived: object | None = None
        """The object to be handed over where the current transaction commits: a chunk or a mark of a
        snapshot, or a command."""
        self._messages = messages
        self._current: Transaction | None = None
        self._current_is_prepare: BeginPrepare | None = None
        self._streams: dict[int, Transaction] = {}
        self._markers: list[Marker] = []
        self._active: dict[int, RelationVersion] = {}  # results of `in_force`, until one may change
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            Begin: self._begin,
            Commit: self._commit,
            Origin: self._origin,
            Message: self._message,
            Truncate: self._truncate,
            Type: self._type,
            StreamStart: self._stream_start,
            StreamStop: self._stream_stop,
            StreamCommit: self._stream_commit,
            StreamAbort: self._stream_abort,
            BeginPrepare: self._begin_prepare,
            Prepare: self._prepare,
            CommitPrepared: self._commit_prepared,
            RollbackPrepared: self._rollback_prepared,
            StreamPrepare: self._stream_prepare,
        }

    @property
    def at_boundary(self) -> bool:
        """Return whether no transaction that must stay in one Kafka transaction is open.

        A segment of a stream may be divided: its rows count only once the marker of the end is
        there, in whatever Kafka transaction they were sent. Segments are as large as the server's
        logical_decoding_work_mem, and rows should be readable before COMMIT.
        """
        return self._current is None or self.in_stream

    @property
    def current_xids(self) -> tuple[int, int] | None:
        """xid and subxid (-1: none) of what arrives now; None outside transactions."""
        return None if self._current is None else (self._current.xid, self._current.context.subxid)

    @property
    def current(self) -> Transaction | None:
        """The transaction whose changes arrive now."""
        return self._current

    @property
    def unfinished_xids(self) -> list[int]:
        """The xids of transactions that are streamed or prepared."""
        return [*self._streams, *(xid for _, xid in self.prepared)]

    @property
    def current_commit_lsn(self) -> Lsn | None:
        """Commit LSN of what arrives now, for a prepared transaction its prepare LSN; None if it is
        not known yet."""
        if self._current_is_prepare is not None:
            return Lsn(self._current_is_prepare.prepare_lsn)
        if self._current is None or self._current.commit_lsn is None:
            return None
        return Lsn(self._current.commit_lsn)

    @property
    def is_skipping(self) -> bool:
        return self._current is not None and self._current.skipped

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def pending_marker_count(self) -> int:
        return len(self._markers)

    def take_markers(self) -> list[Marker]:
        """Return the markers owed since the last call, in order."""
        markers, self._markers = self._markers, []
        return markers

    def take_undelivered(self) -> tuple[int, int]:
        """Return the commit time (Unix, microseconds; 0: none) of the first transaction with
        events, or a heartbeat, that has committed since the last call, and the number of these
        transactions."""
        undelivered = self.undelivered_since, self.undelivered_count
        self.undelivered_since = self.undelivered_count = 0
        return undelivered

    @property
    def receiving_since(self) -> int:
        """Commit time of the committed transaction whose rows arrive now; 0: none."""
        current = self._current
        return 0 if current is None or current.silent else current.commit_time or 0

    @property
    def stream_sizes(self) -> list[tuple[int, int]]:
        """xid and event count of the in-progress transactions that have been streamed."""
        return [(xid, transaction.ordinal) for xid, transaction in list(self._streams.items())]

    # -- messages

    def receive(self, message: object, change_lsn: int) -> None:
        """Process any message except row messages and Relation. `change_lsn` is the start of its
        XLogData."""
        self._handlers[type(message)](message, change_lsn)

    def announce(self, relation_oid: int, subxid: int | None, version: RelationVersion | ExcludedTable) -> None:
        """Process a Relation message whose schema is registered, or whose relation is left out.
        `subxid` is its xid field, present inside a stream."""
        self._active.clear()
        self._refused.pop(relation_oid, None)
        if self.in_stream:
            assert self._current is not None and subxid is not None
            self.relations.announce_in_stream(self._current.xid, subxid, relation_oid, version)
        else:
            self.relations.announce(relation_oid, version)

    def refuse(self, relation_oid: int, error: WalgateError) -> None:
        """Process a Relation message that cannot be announced, in a transaction that is left out,
        or that need not be announced: the relation's next change raises `error`."""
        self._active.clear()
        self._refused[relation_oid] = error

    def in_force(self, relation_oid: int) -> RelationVersion | None:
        """Return the version that the next change of the relation would be encoded with; None if it
        was never announced, or is left out."""
        found = self._announced(relation_oid)
        return found if isinstance(found, RelationVersion) else None

    def _announced(self, relation_oid: int) -> RelationVersion | ExcludedTable | None:
        xid = self._current.xid if self._current is not None and self.in_stream else None
        return self.relations.find(relation_oid, xid)

    # -- snapshots

    def set_observer(self, watch: ChangeObserver | None) -> None:
        """Set the observer. Call this again when its `version` may return something else for a
        relation."""
        self.watch = watch
        self._active.clear()

    def read(self, version: RelationVersion, rows: Iterable[tuple[bytes | None, bytes]], change_lsn: int) -> None:
        """Publish rows of a chunk (RowEncoder.copied) as changes of the transaction that commits
        now."""
        transaction = self._demand_transaction("rows of a snapshot")
        self._note_event(transaction, version.schema_id)
        context, manifest, ordinal = transaction.context, transaction.manifest, transaction.ordinal
        head = version.encoder.read_head + context.identity + encode_long(change_lsn)
        commit = context.commit
        append = version.outlet.append
        for key, tail in rows:
            append(key, b"".join((head, encode_long(ordinal), commit, tail)), manifest)
            ordinal += 1
        transaction.ordinal = ordinal

    def add_pending_marker(self, marker: Marker) -> None:
        """Owe a marker that no message causes."""
        self._markers.append(marker)

    # -- rows: the hot path

    def change(self, data: bytes, position: int, end: int, change_lsn: int) -> None:
        """Process an Insert, Update or Delete message at data[position:end]."""
        transaction = self._current
        if transaction is None:
            raise self._out_of_order(f"a row message ({chr(data[position])})", "inside a transaction")
        row = position + 5
        if self.in_stream:
            subxid: int = read_i32_be(data, position + 1)
            subxid &= _UNSIGNED
            row += 4
            if subxid != transaction.context_subxid:
                self._enter(transaction, subxid)
        relation_oid: int = read_i32_be(data, row - 4)
        relation_oid &= _UNSIGNED
        version = self._active.get(relation_oid)
        if version is None:
            if self._leaves_out(transaction, relation_oid):
                return
            version = self._activate(relation_oid)
        manifest = transaction.manifest
        if transaction.silent or version.noted_in is not manifest:
            self._note_event(transaction, version.schema_id)
            version.noted_in = manifest
            if version.changes is not None:
                version.changes.enter(transaction)
        ordinal = transaction.ordinal
        transaction.ordinal = ordinal + 1
        kind = data[position]
        moved = None
        if kind == INSERT:
            key, value = version.encoder.insert(data, row, end, transaction.context, change_lsn, ordinal)
        elif kind == UPDATE:
            key, value, moved = version.encoder.update(data, row, end, transaction.context, change_lsn, ordinal)
            if moved is not None:
                version.outlet.append(moved[0], moved[1], manifest)
        else:
            key, value = version.encoder.delete(data, row, end, transaction.context, change_lsn, ordinal)
        version.outlet.append(key, value, manifest)
        changes = version.changes
        if changes is not None:  # `tell`, inlined
            changes.hold_key(key)
            if moved is not None:
                changes.hold_key(moved[0])
            if version.encoder.left_out_count != changes.left_out_count:
                changes.left_out(version.encoder, key, key if moved is None else moved[0])

    def _activate(self, relation_oid: int) -> RelationVersion:
        """Return the version for the first event of a relation since versions last changed."""
        refused = self._refused.get(relation_oid)
        if refused is not None:
            raise refused
        version = self.in_force(relation_oid)
        if version is None:
            raise self._out_of_order(f"a change of relation {relation_oid}", "after a Relation message for it")
        if self.watch is not None:
            version = self.watch.version(relation_oid, version)
        self._active[relation_oid] = version
        return version

    def _leaves_out(self, transaction: Transaction, relation_oid: int) -> bool:
        """Return whether a change is not encoded and not written. Relations that are left out are
        never in `_active`."""
        if transaction.skipped:
            return True
        relation = self.quarantined.get(relation_oid)
        if relation is None:
            announced = self._announced(relation_oid)
            return isinstance(announced, ExcludedTable) and self._exclude(transaction, announced)
        self._note_begin(transaction)
        transaction.manifest.exclude(relation_oid, relation.namespace, relation.name, relation.topic, relation.reason)
        self.excluded_count[relation_oid] += 1
        return True

    def _exclude(self, transaction: Transaction, table: ExcludedTable) -> bool:
        self.left_out_count += 1
        if table.is_marked:
            self._note_begin(transaction)
            transaction.manifest.exclude(table.relation_oid, table.namespace, table.name, table.topic, EXCLUDED_REASON)
        return True

    def _note_begin(self, transaction: Transaction) -> None:
        if transaction.silent:
            transaction.silent = False
            self._owe_begin(transaction)

    def _note_event(self, transaction: Transaction, schema_id: int) -> None:
        self._note_begin(transaction)
        if schema_id not in transaction.manifest.schema_ids:
            transaction.manifest.schema_ids.append(schema_id)

    def _owe_begin(self, transaction: Transaction) -> None:
        if self.in_stream:
            marker = Marker("STREAM_START", transaction.xid, self.resume_lsn, origin=transaction.origin)
        elif self._current_is_prepare is not None:
            begin = self._current_is_prepare
            marker = Marker(
                "BEGIN_PREPARE", transaction.xid, begin.prepare_lsn, -1, begin.end_lsn, begin.prepare_time, begin.gid,
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

    def _enter(self, transaction: Transaction, subxid: int) -> None:
        """Note that the rows that follow belong to `subxid`. Rows of the top-level transaction
        itself are written with -1."""
        transaction.context_subxid = subxid
        transaction.context = TransactionContext(
            transaction.xid, -1 if subxid == transaction.xid else subxid, self.epoch, transaction.commit_lsn,
            transaction.commit_time, transaction.origin, self.in_stream,
        )  # fmt: skip

    # -- ordinary transactions

    def _open(self, xid: int, commit_lsn: int | None, commit_time: int | None, in_stream: bool = False) -> Transaction:
        context = TransactionContext(xid, -1, self.epoch, commit_lsn, commit_time, None, in_stream)
        return Transaction(xid, Manifest(self.epoch), context, commit_lsn, commit_time)

    def begin(self, commit_lsn: int, commit_time: int, xid: int) -> None:
        """Process a Begin message. Most transactions are small, so this avoids creating a message
        object, as `commit` does."""
        if self._current is not None:
            self._demand_no_transaction("Begin")
        self._current = self._open(xid, commit_lsn, readable_time(commit_time))
        if commit_lsn == self.skip_lsn:
            self._skip(self._current)

    def _skip(self, transaction: Transaction) -> None:
        transaction.skipped = True
        self._active.clear()

    def _begin(self, message: Begin, change_lsn: int) -> None:
        self.begin(message.commit_lsn, message.commit_time, message.xid)

    def commit(self, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        transaction = self._demand_transaction("Commit")
        if self._current_is_prepare is not None or transaction.commit_lsn != commit_lsn:
            raise self._out_of_order(f"Commit at {Lsn(commit_lsn)}", f"that of the open transaction {transaction.xid}")
        self._current = None
        self._finish(transaction, "COMMIT", commit_lsn, end_lsn, commit_time)
        if self.watch is not None:
            self.arrived = None
            self.watch.committed(transaction.xid)

    def _commit(self, message: Commit, change_lsn: int) -> None:
        self.commit(message.commit_lsn, message.end_lsn, message.commit_time)

    def _finish(
        self, transaction: Transaction, kind: str, marker_lsn: int, end_lsn: int, time: int, gid: str | None = None
    ) -> None:
        """Complete the transaction: owe its last marker, and let replication start again after
        it."""
        manifest = transaction.manifest
        manifest.event_count = transaction.ordinal
        self.event_count += transaction.ordinal
        if kind in ("COMMIT", "STREAM_COMMIT"):
            self._note_commit(marker_lsn)
            self._note_undelivered(time, transaction.is_heartbeat or not manifest.is_empty)
            if transaction.is_heartbeat:
                self.heartbeat_time = time
        if transaction.skipped:
            self._markers.append(
                Marker("SKIP", transaction.xid, marker_lsn, -1, end_lsn, time, gid, transaction.origin, None, _SKIPPED)
            )
        elif not manifest.is_empty:
            self._markers.append(
                Marker(kind, transaction.xid, marker_lsn, -1, end_lsn, time, gid, transaction.origin, manifest)
            )
            if kind in ("COMMIT", "STREAM_COMMIT"):
                self.marked_lsn, self.marked_time = marker_lsn, time
        self._resume_behind(end_lsn)

    def _note_undelivered(self, commit_time: int, counts: bool) -> None:
        self.last_commit_time = commit_time
        if counts:
            self.undelivered_count += 1
            if self.undelivered_since == 0:
                self.undelivered_since = commit_time

    def _resume_behind(self, lsn: int) -> None:
        if lsn > self.resume_lsn:
            self.resume_lsn = lsn

    def _note_commit(self, commit_lsn: int) -> None:
        if commit_lsn <= self.last_commit_lsn:
            raise self._out_of_order(f"a commit at {Lsn(commit_lsn)}", f"one after {Lsn(self.last_commit_lsn)}")
        self.last_commit_lsn = commit_lsn
        self.transaction_count += 1

    def _origin(self, message: Origin, change_lsn: int) -> None:
        transaction = self._demand_transaction("Origin")
        transaction.origin = message.name
        self._enter(transaction, transaction.context_subxid if self.in_stream else transaction.xid)

    def _type(self, message: Type, change_lsn: int) -> None:
        """Ignore the message: it has only the name of a type; its definition is read from the
        catalog when a Relation uses it."""

    def _truncate(self, message: Truncate, change_lsn: int) -> None:
        transaction = self._demand_transaction("Truncate")
        if message.xid is not None and message.xid != transaction.context_subxid:
            self._enter(transaction, message.xid)
        for relation_oid in message.relation_oids:
            version = self._active.get(relation_oid)
            if version is None:
                if self._leaves_out(transaction, relation_oid):
                    continue
                version = self._activate(relation_oid)
            self._note_event(transaction, version.schema_id)
            value = version.encoder.truncate(transaction.context, change_lsn, transaction.ordinal)
            version.outlet.append_everywhere(value, transaction.manifest)
            transaction.ordinal += 1
            if version.changes is not None:
                version.changes.enter(transaction)
                version.changes.truncated()

    def _message(self, message: Message, change_lsn: int) -> None:
        topic = self._messages
        transaction = self._transaction_of(message)
        if message.prefix == HEARTBEAT_PREFIX and transaction is not None:
            transaction.is_heartbeat = True
        if transaction is not None and transaction.skipped:
            return
        if not topic.takes(message.prefix):
            if self.watch is not None and transaction is not None and message.prefix in OWN_PREFIXES:
                found = self.watch.message(message.prefix, message.content, transaction.xid, self.in_stream)
                self.arrived = found or self.arrived
            return
        if transaction is None:
            context, ordinal, manifest = TransactionContext(0, -1, self.epoch, None, None, None), 0, None
        else:
            context, ordinal, manifest = transaction.context, transaction.ordinal, transaction.manifest
        value = topic.encode(
            context, change_lsn, ordinal, message.transactional, message.message_lsn, message.prefix, message.content
        )
        if not topic.outlet.offer(value, manifest):
            self._leave_out(message, transaction, len(value))
        elif transaction is not None:
            self._note_event(transaction, topic.schema_id)
            transaction.has_messages = True
            transaction.ordinal += 1

    def _transaction_of(self, message: Message | MessageHead) -> Transaction | None:
        """Return the transaction that a logical message belongs to. For a message outside
        transactions, return None, and let replication start again after it."""
        if not message.transactional:
            self._demand_no_transaction("a message outside transactions")
            self._resume_behind(message.message_lsn)
            return None
        transaction = self._demand_transaction("Message")
        if message.xid is not None and message.xid != transaction.context_subxid:
            self._enter(transaction, message.xid)
        return transaction

    def _leave_out(self, message: Message | MessageHead, transaction: Transaction | None, message_bytes: int) -> None:
        """Leave out a message that is too large for Kafka, and record it in the manifest. Any user
        can emit one, so it must not stop the rest."""
        topic, prefix = self._messages, message.prefix[:_NAMED_PREFIX]
        xid = 0
        if transaction is not None:
            xid = transaction.xid
            self._note_begin(transaction)
            transaction.has_messages = True
            transaction.manifest.exclude_message(topic.topic, prefix)
        topic.leave_out(ExcludedMessage(xid, message.message_lsn, prefix, message_bytes))

    # -- what is too large to be held

    def drained(self, data: bytes, position: int, end: int, message_bytes: int) -> None:
        """Process the first bytes of a message that is far too large for Kafka; `message_bytes` is
        its whole size. A logical message is left out. For a row, raises the error of its outlet."""
        if data[position] in ROW_MESSAGES:
            oid_at = position + (5 if self.in_stream else 1)
            relation_oid: int = read_i32_be(data, oid_at)
            relation_oid &= _UNSIGNED
            self._refuse_drained(relation_oid, message_bytes)
            return
        head = read_message_head(data[position:end], self.in_stream)
        transaction = self._transaction_of(head)
        if transaction is not None and transaction.skipped:
            return
        if self._messages.takes(head.prefix):
            self._leave_out(head, transaction, message_bytes)

    def _refuse_drained(self, relation_oid: int, message_bytes: int) -> None:
        """Raises StopForOperator, unless the row is left out."""
        if not self._leaves_out(self._demand_transaction("a row message"), relation_oid):
            version = self._active.get(relation_oid) or self._activate(relation_oid)
            raise version.outlet.too_large(f"comes in a message of {message_bytes} bytes", message_bytes)

    # -- in-progress streams

    def _stream_start(self, message: StreamStart, change_lsn: int) -> None:
        self._demand_no_transaction("Stream Start")
        transaction = self._streams.get(message.xid)
        if message.first_segment != (transaction is None):
            raise self._out_of_order(
                f"Stream Start of {message.xid} (first segment: {message.first_segment})",
                f"first segment: {transaction is None}",
            )
        if transaction is None:
            transaction = self._streams[message.xid] = self._open(message.xid, None, None, in_stream=True)
            transaction.context_subxid = message.xid
        transaction.silent = True
        self._active.clear()
        self._current = transaction
        self.in_stream = True

    def _stream_stop(self, message: StreamStop, change_lsn: int) -> None:
        if not self.in_stream:
            raise self._out_of_order("Stream Stop", "inside a stream segment")
        transaction = self._demand_transaction("Stream Stop")
        if not transaction.silent:
            self._markers.append(Marker("STREAM_STOP", transaction.xid, self.resume_lsn))
        self._active.clear()
        self._current = None
        self.in_stream = False

    def _end_stream(self, name: str, xid: int) -> Transaction:
        self._demand_no_transaction(name)
        transaction = self._streams.pop(xid, None)
        if transaction is None:
            raise self._out_of_order(f"{name} of {xid}", "after its Stream Start")
        return transaction

    def _finish_relations(self, xid: int) -> None:
        """Make what was announced in the stream valid for all transactions."""
        self.relations.finish_stream(xid)
        self._active.clear()

    def _stream_commit(self, message: StreamCommit, change_lsn: int) -> None:
        transaction = self._end_stream("Stream Commit", message.xid)
        self._finish_relations(message.xid)
        self._finish(transaction, "STREAM_COMMIT", message.commit_lsn, message.end_lsn, message.commit_time)
        if self.watch is not None:
            self.watch.committed_whole(transaction.xid, transaction.manifest)

    def _stream_abort(self, message: StreamAbort, change_lsn: int) -> None:
        self._demand_no_transaction("Stream Abort")
        transaction = self._streams.get(message.xid)
        if transaction is None and message.subxid != message.xid:
            # PostgreSQL 18 drops a transaction that it sees rolled back before streaming it, but
            # announces the end of its subtransaction (tests/golden, stream_abort_alone). No row of
            # it was sent.
            return
        if transaction is None:
            raise self._out_of_order(f"Stream Abort of {message.xid}", "after its Stream Start")
        whole = message.subxid == message.xid
        if transaction.has_messages and not whole:
            raise RolledBackMessages(
                f"transaction {message.xid} was streamed with logical decoding messages, and its subtransaction "
                f"{message.subxid} was rolled back: "
                "the transaction will be received again, with the streaming of in-progress transactions off, to find out "
                "which messages were rolled back"
            )
        self.relations.abort_stream(message.xid, message.subxid)
        manifest = transaction.manifest
        manifest.event_count = transaction.ordinal
        if whole:
            del self._streams[message.xid]
            if self.watch is not None:
                self.watch.aborted(message.xid)
        elif transaction.ordinal:
            manifest.aborted_subxids.append(message.subxid)
        if not manifest.is_empty:
            lsn = self.resume_lsn if message.abort_lsn is None else message.abort_lsn
            self._markers.append(
                Marker(
                    "STREAM_ABORT",
                    message.xid,
                    lsn,
                    message.subxid,
                    None,
                    message.abort_time,
                    None,
                    transaction.origin,
                    manifest if whole else None,
                )
            )

    # -- two-phase

    def _begin_prepare(self, message: BeginPrepare, change_lsn: int) -> None:
        self._demand_no_transaction("Begin Prepare")
        self._current = self._open(message.xid, None, None)
        self._current_is_prepare = message
        if message.prepare_lsn == self.skip_lsn:
            self._skip(self._current)

    def _prepare(self, message: Prepare, change_lsn: int) -> None:
        transaction = self._demand_transaction("Prepare")
        begin, self._current_is_prepare = self._current_is_prepare, None
        if begin is None or (begin.xid, begin.gid) != (message.xid, message.gid):
            raise self._out_of_order(f"Prepare of {message.xid}", "after its Begin Prepare")
        self._current = None
        self._keep_prepared(transaction, "PREPARE", message)

    def _stream_prepare(self, message: StreamPrepare, change_lsn: int) -> None:
        transaction = self._end_stream("Stream Prepare", message.xid)
        self._finish_relations(message.xid)
        self._keep_prepared(transaction, "STREAM_PREPARE", message)

    def _keep_prepared(self, transaction: Transaction, kind: str, message: Prepare | StreamPrepare) -> None:
        prepared = Prepared(message.gid, message.xid, message.prepare_lsn, transaction.origin, transaction.manifest)
        self.prepared[message.gid, message.xid] = prepared
        self._finish(transaction, kind, message.prepare_lsn, message.end_lsn, message.prepare_time, message.gid)
        if self.watch is not None:
            self.watch.prepared(message.xid)

    def _commit_prepared(self, message: CommitPrepared, change_lsn: int) -> None:
        self._demand_no_transaction("Commit Prepared")
        prepared = self.prepared.pop((message.gid, message.xid), None)
        if prepared is None:
            raise DataGap(
                f"received COMMIT PREPARED {message.gid!r} (xid {message.xid}) at {message.commit_lsn}, "
                "but its PREPARE TRANSACTION was never received",
                hint="the changes of this transaction are in a gap that was accepted, or another process advanced the slot: "
                + UNTIL_NOW,
            )
        self._note_commit(message.commit_lsn)
        self._note_undelivered(message.commit_time, not prepared.manifest.is_empty)
        self._end_prepared(prepared, "COMMIT_PREPARED", message.commit_lsn, message.end_lsn, message.commit_time)
        if self.watch is not None:
            self.watch.committed_whole(prepared.xid, prepared.manifest)

    def _rollback_prepared(self, message: RollbackPrepared, change_lsn: int) -> None:
        self._demand_no_transaction("Rollback Prepared")
        prepared = self.prepared.pop((message.gid, message.xid), None)
        if self.watch is not None:
            self.watch.aborted(message.xid)
        self._resume_behind(message.rollback_end_lsn)
        if prepared is not None:
            self._end_prepared(
                prepared, "ROLLBACK_PREPARED", message.prepare_end_lsn, message.rollback_end_lsn, message.rollback_time
            )

    def _end_prepared(self, prepared: Prepared, kind: str, marker_lsn: int, end_lsn: int, time: int) -> None:
        if not prepared.manifest.is_empty:
            self._markers.append(
                Marker(
                    kind, prepared.xid, marker_lsn, -1, end_lsn, time, prepared.gid, prepared.origin, prepared.manifest
                )
            )
            if kind == "COMMIT_PREPARED":
                self.marked_lsn, self.marked_time = marker_lsn, time
        self._resume_behind(end_lsn)

    # -- order

    def _demand_transaction(self, name: str) -> Transaction:
        if self._current is None:
            raise self._out_of_order(name, "inside a transaction")
        return self._current

    def _demand_no_transaction(self, name: str) -> None:
        if self._current is not None:
            raise self._out_of_order(name, f"outside a transaction, but transaction {self._current.xid} is open")

    def _out_of_order(self, what: str, expected: str) -> OutOfOrder:
        return OutOfOrder(
            f"protocol: {what}, expected {expected}",
            hint="this is a bug in the gateway or in the server: report the error with the versions of both, and do "
            "not drop the slot",
        )
