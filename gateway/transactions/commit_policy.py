"""Decide when a Kafka transaction is closed, when reading waits, and when the position of an idle
slot advances.

A Kafka transaction holds whole PostgreSQL transactions, except that a streamed transaction may be
divided (OrdinaryTransactions.at_boundary). While one Kafka transaction is being committed, the next
is filled. A Kafka transaction can be closed only where a PostgreSQL transaction may end, and only
when Kafka is free. Whether it is then closed depends on the moment:

    within a read    only if it is large: its consumers wait for the rest of the read anyway
    after a read     always if the stream pauses, so that a small transaction is not delayed. If the
                     stream has more, only once the open batches hold enough: a batch costs gateway
                     and broker as much as dozens of rows
    stopping         always
    one by one       always: what follows cannot be delivered, and must not prevent what precedes it
                     from being committed

A Kafka transaction costs gateway and brokers a few ms of CPU time, however little it holds. Kafka
therefore counts as free no sooner than `commit_interval_s` after the last Kafka transaction was
begun.

gateway/runtime/kafka_transactions.py and the delivery (gateway/kafka/transaction_delivery.py) ask
this module. All times are in seconds and are passed by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)  # not frozen: one is created after every read
class Filling:
    """The Kafka transaction that is being filled, and the state of the stream and of Kafka."""

    at_boundary: bool
    """Whether the Kafka transaction may end here: each PostgreSQL transaction in it that must stay
    whole is complete."""
    has_content: bool
    """Whether there are records, markers or states to commit."""
    kafka_is_free: bool
    """Whether the previous Kafka transaction is committed."""
    bytes: int
    """The number of bytes read from PostgreSQL since the previous Kafka transaction was closed."""
    open_batches: int
    """The number of partitions with a batch that is not full."""
    owed_markers: int
    age_s: float
    """The seconds since the previous Kafka transaction was closed."""
    more_at_hand: bool = False
    """Whether the stream has more data that can be read at once."""
    stopping: bool = False
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """The limits of a Kafka transaction. `memory_bytes` and `commit_interval_s` are settings of
    `kafka`; the defaults of the other limits were measured (docs/performance.md)."""

    memory_bytes: int
    commit_interval_s: float = 0.0
    close_bytes: int = 1 << 18
    """Within one read, a Kafka transaction is closed only if it has this many bytes."""
    batch_worth_bytes: int = 8 << 10
    """While the stream has more, open batches should hold this much on average."""
    flush_bytes: int = 4 << 20
    """After this many bytes, batches are sent even if they are not full: a transaction over a
    thousand tables has a thousand batches."""
    hold_s: float = 2.0
    """Small batches are held back no longer than this."""
    max_owed_markers: int = 20_000
    """Reading waits while a stalled broker lets more markers than this accumulate: small
    transactions are mostly markers."""
    idle_interval_s: float = 10.0
    idle_bytes: int = 16 << 20
    """The position of an idle slot is made durable every `idle_interval_s` seconds, or after this
    many bytes of WAL of other databases and tables."""

    def may_close(self, filling: Filling) -> bool:
        return filling.at_boundary and filling.has_content and filling.kafka_is_free

    def closes_within_read(self, filling: Filling) -> bool:
        """Return whether to close the Kafka transaction at the end of a PostgreSQL transaction,
        while the same read has more data."""
        if not self.may_close(filling):
            return False
        return filling.one_by_one or filling.bytes >= max(
            self.close_bytes, self._worthwhile_bytes(filling.open_batches)
        )

    def closes(self, filling: Filling) -> bool:
        """Return whether to close the Kafka transaction after a read, or when Kafka has become
        free."""
        return self.may_close(filling) and (
            not filling.more_at_hand
            or filling.stopping
            or filling.one_by_one
            or filling.bytes >= self._worthwhile_bytes(filling.open_batches)
            or filling.owed_markers >= self.max_owed_markers
            or filling.age_s >= self.hold_s
        )

    def flushes(self, unflushed_bytes: int, open_batches: int) -> bool:
        """Return whether batches that are not full are sent now, into a Kafka transaction that
        stays open."""
        return unflushed_bytes >= max(self.flush_bytes, self._worthwhile_bytes(open_batches))

    def has_room(self, in_flight_bytes: int) -> bool:
        """Return whether more may be read while this many bytes are not acknowledged."""
        return in_flight_bytes <= self.memory_bytes

    def waits_for_kafka(self, owed_markers: int, *, kafka_is_free: bool) -> bool:
        """Return whether reading must wait until markers can be sent."""
        return owed_markers > self.max_owed_markers and not kafka_is_free

    def rest_s(self, age_s: float) -> float:
        """Return the seconds to wait before the next Kafka transaction may begin. The last one was
        begun `age_s` ago, and two must begin at least `commit_interval_s` apart."""
        return max(0.0, self.commit_interval_s - age_s)

    def advances(self, passed_bytes: int, age_s: float, *, reply_requested: bool) -> bool:
        """Return whether the position advances over `passed_bytes` of WAL that contains nothing to
        deliver."""
        if passed_bytes <= 0:
            return False
        return reply_requested or age_s >= self.idle_interval_s or passed_bytes >= self.idle_bytes

    def _worthwhile_bytes(self, open_batches: int) -> int:
        return min(open_batches * self.batch_worth_bytes, self.memory_bytes)
