"""The state machine: pgoutput messages -> calls of a RecordWriter, and the LSN from which
replication may start again.

Transactions that arrive whole are in ordinary.py, logical messages in logical_messages.py, the
versions of relations in relations_in_force.py. This file is about the transactions that arrive in
parts.

Theory
======

A transaction arrives in one of four shapes, which the server chooses, and chooses again after a
restart (PostgreSQL manual 55.5, "Streaming Replication Protocol of Logical Decoding"):

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

Records: what is written for each event is the dialect's matter (record_writer.py). In Walgate's
own, rows are sent to their topic at once, and count once the marker that ends their transaction is
there, with its manifest (native_record_writer.py). The rows of a subtransaction that is rolled back
are already written by then: the manifest names the subtransaction (`aborted_subxids`), and readers
drop its rows.

Rules that connect the states:

* A transaction without events leaves no trace: its begin is recorded with its first event
  (`silent`).
* `resume_lsn` advances at each end (C, c, P, p, K, r: to the *end* LSN), at a message outside
  transactions, and where KafkaTransactions.keepalive sets it on an idle stream. It never depends on
  open streams: PostgreSQL sends those again from their first change as long as they have not ended.
* `resume_lsn` never goes back, although the end LSN does for a transaction that was prepared before
  two-phase was enabled for the slot. The whole transaction is then sent at its COMMIT PREPARED.
* Everything received of an in-progress transaction is void after a restart. Only `prepared` is
  kept, until the transaction's end arrives, or replication has passed an end that is in a gap.
* In a stream, a logical message carries the xid of the top-level transaction, a row that of its
  subtransaction. If a subtransaction is rolled back, its messages cannot be identified:
  RolledBackMessages.
* The relation cache has an overlay for each open stream, dropped or merged when the stream ends.
* A relation that source.excluded_tables names has an ExcludedTable as its version in the relation
  cache, so that rollbacks and renames apply to it, too. Its changes are counted, and are in
  `excluded` only if the relation has a topic.
* A relation in quarantine gets no records: its changes are counted in `excluded` of their
  transaction's manifest, under its present name.
* The transaction at `skip_lsn` is left out as a whole. Its last marker is SKIP, and a relation that
  was refused in it is refused again by the next change that needs it.
* Commit LSNs rise strictly from one committed transaction to the next. If they do not, something is
  fundamentally wrong (another server, a slot that went back) and going on would duplicate rows.

One asymmetry remains. The rollback of a prepared transaction that was never received is legal and
ignored: the transaction was prepared before the slot existed. The *commit* of such a transaction is
an error, since PostgreSQL sends the rows first in that case.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import UNTIL_NOW, DataGap, NextSession, Retry
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from gateway.transactions.logical_messages import LogicalMessages
from gateway.transactions.record_writer import RecordWriter
from gateway.transactions.transaction import MessageSelection, Prepared, Quarantined, Transaction


class RolledBackMessages(Retry):
    """Logical messages of a subtransaction that was rolled back cannot be distinguished.
    Replication starts again without streaming; the server then leaves out what was rolled back."""

    def change(self, next_session: NextSession) -> None:
        next_session.read_whole(for_messages=True)


class TransactionMachine(LogicalMessages):
    """The complete state machine. Call `receive` and `change` in stream order, and take the owed
    markers with `take_markers`.

    `resume_lsn` is where replication may start again once everything so far is durable;
    `at_boundary` tells whether a Kafka transaction may end here. Methods raise OutOfOrder, DataGap,
    and what the encoders raise.
    """

    def __init__(
        self,
        *,
        epoch: int,
        resume_lsn: int,
        last_commit_lsn: int,
        prepared: Iterable[Prepared],
        writer: RecordWriter,
        messages: MessageSelection,
        quarantined: Iterable[Quarantined] = (),
        skip_lsn: int = 0,
    ) -> None:
        super().__init__(
            epoch=epoch,
            resume_lsn=resume_lsn,
            last_commit_lsn=last_commit_lsn,
            writer=writer,
            quarantined=quarantined,
            skip_lsn=skip_lsn,
        )
        self._messages = messages
        self.prepared: dict[tuple[str, int], Prepared] = {(p.gid, p.xid): p for p in prepared}
        self._ended: tuple[frozenset[int], int] = frozenset(), 0
        self._streams: dict[int, Transaction] = {}
        self._handlers.update(
            {
                Message: self._message,
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
        )

    @property
    def unfinished_xids(self) -> list[int]:
        """The xids of transactions that are streamed or prepared."""
        return [*self._streams, *(xid for _, xid in self.prepared)]

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def stream_sizes(self) -> list[tuple[int, int]]:
        """The xid and event count of each in-progress transaction that has been streamed."""
        return [(xid, transaction.ordinal) for xid, transaction in list(self._streams.items())]

    # -- in-progress streams

    def _stream_start(self, message: StreamStart, change_lsn: int) -> None:
        if not self.writer.accept_stream():
            raise self._out_of_order("Stream Start", "only committed transactions, as streaming was not requested")
        self._demand_no_transaction("Stream Start")
        transaction = self._streams.get(message.xid)
        if message.first_segment != (transaction is None):
            raise self._out_of_order(
                f"Stream Start of {message.xid} (first segment: {message.first_segment})",
                f"first segment: {transaction is None}",
            )
        if transaction is None:
            transaction = self._streams[message.xid] = self.writer.open(message.xid, None, None, self.resume_lsn, True)
            transaction.context_subxid = message.xid
        transaction.silent = True
        self._active.clear()
        self.current = transaction
        self.in_stream = True

    def _stream_stop(self, message: StreamStop, change_lsn: int) -> None:
        if not self.in_stream:
            raise self._out_of_order("Stream Stop", "inside a stream segment")
        transaction = self._demand_transaction("Stream Stop")
        if not transaction.silent:
            self.writer.stop_segment(transaction, self.resume_lsn)
        self._active.clear()
        self.current = None
        self.in_stream = False

    def _end_stream(self, name: str, xid: int) -> Transaction:
        self._demand_no_transaction(name)
        transaction = self._streams.pop(xid, None)
        if transaction is None:
            raise self._out_of_order(f"{name} of {xid}", "after its Stream Start")
        return transaction

    def _stream_commit(self, message: StreamCommit, change_lsn: int) -> None:
        transaction = self._end_stream("Stream Commit", message.xid)
        self.relations.finish_stream(message.xid)
        self._finish(transaction, "STREAM_COMMIT", message.commit_lsn, message.end_lsn, message.commit_time)
        if self._watch is not None:
            self._watch.committed_whole(transaction.xid, transaction.manifest)

    def _stream_abort(self, message: StreamAbort, change_lsn: int) -> None:
        self._demand_no_transaction("Stream Abort")
        transaction = self._streams.get(message.xid)
        if transaction is None and message.subxid != message.xid:
            # PostgreSQL 18 drops a transaction that it sees rolled back before streaming it, but
            # announces the end of its subtransaction (tests/golden, stream_abort_alone). No row of
            # the transaction was sent.
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
        if whole:
            del self._streams[message.xid]
            if self._watch is not None:
                self._watch.aborted(message.xid)
        lsn = self.resume_lsn if message.abort_lsn is None else message.abort_lsn
        self.writer.abort(transaction, message.subxid, lsn, message.abort_time)

    # -- two-phase

    def note_ended(self, xids: frozenset[int], lsn: int) -> None:
        """Note that these prepared transactions ended before `lsn`. An end that has not arrived
        when replication has passed `lsn` is in a gap."""
        self._ended = xids, lsn

    def pop_ended_in_gap(self) -> list[Prepared]:
        """Forget and return the prepared transactions that ended in a gap."""
        xids, lsn = self._ended
        if not xids or self.resume_lsn < lsn:
            return []
        self._ended = frozenset(), 0
        return [self.prepared.pop(key) for key in list(self.prepared) if key[1] in xids]

    def _begin_prepare(self, message: BeginPrepare, change_lsn: int) -> None:
        self.writer.accept_prepared(message.xid)
        self._demand_no_transaction("Begin Prepare")
        transaction = self.writer.open(message.xid, None, None, self.resume_lsn, False)
        transaction.prepare = message
        self.current = transaction
        if message.prepare_lsn == self.skip_lsn:
            self._skip(transaction)

    def _prepare(self, message: Prepare, change_lsn: int) -> None:
        transaction = self._demand_transaction("Prepare")
        begin = transaction.prepare
        if begin is None or (begin.xid, begin.gid) != (message.xid, message.gid):
            raise self._out_of_order(f"Prepare of {message.xid}", "after its Begin Prepare")
        self.current = None
        self._keep_prepared(transaction, "PREPARE", message)

    def _stream_prepare(self, message: StreamPrepare, change_lsn: int) -> None:
        transaction = self._end_stream("Stream Prepare", message.xid)
        self.relations.finish_stream(message.xid)
        self._keep_prepared(transaction, "STREAM_PREPARE", message)

    def _keep_prepared(self, transaction: Transaction, kind: str, message: Prepare | StreamPrepare) -> None:
        prepared = Prepared(message.gid, message.xid, message.prepare_lsn, transaction.origin, transaction.manifest)
        self.prepared[message.gid, message.xid] = prepared
        self._finish(transaction, kind, message.prepare_lsn, message.end_lsn, message.prepare_time, message.gid)
        if self._watch is not None:
            self._watch.prepared(message.xid)

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
        if self._watch is not None:
            self._watch.committed_whole(prepared.xid, prepared.manifest)

    def _rollback_prepared(self, message: RollbackPrepared, change_lsn: int) -> None:
        self._demand_no_transaction("Rollback Prepared")
        prepared = self.prepared.pop((message.gid, message.xid), None)
        if self._watch is not None:
            self._watch.aborted(message.xid)
        self._resume_after(message.rollback_end_lsn)
        if prepared is not None:
            self._end_prepared(
                prepared, "ROLLBACK_PREPARED", message.prepare_end_lsn, message.rollback_end_lsn, message.rollback_time
            )

    def _end_prepared(self, prepared: Prepared, kind: str, marker_lsn: int, end_lsn: int, time: int) -> None:
        self.writer.end_prepared(prepared, kind, marker_lsn, end_lsn, time)
        self._resume_after(end_lsn)
