"""The state machine: pgoutput messages -> change events in their topics, and markers.

Theory
======

A transaction comes in one of four shapes, of which the server chooses; the same transaction may come in another shape
after a restart (PostgreSQL manual 55.5, "Streaming Replication Protocol of Logical Decoding"):

    ordinary            B  rows  C
    prepared            b  rows  P                      ...  K (commit prepared) or r (rollback prepared), much later
    in-progress         (S rows E)+  [A sub]*           then c (stream commit) or A (whole abort)
    in-progress, 2PC    (S rows E)+  [A sub]*           then p (stream prepare)  ...  K or r

So there are three places where a transaction can be:

    current     receives the rows that come now: between B and C, b and P, or S and E. At most one.
    streams     in-progress transactions between two segments, by xid; segments of several interleave. While a segment
                is open its transaction is in `streams` *and* current.
    prepared    ended by P or p, waiting for K or r; by (gid, xid). Outlives the process: it is part of the position.

    None --B, b--> current --C--> None          None --S--> current, streams --E--> streams
    current --P--> prepared                     streams --c, A--> None          streams --p--> prepared --K, r--> None

Who sees what: rows go to their topic at once, also of a transaction that is not known to commit; their `commit_lsn` is
then null. What makes them count is the marker that ends the transaction, and its manifest. Markers are only *owed* here:
they are written when every row before them is acknowledged, which is the business of `gateway/kafka`.

What couples the states:

* A transaction without events leaves no trace: the marker of its begin is owed from its first event on (`silent`).
* `resume_lsn` moves at each end (C, c, P, p, K, r: the *end* LSN) and at a message outside transactions. It never depends
  on open streams: PostgreSQL sends those again from their first change as long as they have not ended.
* `resume_lsn` never goes back, though the end of a transaction that was prepared before the slot knew two-phase does: such
  a one is sent whole at its COMMIT PREPARED.
* Everything of an in-progress attempt is void after a restart, so nothing here is kept over restarts but `prepared`.
* In a stream a logical message carries the xid of the whole transaction, its rows that of their subtransaction. When a
  subtransaction is rolled back, nobody can tell which messages went with it: RolledBackMessages.
* The relation cache has an overlay for each open stream, dropped or merged when the stream ends.
* commit LSNs rise strictly from one committed transaction to the next. If they do not, something is fundamentally wrong
  (another server, a slot that went back) and going on would double rows.

The file is longer than others because every transition is in it, and nothing else.

What is still ugly: a rollback of a prepared transaction that we never saw is legal (it was prepared before the slot
existed) and ignored, while a *commit* of one is an error; PostgreSQL sends the rows first in that case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from librt.strings import read_i32_be

from gateway.events.context import Context
from gateway.events.manifest import Manifest
from gateway.events.marker import Marker, readable_time
from gateway.lsn import Lsn
from gateway.operate.errors import DataGap, Retry, StopForOperator
from gateway.pgoutput import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Message,
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
)
from gateway.relations.cache import RelationCache
from gateway.transactions.transaction import MessageTopic, Prepared, RelationVersion, Transaction

INSERT, UPDATE, DELETE = b"IUD"
ROW_KINDS = frozenset(b"IUD")
_UNSIGNED: Final = 0xFFFFFFFF
"""Oids and xids are unsigned, what librt reads is not. Its reading takes 0.02 us, that of struct 0.06."""


class OutOfOrder(StopForOperator):
    """A message came where the protocol does not allow it."""


class RolledBackMessages(Retry):
    """Read again without streaming: the server then leaves out what was rolled back."""


class TransactionMachine:
    """Feed it `receive` and `change` in stream order; take what is owed with `take_markers`.

    `resume_lsn` is where replication may start again once everything up to now is durable; `at_boundary` says whether a
    Kafka transaction may end here. Raises OutOfOrder, DataGap, and what the encoders raise.
    """

    def __init__(
        self, *, epoch: int, resume_lsn: int, last_commit_lsn: int, prepared: Iterable[Prepared], messages: MessageTopic
    ) -> None:
        self.epoch = epoch
        self.resume_lsn = resume_lsn
        self.last_commit_lsn = last_commit_lsn
        self.prepared: dict[tuple[str, int], Prepared] = {(p.gid, p.xid): p for p in prepared}
        self.relations: RelationCache[RelationVersion] = RelationCache()
        self.in_stream = False
        self.event_count = 0
        self.transaction_count = 0
        self._messages = messages
        self._current: Transaction | None = None
        self._current_is_prepare: BeginPrepare | None = None
        self._streams: dict[int, Transaction] = {}
        self._markers: list[Marker] = []
        self._active: dict[int, RelationVersion] = {}  # what `in_force` says, until it may say something else
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
        """No transaction that must stay in one Kafka transaction is open.

        A stream segment may be cut: its rows are of no worth before the marker of the end, in whatever Kafka transaction
        they came. Segments are as large as the server's logical_decoding_work_mem, and rows shall be readable before COMMIT.
        """
        return self._current is None or self.in_stream

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def owed_marker_count(self) -> int:
        return len(self._markers)

    def take_markers(self) -> list[Marker]:
        """The markers owed since the last call, in order."""
        markers, self._markers = self._markers, []
        return markers

    # -- messages ---------------------------------------------------------------------------------------------------

    def receive(self, message: object, change_lsn: int) -> None:
        """Any message but rows and Relation. `change_lsn` is the start of its XLogData."""
        self._handlers[type(message)](message, change_lsn)

    def announce(self, relation_oid: int, subxid: int | None, version: RelationVersion) -> None:
        """A Relation message whose schema is registered; `subxid` is its xid field, present inside a stream."""
        self._active.clear()
        if self.in_stream:
            assert self._current is not None and subxid is not None
            self.relations.announce_in_stream(self._current.xid, subxid, relation_oid, version)
        else:
            self.relations.announce(relation_oid, version)

    def in_force(self, relation_oid: int) -> RelationVersion | None:
        """What the next change of the relation would be encoded with; None if it was never announced."""
        xid = self._current.xid if self._current is not None and self.in_stream else None
        return self.relations.find(relation_oid, xid)

    # -- rows: the hot path -------------------------------------------------------------------------------------------

    def change(self, data: bytes, position: int, end: int, change_lsn: int) -> None:
        """One Insert, Update or Delete message at data[position:end]."""
        transaction = self._current
        if transaction is None:
            raise self._out_of_order(f"a row message ({chr(data[position])})", "inside a transaction", change_lsn)
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
            version = self._activate(relation_oid, change_lsn)
        manifest = transaction.manifest
        if transaction.silent or version.noted_in is not manifest:
            self._note_event(transaction, version.schema_id)
            version.noted_in = manifest
        ordinal = transaction.ordinal
        transaction.ordinal = ordinal + 1
        kind = data[position]
        if kind == INSERT:
            key, value = version.encoder.insert(data, row, end, transaction.context, change_lsn, ordinal)
        elif kind == UPDATE:
            key, value, moved = version.encoder.update(data, row, end, transaction.context, change_lsn, ordinal)
            if moved is not None:
                version.outlet.append(moved[0], moved[1], manifest)
        else:
            key, value = version.encoder.delete(data, row, end, transaction.context, change_lsn, ordinal)
        version.outlet.append(key, value, manifest)

    def _activate(self, relation_oid: int, change_lsn: int) -> RelationVersion:
        """First event of a relation since versions last changed."""
        version = self.in_force(relation_oid)
        if version is None:
            raise self._out_of_order(
                f"a change of relation {relation_oid}", "after a Relation message for it", change_lsn
            )
        self._active[relation_oid] = version
        return version

    def _note_event(self, transaction: Transaction, schema_id: int) -> None:
        if transaction.silent:
            transaction.silent = False
            self._owe_begin(transaction)
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
        """The rows that follow belong to `subxid`; the top-level transaction's own rows are written with -1."""
        transaction.context_subxid = subxid
        transaction.context = Context(
            transaction.xid, -1 if subxid == transaction.xid else subxid, self.epoch, transaction.commit_lsn,
            transaction.commit_time, transaction.origin,
        )  # fmt: skip

    # -- ordinary transactions ------------------------------------------------------------------------------------------

    def _open(self, xid: int, commit_lsn: int | None, commit_time: int | None) -> Transaction:
        context = Context(xid, -1, self.epoch, commit_lsn, commit_time, None)
        return Transaction(xid, Manifest(self.epoch), context, commit_lsn, commit_time)

    def begin(self, commit_lsn: int, commit_time: int, xid: int, change_lsn: int) -> None:
        """A Begin message; most transactions are small, so that it goes without an object of its own, as `commit` does."""
        if self._current is not None:
            self._demand_no_transaction("Begin", change_lsn)
        self._current = self._open(xid, commit_lsn, readable_time(commit_time))

    def _begin(self, message: Begin, change_lsn: int) -> None:
        self.begin(message.commit_lsn, message.commit_time, message.xid, change_lsn)

    def commit(self, commit_lsn: int, end_lsn: int, commit_time: int, change_lsn: int) -> None:
        transaction = self._demand_transaction("Commit", change_lsn)
        if self._current_is_prepare is not None or transaction.commit_lsn != commit_lsn:
            raise self._out_of_order(
                f"Commit at {Lsn(commit_lsn)}", f"of the transaction {transaction.xid} that was begun", change_lsn
            )
        self._current = None
        self._finish(transaction, "COMMIT", commit_lsn, end_lsn, commit_time)

    def _commit(self, message: Commit, change_lsn: int) -> None:
        self.commit(message.commit_lsn, message.end_lsn, message.commit_time, change_lsn)

    def _finish(
        self, transaction: Transaction, kind: str, marker_lsn: int, end_lsn: int, time: int, gid: str | None = None
    ) -> None:
        """The transaction is complete: owe its last marker, and let replication start again behind it."""
        manifest = transaction.manifest
        manifest.event_count = transaction.ordinal
        self.event_count += transaction.ordinal
        if kind in ("COMMIT", "STREAM_COMMIT"):
            self._note_commit(marker_lsn)
        if manifest.event_count:
            self._markers.append(
                Marker(kind, transaction.xid, marker_lsn, -1, end_lsn, time, gid, transaction.origin, manifest)
            )
        self._resume_behind(end_lsn)

    def _resume_behind(self, lsn: int) -> None:
        if lsn > self.resume_lsn:
            self.resume_lsn = lsn

    def _note_commit(self, commit_lsn: int) -> None:
        if commit_lsn <= self.last_commit_lsn:
            raise DataGap(
                f"commit LSN {Lsn(commit_lsn)} is not above {Lsn(self.last_commit_lsn)}, which was already delivered",
                hint="the slot went back or belongs to another history: check which server this is, and the slot",
            )
        self.last_commit_lsn = commit_lsn
        self.transaction_count += 1

    def _origin(self, message: Origin, change_lsn: int) -> None:
        transaction = self._demand_transaction("Origin", change_lsn)
        transaction.origin = message.name
        self._enter(transaction, transaction.context_subxid if self.in_stream else transaction.xid)

    def _type(self, message: Type, change_lsn: int) -> None:
        """Only the names of types; what a type is made of comes from the catalog when a Relation uses it."""

    def _truncate(self, message: Truncate, change_lsn: int) -> None:
        transaction = self._demand_transaction("Truncate", change_lsn)
        if message.xid is not None and message.xid != transaction.context_subxid:
            self._enter(transaction, message.xid)
        for relation_oid in message.relation_oids:
            version = self._active.get(relation_oid) or self._activate(relation_oid, change_lsn)
            self._note_event(transaction, version.schema_id)
            value = version.encoder.truncate(transaction.context, change_lsn, transaction.ordinal)
            version.outlet.append_everywhere(value, transaction.manifest)
            transaction.ordinal += 1

    def _message(self, message: Message, change_lsn: int) -> None:
        topic = self._messages
        if not message.transactional:
            self._demand_no_transaction("a message outside transactions", change_lsn)
            context, ordinal, manifest = Context(0, -1, self.epoch, None, None, None), 0, None
            self._resume_behind(message.message_lsn)
        else:
            transaction = self._demand_transaction("Message", change_lsn)
            if message.xid is not None and message.xid != transaction.context_subxid:
                self._enter(transaction, message.xid)
            self._note_event(transaction, topic.schema_id)
            transaction.has_messages = True
            context, ordinal, manifest = transaction.context, transaction.ordinal, transaction.manifest
            transaction.ordinal += 1
        value = topic.encode(
            context, change_lsn, ordinal, message.transactional, message.message_lsn, message.prefix, message.content
        )
        topic.outlet.append(None, value, manifest)

    # -- in-progress streams --------------------------------------------------------------------------------------------

    def _stream_start(self, message: StreamStart, change_lsn: int) -> None:
        self._demand_no_transaction("Stream Start", change_lsn)
        transaction = self._streams.get(message.xid)
        if message.first_segment != (transaction is None):
            raise self._out_of_order(
                f"Stream Start of {message.xid} (first segment: {message.first_segment})",
                "as the first segment of a transaction exactly once",
                change_lsn,
            )
        if transaction is None:
            transaction = self._streams[message.xid] = self._open(message.xid, None, None)
            transaction.context_subxid = message.xid
        transaction.silent = True
        self._active.clear()
        self._current = transaction
        self.in_stream = True

    def _stream_stop(self, message: StreamStop, change_lsn: int) -> None:
        if not self.in_stream:
            raise self._out_of_order("Stream Stop", "inside a stream segment", change_lsn)
        transaction = self._demand_transaction("Stream Stop", change_lsn)
        if not transaction.silent:
            self._markers.append(Marker("STREAM_STOP", transaction.xid, self.resume_lsn))
        self._active.clear()
        self._current = None
        self.in_stream = False

    def _end_stream(self, name: str, xid: int, change_lsn: int) -> Transaction:
        self._demand_no_transaction(name, change_lsn)
        transaction = self._streams.pop(xid, None)
        if transaction is None:
            raise self._out_of_order(f"{name} of {xid}", "after its Stream Start", change_lsn)
        return transaction

    def _finish_relations(self, xid: int) -> None:
        """What was announced in the stream counts for everybody now."""
        self.relations.finish_stream(xid)
        self._active.clear()

    def _stream_commit(self, message: StreamCommit, change_lsn: int) -> None:
        transaction = self._end_stream("Stream Commit", message.xid, change_lsn)
        self._finish_relations(message.xid)
        self._finish(transaction, "STREAM_COMMIT", message.commit_lsn, message.end_lsn, message.commit_time)

    def _stream_abort(self, message: StreamAbort, change_lsn: int) -> None:
        self._demand_no_transaction("Stream Abort", change_lsn)
        transaction = self._streams.get(message.xid)
        if transaction is None and message.subxid != message.xid:
            # PostgreSQL 18 drops a transaction that it sees rolled back before it was ever streamed, yet announces the end
            # of its subtransaction (tests/golden, stream_abort_alone). No row of it was sent.
            return
        if transaction is None:
            raise self._out_of_order(f"Stream Abort of {message.xid}", "after its Stream Start", change_lsn)
        whole = message.subxid == message.xid
        if transaction.has_messages and not whole:
            raise RolledBackMessages(
                f"transaction {message.xid} was streamed with logical messages, and its subtransaction {message.subxid} was "
                "rolled back: read again without streaming, to learn which of them count"
            )
        self.relations.abort_stream(message.xid, message.subxid)
        manifest = transaction.manifest
        manifest.event_count = transaction.ordinal
        if whole:
            del self._streams[message.xid]
        elif transaction.ordinal:
            manifest.aborted_subxids.append(message.subxid)
        if transaction.ordinal:
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

    # -- two-phase ------------------------------------------------------------------------------------------------------

    def _begin_prepare(self, message: BeginPrepare, change_lsn: int) -> None:
        self._demand_no_transaction("Begin Prepare", change_lsn)
        self._current = self._open(message.xid, None, None)
        self._current_is_prepare = message

    def _prepare(self, message: Prepare, change_lsn: int) -> None:
        transaction = self._demand_transaction("Prepare", change_lsn)
        begin, self._current_is_prepare = self._current_is_prepare, None
        if begin is None or (begin.xid, begin.gid) != (message.xid, message.gid):
            raise self._out_of_order(f"Prepare of {message.xid}", "after its Begin Prepare", change_lsn)
        self._current = None
        self._keep_prepared(transaction, "PREPARE", message)

    def _stream_prepare(self, message: StreamPrepare, change_lsn: int) -> None:
        transaction = self._end_stream("Stream Prepare", message.xid, change_lsn)
        self._finish_relations(message.xid)
        self._keep_prepared(transaction, "STREAM_PREPARE", message)

    def _keep_prepared(self, transaction: Transaction, kind: str, message: Prepare | StreamPrepare) -> None:
        prepared = Prepared(message.gid, message.xid, message.prepare_lsn, transaction.origin, transaction.manifest)
        self.prepared[message.gid, message.xid] = prepared
        self._finish(transaction, kind, message.prepare_lsn, message.end_lsn, message.prepare_time, message.gid)

    def _commit_prepared(self, message: CommitPrepared, change_lsn: int) -> None:
        self._demand_no_transaction("Commit Prepared", change_lsn)
        prepared = self.prepared.pop((message.gid, message.xid), None)
        if prepared is None:
            raise DataGap(
                f"Commit Prepared of {message.gid!r} (xid {message.xid}) at {message.commit_lsn}, "
                "but its PREPARE was never received",
                hint="the position topic does not belong to this slot's history: compare both, or start with a new slot",
            )
        self._note_commit(message.commit_lsn)
        self._end_prepared(prepared, "COMMIT_PREPARED", message.commit_lsn, message.end_lsn, message.commit_time)

    def _rollback_prepared(self, message: RollbackPrepared, change_lsn: int) -> None:
        self._demand_no_transaction("Rollback Prepared", change_lsn)
        prepared = self.prepared.pop((message.gid, message.xid), None)
        self._resume_behind(message.rollback_end_lsn)
        if prepared is not None:
            self._end_prepared(
                prepared, "ROLLBACK_PREPARED", message.prepare_end_lsn, message.rollback_end_lsn, message.rollback_time
            )

    def _end_prepared(self, prepared: Prepared, kind: str, marker_lsn: int, end_lsn: int, time: int) -> None:
        if prepared.manifest.event_count:
            self._markers.append(
                Marker(
                    kind, prepared.xid, marker_lsn, -1, end_lsn, time, prepared.gid, prepared.origin, prepared.manifest
                )
            )
        self._resume_behind(end_lsn)

    # -- order ----------------------------------------------------------------------------------------------------------

    def _demand_transaction(self, name: str, change_lsn: int) -> Transaction:
        if self._current is None:
            raise self._out_of_order(name, "inside a transaction", change_lsn)
        return self._current

    def _demand_no_transaction(self, name: str, change_lsn: int) -> None:
        if self._current is not None:
            raise self._out_of_order(name, f"outside transactions, but {self._current.xid} is open", change_lsn)

    def _out_of_order(self, what: str, expected: str, change_lsn: int) -> OutOfOrder:
        return OutOfOrder(
            f"protocol: {what} at {Lsn(change_lsn)}, expected {expected}",
            hint="this is a defect of the gateway or of the server: keep the slot and report it with both versions",
        )
