"""The interface between the state machine and a dialect.

Receiving and writing are separate. The state machine checks the order of messages, and keeps the
positions, the relations in force and what is excluded. A RecordWriter writes the records, and a
RelationVersion those of one relation's rows. gateway/transactions/native_record_writer.py has
Walgate's own dialect, gateway/debezium/record_writer.py has Debezium's.

These are base classes instead of protocols, because the row path is compiled. A call of a method of
a compiled class costs a few nanoseconds, while a call through a protocol costs as much as in plain
Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from gateway.errors import StopForOperator
from gateway.events.marker_encoder import Marker
from gateway.events.row_encoder import RowEncoder
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.row import TuplePart
from gateway.transactions.transaction import Prepared, RelationChangeTracker, Transaction
from schemas.relation import RelationDescription

LeftOut = Callable[[int, bytes, int, int], None]
"""A function that is called with (relation oid, data, row, end) for an Update message whose record
lacks the value of a column, because the value was not sent. `row` is the position after the
relation oid."""


class RelationVersion(ABC):
    """A relation as one Relation message described it, and what writes the records of its rows.

    `encoder` encodes rows that a snapshot reads; their keys are the same in every dialect.
    `noted_in` is the transaction in which the relation was noted last. `changes` is set while the
    relation is under snapshot.
    """

    __slots__ = ("changes", "encoder", "name", "noted_in", "schema_id")

    def __init__(self, name: str, schema_id: int, encoder: RowEncoder, changes: RelationChangeTracker | None) -> None:
        self.name = name
        self.schema_id = schema_id
        self.encoder = encoder
        self.noted_in: Transaction | None = None
        self.changes = changes

    @property
    def description(self) -> RelationDescription:
        return self.encoder.description

    @property
    def reads_tuples(self) -> bool:
        """Whether `read` takes the tuples of rows instead of their READ events."""
        return False

    def expect_rows_of_leaves(self) -> None:
        """Expect old tuples of partitions whose replica identity differs from that of this
        relation."""
        self.encoder.has_rows_of_leaves = True

    @abstractmethod
    def tracked(self, changes: RelationChangeTracker) -> RelationVersion:
        """Return the same version with a tracker, which receives each changed key."""

    @abstractmethod
    def row(self, transaction: Transaction, kind: int, data: bytes, row: int, end: int, change_lsn: int) -> None:
        """Write the records of an Insert, Update or Delete message. `kind` is its first byte, `row`
        the position after its relation oid, and `end` the position after the message."""

    @abstractmethod
    def truncate(self, transaction: Transaction, change_lsn: int) -> None:
        """Write the record of a TRUNCATE of the relation."""

    @abstractmethod
    def read(self, transaction: Transaction, rows: Iterable[tuple[bytes | None, bytes]], change_lsn: int) -> None:
        """Write rows of a snapshot, as CopyDecoder returns them, in the transaction that commits
        now."""

    @abstractmethod
    def track(self, data: bytes, kind: int, row: int, end: int) -> None:
        """Tell the tracker the keys of a message, without writing records."""

    @abstractmethod
    def failing(self, part: TuplePart) -> str | None:
        """Return the column and byte of the first value of a tuple that cannot be written, for the
        report of an unexpected error."""

    @abstractmethod
    def too_large(self, what: str, size: int) -> StopForOperator:
        """Return the error for a row of `size` bytes, which is more than the topic takes. `what` is
        a clause for the message of the error."""


class RecordWriter(ABC):
    """Write the records of the transactions that the state machine receives.

    `resume_lsn` is the LSN from which replication could start again when the call is made.
    `marked_lsn` and `marked_time` are the LSN and the time of the newest commit that has a marker:
    consumers see no other commits.
    """

    def __init__(self) -> None:
        self.marked_lsn = 0
        self.marked_time = 0
        self.on_left_out: LeftOut | None = None

    @abstractmethod
    def open(
        self, xid: int, commit_lsn: int | None, commit_time: int | None, resume_lsn: int, in_stream: bool
    ) -> Transaction:
        """Return the state of a transaction that begins."""

    @abstractmethod
    def enter(self, transaction: Transaction, in_stream: bool) -> None:
        """Record that the subxid or the origin is different for the records that follow."""

    @abstractmethod
    def begin(self, transaction: Transaction, resume_lsn: int) -> None:
        """Record that the transaction, or this segment of it, has something to be recorded."""

    @abstractmethod
    def relation(self, transaction: Transaction, version: RelationVersion) -> None:
        """Record that the transaction changes a relation, before its first change."""

    @abstractmethod
    def truncate(
        self, transaction: Transaction, versions: Sequence[RelationVersion], change_lsn: int, relation_count: int
    ) -> None:
        """Write the records of a TRUNCATE. `versions` are the versions of its relations that are
        not left out; `relation_count` is the number of all its relations."""

    @abstractmethod
    def message(self, transaction: Transaction | None, message: Message, change_lsn: int, resume_lsn: int) -> int:
        """Write a logical message. Return 0. If the record is larger than the topic takes, write
        nothing and return its size."""

    @abstractmethod
    def exclude_message(self, transaction: Transaction, prefix: str) -> None:
        """Record that a message of the transaction is not written, because it is too large."""

    @abstractmethod
    def end(
        self, transaction: Transaction, kind: str, marker_lsn: int, end_lsn: int, time: int, gid: str | None
    ) -> bool:
        """Write what ends a transaction that is committed or prepared. `kind` is the kind of its
        last marker. Return whether consumers get anything of the transaction."""

    @abstractmethod
    def add_pending(self, marker: Marker) -> None:
        """Add a marker that no message causes."""

    @property
    @abstractmethod
    def pending_count(self) -> int:
        """The number of markers that `take_pending` would return, or of what takes their place in a
        dialect without markers."""

    @abstractmethod
    def take_pending(self) -> list[Marker]:
        """Return the markers that were added since the last call, in order. A marker is written
        once every record before it is durable."""

    # -- streamed and prepared transactions, which a dialect may refuse

    @abstractmethod
    def accept_stream(self) -> bool:
        """Return whether the dialect can write transactions before they commit."""

    @abstractmethod
    def accept_prepared(self, xid: int) -> None:
        """Raise StopForOperator if the dialect cannot write prepared transactions."""

    @abstractmethod
    def stop_segment(self, transaction: Transaction, resume_lsn: int) -> None:
        """Write the end of a segment that has records."""

    @abstractmethod
    def abort(self, transaction: Transaction, subxid: int, lsn: int, time: int | None) -> None:
        """Write the rollback of a streamed transaction, or of its subtransaction `subxid`."""

    @abstractmethod
    def end_prepared(self, prepared: Prepared, kind: str, marker_lsn: int, end_lsn: int, time: int) -> None:
        """Write the end of a transaction that was prepared before."""
