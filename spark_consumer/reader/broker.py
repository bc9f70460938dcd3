"""Read ranges of offsets from topic-partitions, with consumers that live as long as the process.

Spark keeps its Python workers, so a consumer (0.1-0.3 s to start) serves many tasks. There are two
consumers: a read of 11 records took 70-270 ms with fetches of several megabytes, and 7-22 ms with
small fetches. Large reads are faster with large fetches. Small stretches of many topic-partitions
are read with one assignment: separate assignments would take 7-22 ms each.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spark_consumer.errors import (
    MalformedRecord,
    RangeExpired,
    SourceRefused,
    SourceUnavailable,
    TransactionIncomplete,
)

_SMALL_READ_RECORDS = 2_000
_CHUNK_BYTES = 8 << 20
_CHUNK_RECORDS = 10_000
POLL_S = 0.2
_ASK_S = 5.0  # for one request; a consumer reports connection errors only between requests

_ALWAYS: dict[str, Any] = {
    "group.id": "walgate-spark",  # required by librdkafka; no group is joined and no offset committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "log_level": 2,  # errors are raised instead
}
_SMALL = {
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,
    "fetch.max.bytes": 1 << 20,
    "max.partition.fetch.bytes": 256 << 10,
}
_LARGE = {
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32_768,
    "fetch.max.bytes": 4 << 20,
    "max.partition.fetch.bytes": 1 << 20,
}

# Errors that pass: a broker restarts, or the leader of a partition moves.
_PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
# A broker that has just started reports this even for topics that it has.
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


_TOPIC_OPTIONS: Final = "check the options `prefix` and `kafka.bootstrap.servers`, and that the gateway has run."


class _Trouble:
    """Record why the connections of a consumer failed, since the error of a request reports only
    that all brokers are down."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN and not self.is_refusal:
            self.last = error

    @property
    def is_refusal(self) -> bool:
        return self.last is not None and self.last.code() in _REFUSED


class _Kept(NamedTuple):
    consumer: Consumer
    trouble: _Trouble
    known: set[tuple[str, int]]  # topic-partitions that are known to exist
    met: set[str]  # topics whose leaders have been requested

    def meet(self, topics: Iterable[str]) -> None:
        """Request the leaders of topics that are new to the consumer. For topics that are only
        assigned, librdkafka looks for leaders once a second, which would delay the first read of
        each topic."""
        new = sorted(set(topics) - self.met)
        if new:
            with suppress(KafkaException):  # the read fails with the same error, and reports it
                self.consumer.offsets_for_times([TopicPartition(topic, 0, -1) for topic in new], timeout=_ASK_S)
                self.met.update(new)


_consumers: dict[tuple[tuple[tuple[str, str], ...], str], _Kept] = {}


@dataclass(frozen=True, slots=True)
class Broker:
    """The connection to Kafka; it can be pickled into tasks. `settings` are librdkafka's, including
    `bootstrap.servers` and security.

    `no_progress_s`: seconds without a record after which a read fails. Kafka must make a committed
    transaction visible in all its partitions within this time, since the marker may become visible
    first.
    """

    settings: Mapping[str, str]
    no_progress_s: float = 30.0

    def _key(self, size: str) -> tuple[tuple[tuple[str, str], ...], str]:
        return tuple(sorted(self.settings.items())), size

    def _kept(self, size: str) -> _Kept:
        """Return this process's consumer for reads of a size, "small" or "large"."""
        key = self._key(size)
        found = _consumers.get(key)
        if found is None:
            sizes = _SMALL if size == "small" else _LARGE
            trouble = _Trouble()
            consumer = Consumer({**_ALWAYS, **sizes, "error_cb": trouble, **self.settings})
            found = _consumers[key] = _Kept(consumer, trouble, set(), set())
        return found

    def offsets(self, topic: str, partition: int = 0, *, patience_s: float | None = None) -> tuple[int, int]:
        """Return the first offset that Kafka has, and the offset after the last committed record
        (the last stable offset).

        If no broker answers, retry for `patience_s` (None: `no_progress_s`). Raises
        SourceUnavailable and SourceRefused.
        """
        consumer, trouble, known, _ = self._kept("small")
        deadline = time.monotonic() + (self.no_progress_s if patience_s is None else patience_s)
        while True:
            trouble.last = None
            patience = max(1.0, min(_ASK_S, deadline - time.monotonic()))
            try:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=patience)
            except KafkaException as problem:
                error: KafkaError = problem.args[0]
                consumer.poll(0)  # calls `trouble`
                passes = error.code() in _PASSING or (error.code() in _MISSING and (topic, partition) in known)
                if not passes or trouble.is_refusal or time.monotonic() > deadline:
                    raise unavailable(f"the offsets of {topic}[{partition}]", error, trouble.last) from problem
                time.sleep(POLL_S)  # while a leader moves, the error is returned immediately
            else:
                known.add((topic, partition))
                return low, high

    def read(
        self, topic: str, partition: int, first_offset: int, last_offset: int, *, skip_tombstones: bool = False
    ) -> Iterator[tuple[list[int], list[bytes]]]:
        """Yield chunks (offsets, values) of all committed records from `first_offset` to
        `last_offset`. Raises what `read_many` raises."""
        stretch = Stretch(topic, partition, first_offset, last_offset, skip_tombstones)
        return ((offsets, values) for _, offsets, values in self.read_many([stretch]))

    def read_many(self, stretches: Sequence[Stretch]) -> Iterator[tuple[int, list[int], list[bytes]]]:
        """Yield chunks (index of the stretch, offsets, values). The chunks of a stretch have the
        order of its offsets; chunks of different topic-partitions have the order of their arrival.

        Raises RangeExpired, SourceUnavailable, SourceRefused, and TransactionIncomplete if the end
        of a stretch is not reached.
        """
        for together in _rounds(stretches):
            offsets = sum(stretch.last_offset - stretch.first_offset for _, stretch in together)
            size = "small" if offsets < _SMALL_READ_RECORDS else "large"
            kept = self._kept(size)
            reading = {
                (stretch.topic, stretch.partition): _Reading(index, stretch, kept.trouble, stretch.first_offset)
                for index, stretch in together
            }
            try:
                kept.meet(topic for topic, _ in reading)
                kept.consumer.assign([TopicPartition(*place, one.position) for place, one in reading.items()])
                yield from self._chunks(kept.consumer, reading)
            except SourceUnavailable:  # its connection may hang for longer than the next read waits
                _consumers.pop(self._key(size), None)
                raise
            except KafkaException as problem:
                what = ", ".join(f"{topic}[{partition}]" for topic, partition in reading)
                raise unavailable(what, problem.args[0]) from problem
            finally:
                kept.consumer.unassign()

    def _chunks(
        self, consumer: Consumer, reading: dict[tuple[str, int], _Reading]
    ) -> Iterator[tuple[int, list[int], list[bytes]]]:
        chunk_records = min(1_000, _CHUNK_RECORDS)
        last_progress, answers = time.monotonic(), False
        trouble = next(iter(reading.values())).trouble
        trouble.last = None
        while reading:
            offsets_left = sum(one.stretch.last_offset - one.position + 1 for one in reading.values())
            messages = _next_messages(consumer, chunk_records, offsets_left)
            reached = 0
            for place, own in _by_place(messages, reading):
                reached += reading[place].take(own)
            if reached:
                last_progress, answers = time.monotonic(), False
                trouble.last = None
            elif answers:
                raise next(iter(reading.values())).incomplete(self.no_progress_s)
            elif time.monotonic() - last_progress > self.no_progress_s:
                for one in reading.values():
                    one.check_answers(consumer)
                answers = True  # after a pause, the broker may have sent records together with the answer
            if messages:
                # A row may have 16 MiB: the size of the next chunk follows from this one's records.
                value_bytes = sum(one.value_bytes for one in reading.values())
                value_count = sum(len(one.values) for one in reading.values())
                chunk_records = max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES * value_count // max(1, value_bytes)))
            for place, one in list(reading.items()):
                if one.values and (one.is_done or one.value_bytes >= _CHUNK_BYTES or len(one.values) >= _CHUNK_RECORDS):
                    yield one.hand_out()
                if one.is_done:
                    del reading[place]
                    if reading:
                        consumer.incremental_unassign([TopicPartition(*place)])


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of offsets of a topic-partition to be read; both ends are included."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    skip_tombstones: bool = False

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


def _rounds(stretches: Sequence[Stretch]) -> Iterator[list[tuple[int, Stretch]]]:
    """Group the stretches into assignments. Each has at most one stretch of each topic-partition; a
    large stretch has an assignment of its own."""
    rounds: list[list[tuple[int, Stretch]]] = []
    taken: Counter[tuple[str, int]] = Counter()
    for index, stretch in enumerate(stretches):
        if stretch.last_offset - stretch.first_offset >= _SMALL_READ_RECORDS:
            yield [(index, stretch)]
            continue
        turn = taken[stretch.topic, stretch.partition]
        taken[stretch.topic, stretch.partition] += 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append((index, stretch))
    yield from rounds


@dataclass(slots=True)
class _Reading:
    """A stretch that is being read. `position` is the next offset; `offsets` and `values` are the
    next chunk."""

    index: int
    stretch: Stretch
    trouble: _Trouble
    position: int
    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    value_bytes: int = 0

    @property
    def is_done(self) -> bool:
        return self.position > self.stretch.last_offset

    def take(self, messages: list[Message]) -> int:
        """Take messages, and return the number of offsets by which they advance the position.
        Raises the exception that an error event stands for."""
        before = self.position
        for message in messages:
            error = message.error()
            offset = message.offset()
            if error is not None:
                self.position = max(self.position, self._reached_by(error, offset))
                continue
            assert offset is not None
            if offset > self.stretch.last_offset:
                self.position = offset
                break
            value = message.value()
            self.position = offset + 1
            if value is not None:
                self.offsets.append(offset)
                self.values.append(value)
                self.value_bytes += len(value)
            elif not self.stretch.skip_tombstones:
                raise MalformedRecord(f"{self.stretch} {offset}: a record with a null value")
        return self.position - before

    def _reached_by(self, error: KafkaError, offset: int | None) -> int:
        """Return the position after an error event. The event that the end of the partition is
        reached advances it only if that end lies beyond the stretch."""
        code, stretch = error.code(), self.stretch
        if code == KafkaError._PARTITION_EOF:
            return offset if offset is not None and offset > stretch.last_offset else self.position
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise RangeExpired(
                f"{stretch} no longer has offset {self.position}, but the manifests list "
                f"{self.position}..{stretch.last_offset}",
                hint="If retention has removed records that were never read, raise it, and start from a later position (in "
                "Spark, with a new checkpoint location: the next error names the position). If the topic was recreated, leave "
                "its table out (--exclude). Or use another path and checkpoint location with --starting-position latest, and "
                "run walgate snapshot start.",
            )
        if error.retriable() or code in _PASSING or code in _MISSING:
            self.trouble(error)
            return self.position  # librdkafka reconnects, until the no-progress time is over
        raise unavailable(str(stretch), error)

    def hand_out(self) -> tuple[int, list[int], list[bytes]]:
        offsets, values = self.offsets, self.values
        self.offsets, self.values, self.value_bytes = [], [], 0
        return self.index, offsets, values

    def check_answers(self, consumer: Consumer) -> None:
        """Raise SourceUnavailable or SourceRefused if the broker of this stretch is away or hangs.
        A consumer reports a broker that hangs only after `socket.timeout.ms`."""
        place, error = TopicPartition(self.stretch.topic, self.stretch.partition), self.trouble.last
        try:
            if error is None:
                consumer.get_watermark_offsets(place, timeout=_ASK_S)
        except KafkaException as problem:
            error = problem.args[0]
        if error is not None:
            raise unavailable(f"{self.stretch} from offset {self.position} on", error)

    def incomplete(self, no_progress_s: float) -> TransactionIncomplete:
        return TransactionIncomplete(
            f"{self.stretch}: no record at offset {self.position} for {no_progress_s:g} s, but according to "
            f"the manifests there are records up to {self.stretch.last_offset}",
            hint="The broker is slow, or records listed in the manifests are missing from the topic. If the broker is slow, "
            "raise the option noProgressTimeout. If records are missing, start from a later position (in Spark, with a new "
            "checkpoint location, and a new mirror or changelog).",
        )


def _by_place(
    messages: list[Message], reading: dict[tuple[str, int], _Reading]
) -> Iterable[tuple[tuple[str, int], list[Message]]]:
    """Group messages by topic-partition. An event without a partition goes to the first stretch;
    messages of a stretch that is finished are dropped."""
    first = next(iter(reading))
    if len(reading) == 1:
        return [(first, messages)] if messages else []
    found: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        place = message.topic(), message.partition()
        if place in reading:
            found.setdefault(place, []).append(message)
        elif message.error() is not None and place[0] is None:
            found.setdefault(first, []).append(message)
    return found.items()


def _next_messages(consumer: Consumer, chunk_records: int, offsets_left: int) -> list[Message]:
    """Return the next messages. `consume` waits until it has as many messages as were requested.
    Since some offsets are those of Kafka's control records, it would always wait for the full
    time-out near the end. There, wait for one message, and take those that are available
    besides."""
    if offsets_left > chunk_records:
        return consumer.consume(chunk_records, POLL_S)
    messages = consumer.consume(1, POLL_S)
    return messages + consumer.consume(offsets_left, 0) if messages else messages


def unavailable(what: str, error: KafkaError, reason: KafkaError | None = None) -> SourceUnavailable | SourceRefused:
    """Return the exception to raise for a failed request. `reason`: the error of the connection."""
    message = f"Kafka did not return {what}: " + "; ".join(f"{e.name()}: {e.str()}" for e in (error, reason) if e)
    if any(e is not None and e.code() in _REFUSED for e in (error, reason)):
        return SourceRefused(message, hint="Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.")
    hint = ""
    if error.code() in _MISSING and reason is not None:
        hint = (
            "Check that all brokers are running. Only if the error remains then, the topic is missing: "
            + _TOPIC_OPTIONS
        )
    elif error.code() in _MISSING:
        hint = "The topic is missing: " + _TOPIC_OPTIONS
    elif reason is not None and "SSL_HANDSHAKE" in reason.str():  # the state in which the broker closed the connection
        hint = "The broker closed the connection during the TLS handshake: check kafka.security.protocol for this port."
    return SourceUnavailable(message, hint=hint)
