"""The part of the state machine for transactions that arrive whole, and for the rows of all
transactions.

gateway/transactions/machine.py extends this part, and explains the theory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from librt.strings import read_i32_be

from gateway.errors import StopForOperator
from gateway.events.marker_encoder import Marker, readable_time
from gateway.pgoutput.relation import Type
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.transaction import Begin, Commit, Origin
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from gateway.transactions.relations_in_force import ChangeObserver, RelationsInForce
from gateway.transactions.transaction import ExcludedTable, Quarantined, Transaction
from schemas.lsn import Lsn

_UNSIGNED: Final = 0xFFFFFFFF
"""The mask that makes oids and xids unsigned again, since librt reads signed numbers. librt takes
0.02 us for a value, and struct 0.06 us."""


class OutOfOrder(StopForOperator):
    """A message arrived where the protocol does not allow it."""


class OrdinaryTransactions:
    """Receive transactions that arrive whole, after their commit. Methods raise OutOfOrder, and
    what the encoders raise."""

    def __init__(
        self,
        *,
        epoch: int,
        resume_lsn: int,
        last_commit_lsn: int,
        writer: RecordWriter,
        quarantined: Iterable[Quarantined],
        skip_lsn: int,
    ) -> None:
        self.epoch = epoch
        self.resume_lsn = resume_lsn
        self.last_commit_lsn = last_commit_lsn
        self.skip_lsn = skip_lsn
        self.in_stream = False
        self.event_count = 0
        self.transaction_count = 0
        self.last_commit_time = 0
        self.undelivered_since = 0
        self.undelivered_count = 0
        self.heartbeat_time = 0
        self.arrived: object | None = None
        """The object to be handed over when the current transaction commits: a chunk or a mark of a
        snapshot, or a command."""
        self.on_left_out: Callable[[int], bool] | None = None
        """A function that is called with a relation's oid when an UPDATE was written without a
        value that was not sent. It returns whether the relation's changes are tracked from that
        UPDATE on."""
        self.writer = writer
        writer.on_left_out = self.left_out
        self.relations = RelationsInForce(quarantined)
        self._active = self.relations.active
        self._watch: ChangeObserver | None = None
        self.current: Transaction | None = None
        """The transaction whose changes arrive now."""
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            Begin: self._begin,
            Commit: self._commit,
            Origin: self._origin,
            Truncate: self._truncate,
            Type: self._type,
        }

    @property
    def at_boundary(self) -> bool:
        """Whether a Kafka transaction may end here: no transaction that must stay whole is open.

        A segment of a stream may be divided: its rows count only once the marker that ends the
        transaction is there, in whatever Kafka transaction they were sent. Segments are as large as
        the server's logical_decoding_work_mem, and rows should be readable before COMMIT.
        """
        return self.current is None or self.in_stream

    @property
    def current_commit_lsn(self) -> Lsn | None:
        """The commit LSN of the current transaction, or its prepare LSN if it is prepared; None if
        the LSN is not known yet."""
        current = self.current
        if current is None:
            return None
        lsn = current.commit_lsn if current.prepare is None else current.prepare.prepare_lsn
        return None if lsn is None else Lsn(lsn)

    @property
    def is_skipping(self) -> bool:
        return self.current is not None and self.current.skipped

    @property
    def receiving_since(self) -> int:
        """The commit time of the committed transaction whose rows arrive now; 0 if there is
        none."""
        current = self.current
        return 0 if current is None or current.silent else current.commit_time or 0

    def take_markers(self) -> list[Marker]:
        """Return the markers owed since the last call, in order."""
        return self.writer.take_pending()

    def take_undelivered(self) -> tuple[int, int]:
        """Return the commit time of the first transaction that has committed since the last call,
        and the number of these transactions. Only heartbeats and transactions with events count.
        The time is in microseconds since the Unix epoch; 0 if there is none."""
        undelivered = self.undelivered_since, self.undelivered_count
        self.undelivered_since = self.undelivered_count = 0
        return undelivered

    # -- relations

    def receive(self, message: object, change_lsn: int) -> None:
        """Process any message except row messages and Relation. `change_lsn` is the start LSN of
        its XLogData."""
        self._handlers[type(message)](message, change_lsn)

    def announce(
        self, relation_oid: int, subxid: int | None, version: RelationVersion | ExcludedTable | Quarantined
    ) -> None:
        """Process a Relation message whose schema is registered, or whose relation is left out.
        `subxid` is its xid field, which is present inside a stream."""
        self.relations.announce(relation_oid, version, self._stream_xid(), subxid)

    def in_force(self, relation_oid: int) -> RelationVersion | None:
        """Return the version that the next change of the relation would be encoded with; None if
        the relation was never announced, or is left out."""
        return self.relations.in_force(relation_oid, self._stream_xid())

    def _stream_xid(self) -> int | None:
        return self.current.xid if self.current is not None and self.in_stream else None

    # -- snapshots

    def set_observer(self, watch: ChangeObserver | None) -> None:
        """Set the observer. Call this again when the observer's `version` may return something else
        for a relation."""
        self._watch = watch
        self.relations.set_observer(watch)

    def publish_read_rows(
        self, version: RelationVersion, rows: Iterable[tuple[bytes | None, bytes]], change_lsn: int
    ) -> None:
        """Publish rows of a chunk (CopyDecoder.rows) as changes of the transaction that commits
        now."""
        transaction = self._demand_transaction("rows of a snapshot")
        self._begin_records(transaction)
        self.writer.relation(transaction, version)
        version.read(transaction, rows, change_lsn)

    def add_pending_marker(self, marker: Marker) -> None:
        """Add a marker that no message causes."""
        self.writer.add_pending(marker)

    def left_out(self, relation_oid: int, data: bytes, row: int, end: int) -> None:
        """Process the Update message at `row` once more, which was written without a value. If
        `on_left_out` asks for it, the relation's changes are tracked from this message on."""
        if self.on_left_out is not None and self.on_left_out(relation_oid):
            transaction = self._demand_transaction("Update")
            version = self._activate(relation_oid)
            self._note(transaction, version)
            version.track(data, data[row - 5], row, end)

    # -- rows: the hot path

    def change(self, data: bytes, position: int, end: int, change_lsn: int) -> None:
        """Process an Insert, Update or Delete message at data[position:end]."""
        transaction = self.current
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
        if transaction.silent or version.noted_in is not transaction:
            self._note(transaction, version)
        version.row(transaction, data[position], data, row, end, change_lsn)

    def _activate(self, relation_oid: int) -> RelationVersion:
        """Return the version of a relation that is not in `_active`. Raises OutOfOrder if the
        relation was never announced."""
        version = self.relations.activate(relation_oid, self._stream_xid())
        if version is None:
            raise self._out_of_order(f"a change of relation {relation_oid}", "after a Relation message for it")
        return version

    def _leaves_out(self, transaction: Transaction, relation_oid: int) -> bool:
        """Return whether a change is left out, neither encoded nor written. Relations that are left
        out are never in `_active`."""
        if transaction.skipped:
            return True
        relation = self.relations.count_left_out(relation_oid, self._stream_xid())
        if relation is None:
            return False
        if relation.is_marked:
            self._begin_records(transaction)
            transaction.manifest.exclude(
                relation_oid, relation.namespace, relation.name, relation.topic, relation.reason
            )
        return True

    def _begin_records(self, transaction: Transaction) -> None:
        if transaction.silent:
            transaction.silent = False
            self.writer.begin(transaction, self.resume_lsn)

    def _note(self, transaction: Transaction, version: RelationVersion) -> None:
        """Note the first change of a relation in a transaction, or in a segment of it."""
        if transaction.silent:
            transaction.silent = False
            self.writer.begin(transaction, self.resume_lsn)
        self.writer.relation(transaction, version)
        version.noted_in = transaction
        if version.changes is not None:
            version.changes.enter(transaction)

    def _enter(self, transaction: Transaction, subxid: int) -> None:
        """Record that the rows that follow belong to `subxid`. Rows of the top-level transaction
        itself are written with the subxid -1."""
        transaction.context_subxid = subxid
        self.writer.enter(transaction, self.in_stream)

    # -- transactions

    def begin(self, commit_lsn: int, commit_time: int, xid: int) -> None:
        """Process a Begin message. This takes no message object, and neither does `commit`, to save
        time: most transactions are small."""
        if self.current is not None:
            self._demand_no_transaction("Begin")
        transaction = self.writer.open(xid, commit_lsn, readable_time(commit_time), self.resume_lsn, False)
        self.current = transaction
        if commit_lsn == self.skip_lsn:
            self._skip(transaction)

    def _skip(self, transaction: Transaction) -> None:
        transaction.skipped = True
        self._active.clear()

    def _begin(self, message: Begin, change_lsn: int) -> None:
        self.begin(message.commit_lsn, message.commit_time, message.xid)

    def commit(self, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        transaction = self._demand_transaction("Commit")
        if transaction.prepare is not None or transaction.commit_lsn != commit_lsn:
            raise self._out_of_order(f"Commit at {Lsn(commit_lsn)}", f"that of the open transaction {transaction.xid}")
        self.current = None
        self._finish(transaction, "COMMIT", commit_lsn, end_lsn, commit_time)
        if self._watch is not None:
            self.arrived = None
            self._watch.committed(transaction.xid)

    def _commit(self, message: Commit, change_lsn: int) -> None:
        self.commit(message.commit_lsn, message.end_lsn, message.commit_time)

    def _finish(
        self, transaction: Transaction, kind: str, marker_lsn: int, end_lsn: int, time: int, gid: str | None = None
    ) -> None:
        """Complete the transaction, and let replication start again after it."""
        self.event_count += transaction.ordinal
        is_commit = kind in ("COMMIT", "STREAM_COMMIT")
        if is_commit:
            self._note_commit(marker_lsn)
        has_records = self.writer.end(transaction, kind, marker_lsn, end_lsn, time, gid)
        if is_commit:
            self._note_undelivered(time, transaction.is_heartbeat or has_records)
            if transaction.is_heartbeat:
                self.heartbeat_time = time
        self._resume_after(end_lsn)

    def _note_undelivered(self, commit_time: int, counts: bool) -> None:
        self.last_commit_time = commit_time
        if counts:
            self.undelivered_count += 1
            if self.undelivered_since == 0:
                self.undelivered_since = commit_time

    def _resume_after(self, lsn: int) -> None:
        if lsn > self.resume_lsn:
            self.resume_lsn = lsn

    def _note_commit(self, commit_lsn: int) -> None:
        if commit_lsn <= self.last_commit_lsn:
            raise self._out_of_order(f"a commit at {Lsn(commit_lsn)}", f"one after {Lsn(self.last_commit_lsn)}")
        self.last_commit_lsn = commit_lsn
        self.transaction_count += 1

    def _origin(self, message: Origin, change_lsn: int) -> None:
        """Process an Origin message, which the protocol also allows between rows."""
        transaction = self._demand_transaction("Origin")
        transaction.origin = message.name
        self._enter(transaction, transaction.context_subxid if self.in_stream else transaction.xid)

    def _type(self, message: Type, change_lsn: int) -> None:
        """Ignore the message, which has only the name of a type. The type's definition is read from
        the catalog when a Relation message uses the type."""

    def _truncate(self, message: Truncate, change_lsn: int) -> None:
        transaction = self._demand_transaction("Truncate")
        if message.xid is not None and message.xid != transaction.context_subxid:
            self._enter(transaction, message.xid)
        versions: list[RelationVersion] = []
        for relation_oid in message.relation_oids:
            version = self._active.get(relation_oid)
            if version is None:
                if self._leaves_out(transaction, relation_oid):
                    continue
                version = self._activate(relation_oid)
            if transaction.silent or version.noted_in is not transaction:
                self._note(transaction, version)
            if version.changes is not None:
                version.changes.truncated()
            versions.append(version)
        self.writer.truncate(transaction, versions, change_lsn, len(message.relation_oids))

    # -- order

    def _demand_transaction(self, name: str) -> Transaction:
        if self.current is None:
            raise self._out_of_order(name, "inside a transaction")
        return self.current

    def _demand_no_transaction(self, name: str) -> None:
        if self.current is not None:
            raise self._out_of_order(name, f"outside a transaction, but transaction {self.current.xid} is open")

    def _out_of_order(self, what: str, expected: str) -> OutOfOrder:
        return OutOfOrder(
            f"protocol: {what}, expected {expected}",
            hint="this is a bug in the gateway or in the server: report the error with the versions of both, and do "
            "not drop the slot",
        )
