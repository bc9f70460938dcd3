"""When a Kafka transaction ends, when reading waits, and when an idle position moves: decided here,
from plain facts.

A Kafka transaction holds whole PostgreSQL transactions. While one is committed the next one is
filled, so it can be closed only where a PostgreSQL transaction ends and Kafka is free. What is left
to decide is whether it should be closed there:

    within a read    only when it is large: whoever waits for it waits for the rest of the read anyway
    after a read     always where the stream pauses, so that a small transaction is not delayed. Where the stream has more, not
                     before its open batches hold enough: a batch costs gateway and broker as much as dozens of rows
    stopping         always
    one by one       always: what follows cannot be delivered, and nothing before it may share its fate

A Kafka transaction costs gateway and brokers a few ms of CPU time, however little it holds. Kafka
counts as free no sooner than `commit_interval_s` after the last one was begun.

The replication loop (gateway/runtime/pump.py) and the delivery (gateway/kafka/delivery.py) ask;
neither decides by itself. All times are seconds, and come from the caller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)  # not frozen: made after every read
class Filling:
    """The Kafka transaction that is being filled, and what is around it."""

    at_boundary: bool
    """No PostgreSQL transaction that must stay whole is half in it."""
    has_content: bool
    """Records or markers: without any there is nothing to commit."""
    kafka_is_free: bool
    """The Kafka transaction before it is committed."""
    bytes: int
    """Read from PostgreSQL since the one before it was closed."""
    open_batches: int
    """Partitions with a batch that is not full."""
    owed_markers: int
    age_s: float
    """Since the one before it was closed."""
    more_at_hand: bool = False
    """The stream has more to read at once."""
    stopping: bool = False
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """The limits. `memory_bytes` and `commit_interval_s` are those of kafka's settings; the others
    are as measured (docs/performance.md)."""

    memory_bytes: int
    commit_interval_s: float = 0.0
    close_bytes: int = 1 << 18
    """Within one read, a Kafka transaction is closed only with so many bytes."""
    batch_worth_bytes: int = 8 << 10
    """While the stream has more, open batches are to hold so much on average."""
    flush_bytes: int = 4 << 20
    """After so many bytes batches leave also when they are not full: a transaction over a thousand
tables has as many."""
    hold_s: float = 2.0
    """Small batches are held back no longer than this."""
    max_owed_markers: int = 20_000
    """Reading waits while a stalled broker lets more markers than this pile up: small transactions
are mostly markers."""
    idle_interval_s: float = 10.0
    idle_bytes: int = 16 << 20
    """An idle slot's position is made durable this often, or after so much WAL of others."""

    def may_close(self, filling: Filling) -> bool:
        return filling.at_boundary and filling.has_content and filling.kafka_is_free

    def closes_within_read(self, filling: Filling) -> bool:
        """At the end of a PostgreSQL transaction, with more of the same read to come."""
        if not self.may_close(filling):
            return False
        return filling.one_by_one or filling.bytes >= max(
            self.close_bytes, self._worthwhile_bytes(filling.open_batches)
        )

    def closes(self, filling: Filling) -> bool:
        """After a read, and when Kafka has become free."""
        return self.may_close(filling) and (
            not filling.more_at_hand
            or filling.stopping
            or filling.one_by_one
            or filling.bytes >= self._worthwhile_bytes(filling.open_batches)
            or filling.owed_markers >= self.max_owed_markers
            or filling.age_s >= self.hold_s
        )

    def flushes(self, unflushed_bytes: int, open_batches: int) -> bool:
        """Whether batches that are not full leave now, into a Kafka transaction that stays open."""
        return unflushed_bytes >= max(self.flush_bytes, self._worthwhile_bytes(open_batches))

    def has_room(self, in_flight_bytes: int) -> bool:
        """Whether more may be read although so much is not acknowledged yet."""
        return in_flight_bytes <= self.memory_bytes

    def waits_for_kafka(self, owed_markers: int, *, kafka_is_free: bool) -> bool:
        """Whether reading waits until markers can leave."""
        return owed_markers > self.max_owed_markers and not kafka_is_free

    def rest_s(self, age_s: float) -> float:
        """So long Kafka is left alone behind a Kafka transaction that was begun so long ago, and is
        durable now."""
        return max(0.0, self.commit_interval_s - age_s)

    def advances(self, passed_bytes: int, age_s: float, *, reply_requested: bool) -> bool:
        """Whether the position follows the server over `passed_bytes` of WAL that hold nothing for
        us."""
        if passed_bytes <= 0:
            return False
        return reply_requested or age_s >= self.idle_interval_s or passed_bytes >= self.idle_bytes

    def _worthwhile_bytes(self, open_batches: int) -> int:
        return min(open_batches * self.batch_worth_bytes, self.memory_bytes)
