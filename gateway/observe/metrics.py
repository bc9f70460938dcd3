"""The metrics, each with its description. Counters are incremented per Kafka transaction or check.
All other values are read from the status board (gateway/observe/status_board.py) when they are
requested, so they are current even while nothing is connected. No metric is updated per row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import STATES, GatewayStatus, WalRetentionCause

REGISTRY = CollectorRegistry()

EVENTS = Counter(
    "walgate_events", "Change events and logical decoding messages that are durable in Kafka.", registry=REGISTRY
)
MESSAGES_EXCLUDED = Counter(
    "walgate_messages_excluded",
    "Logical decoding messages that were too large for Kafka and are not in it.",
    registry=REGISTRY,
)
EXCLUDED = Counter(
    "walgate_excluded_events",
    "Changes of a table in quarantine that were counted and excluded.",
    ["table"],
    registry=REGISTRY,
)
LEFT_OUT = Counter(
    "walgate_left_out_events",
    "Changes of tables that source.excluded_tables names: they were counted, and are not in Kafka.",
    registry=REGISTRY,
)
UNCONVERTIBLE = Counter(
    "walgate_unconvertible_values",
    "Values that were sent as null, with kafka.dialect = debezium, because their Kafka Connect type cannot represent them.",
    registry=REGISTRY,
)
ADVANCES = Counter(
    "walgate_slot_advances",
    "Number of times that the slot was advanced at source.wal_budget_bytes: changes are lost.",
    registry=REGISTRY,
)
ADVANCED_BYTES = Counter(
    "walgate_slot_advanced_bytes",
    "WAL that was skipped when the slot was advanced: the changes in it are lost.",
    registry=REGISTRY,
)
TRANSACTIONS = Counter("walgate_transactions", "Committed transactions that are durable in Kafka.", registry=REGISTRY)
KAFKA_TRANSACTIONS = Counter("walgate_kafka_transactions", "Kafka transactions that were committed.", registry=REGISTRY)
SNAPSHOT_ROWS = Counter(
    "walgate_snapshot_rows", "Snapshot rows that were read from tables and sent.", registry=REGISTRY
)
SNAPSHOT_STALE_ROWS = Counter(
    "walgate_snapshot_stale_rows",
    "Snapshot rows that were discarded because they had changed since they were read; they are read again.",
    registry=REGISTRY,
)
RESTARTS = Counter(
    "walgate_restarts",
    "Restarts of replication after an error, by the class of the error.",
    ["ended_by"],
    registry=REGISTRY,
)

TOPIC_LABELS: Final = 300
"""The number of topics that have a label of their own. They are the first that were written to; the
others share a label."""
OTHER_TOPICS: Final = "(other)"
TABLE_LABELS: Final = 100
"""The number of tables in quarantine that have a label of their own."""
OTHER_TABLES: Final = "other"
MIRROR_LAG_TEXT: Final = "Age of the oldest commit that is in Kafka and not in the mirror, by the server's clock."
HOLDER_TEXT: Final = (
    "Age of the oldest transaction, and of the oldest prepared transaction, that keeps the slot's restart_lsn from advancing "
    "(advance) or the slot from being created (creation). If the role may not see when a transaction began, its age counts "
    "from when the gateway first saw it."
)
_NAN: Final = float("nan")
_TRANSACTIONS: Final = ("transaction", "prepared")

GAUGES: Final[dict[str, str]] = {
    "walgate_connected": "1 while the replication stream is being read, otherwise 0.",
    "walgate_epoch": "Epoch of the gateway, as in every record: it increases each time that replication starts.",
    "walgate_lag_seconds": "Age of the oldest commit that is not durable in Kafka, by the server's clock; 0 if there is "
    "none. While there is no connection, it keeps rising, counted from the last time that everything was "
    "delivered.",
    "walgate_lag_bytes": "WAL between the delivered LSN and the server's end of WAL.",
    "walgate_received_lsn_bytes": "Newest LSN that was received from PostgreSQL.",
    "walgate_delivered_lsn_bytes": "LSN before which every commit is durable in Kafka.",
    "walgate_flush_lsn_bytes": "Confirmed flush LSN of the slot: transactions that committed before it are not sent again.",
    "walgate_server_lsn_bytes": "The server's end of WAL, read over a separate connection.",
    "walgate_server_lsn_age_seconds": "Time since the server's end of WAL was last read.",
    "walgate_last_commit_timestamp_seconds": "Commit time of the newest transaction that is durable in Kafka (Unix).",
    "walgate_heartbeat_timestamp_seconds": "Commit time of the newest heartbeat that the resume LSN in Kafka has passed (Unix).",
    "walgate_undelivered_transactions": "Committed transactions that were received and are not yet durable in Kafka.",
    "walgate_waiting_seconds": "Time for which the stream has not been read, its changes have not been delivered, or PostgreSQL "
    "or Kafka has not answered a probe; 0 if there is no delay.",
    "walgate_last_error_timestamp_seconds": "Time of the last error after which replication was restarted (Unix). "
    "The error is shown in /status and in the log.",
    "walgate_failures_at_resume_lsn": "Number of times in a row that replication has failed with the same error at the same "
    "resume LSN; 0 as soon as the delivered LSN is after it.",
    "walgate_in_flight_bytes": "Bytes of batches that Kafka has not acknowledged; reading pauses at "
    "kafka.memory_bytes.",
    "walgate_streamed_transactions": "In-progress transactions that are being streamed.",
    "walgate_oldest_streamed_transaction_seconds": "Time since the first rows of the oldest in-progress transaction that "
    "is being streamed were received.",
    "walgate_prepared_transactions": "Transactions received at PREPARE TRANSACTION (source.two_phase) that are neither "
    "committed nor rolled back.",
    "walgate_snapshot_unfinished_tables": "Tables whose snapshot has not finished.",
    "walgate_snapshot_unreadable_tables": "Those of them that have failed repeatedly, and that cannot be read until the cause is "
    "removed.",
    "walgate_wal_retained_bytes": "WAL that the server retains for the slot.",
    "walgate_wal_limit_bytes": "Limit on the WAL that the slot may retain: max_slot_wal_keep_size or "
    "source.wal_budget_bytes, whichever is less.",
    "walgate_wal_seconds_to_full": "Time until walgate_wal_limit_bytes is reached, at the rate of the last minute.",
    "walgate_oldest_blocker_seconds": "Age of the oldest transaction, prepared or not, that keeps the slot's "
    "restart_lsn from advancing.",
}


def _values(board: StatusBoard, now: GatewayStatus) -> dict[str, float | None]:
    wal = now.wal
    oldest = min((stream.since for stream in now.streamed_transactions), default=None)
    return {
        "walgate_connected": float(board.state() == "streaming"),
        "walgate_epoch": now.epoch,
        "walgate_lag_seconds": now.lag_seconds,
        "walgate_lag_bytes": now.lag_bytes,
        "walgate_received_lsn_bytes": now.received_lsn,
        "walgate_delivered_lsn_bytes": now.delivered_lsn,
        "walgate_flush_lsn_bytes": now.slot.confirmed_flush_lsn if now.slot else None,
        "walgate_server_lsn_bytes": now.server_lsn or None,
        "walgate_server_lsn_age_seconds": now.server_lsn_age_s,
        "walgate_last_commit_timestamp_seconds": now.last_commit_time,
        "walgate_heartbeat_timestamp_seconds": now.heartbeat_time,
        "walgate_undelivered_transactions": now.undelivered_transactions,
        "walgate_waiting_seconds": max(now.time - now.waiting_since, 0.0) if now.waiting_since is not None else 0.0,
        "walgate_last_error_timestamp_seconds": now.last_error.time if now.last_error else None,
        "walgate_failures_at_resume_lsn": _failures_at_resume_lsn(now),
        "walgate_in_flight_bytes": now.in_flight_bytes,
        "walgate_streamed_transactions": len(now.streamed_transactions),
        "walgate_oldest_streamed_transaction_seconds": max(now.time - oldest, 0.0) if oldest is not None else 0.0,
        "walgate_prepared_transactions": now.prepared_transactions,
        "walgate_snapshot_unfinished_tables": now.snapshot.left if now.snapshot else 0,
        "walgate_snapshot_unreadable_tables": now.snapshot.unreadable if now.snapshot else 0,
        "walgate_wal_retained_bytes": wal.retained_bytes if wal else None,
        "walgate_wal_limit_bytes": wal.limit_bytes if wal else None,
        "walgate_wal_seconds_to_full": wal.seconds_to_full if wal else None,
        "walgate_oldest_blocker_seconds": _oldest_blocker_s(now),
    }


def _failures_at_resume_lsn(now: GatewayStatus) -> int:
    error = now.last_error
    return error.times if error is not None and now.delivered_lsn <= error.resume_lsn else 0


def _oldest_blocker_s(now: GatewayStatus) -> float | None:
    """Return the age of the oldest transaction that blocks: 0 if there is none, or None if no age
    is known."""
    begins = [cause.since for cause in now.blockers if cause.kind in _TRANSACTIONS]
    known = [since for since in begins if since is not None]
    if known:
        return max(_server_now(now) - min(known), 0.0)
    return None if begins else 0.0


class StatusCollector(Collector):
    """A collector of the values of the status board; unknown values are NaN."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def describe(self) -> Iterator[Metric]:
        """Yield the names, without reading the status board."""
        yield from (GaugeMetricFamily(name, text) for name, text in GAUGES.items())

    def collect(self) -> Iterator[Metric]:
        now = self._board.snapshot(listed_topics=0)
        for name, value in _values(self._board, now).items():
            yield GaugeMetricFamily(name, GAUGES[name], value=_NAN if value is None else value)
        labels = ["slot", "prefix", "state"]
        state = GaugeMetricFamily("walgate_state", "1 for the current state of the gateway.", labels=labels)
        for each in STATES:
            state.add_metric([now.slot_name, now.prefix, each], float(each == now.state))
        yield state
        up = GaugeMetricFamily(
            "walgate_up", "1 while a service answers probes, 0 while it does not.", labels=["service"]
        )
        for part in now.parts:
            up.add_metric([part.name], _NAN if part.up is None else float(part.up))
        yield up
        yield _causes(now)
        yield _quarantined(now)
        yield from _mirrors(now)
        yield from _topics(self._board)


def _server_now(now: GatewayStatus) -> float:
    return now.server_time if now.server_time is not None else now.time


def _causes(now: GatewayStatus) -> Metric:
    """Return the age of the oldest blocker of each sort. This limits the metric to four series at a
    time, although each new process ID adds a series in Prometheus."""
    family = GaugeMetricFamily("walgate_blocker_seconds", HOLDER_TEXT, labels=["blocks", "kind", "blocker"])
    oldest: dict[tuple[str, str], WalRetentionCause] = {}
    for cause in sorted(now.blockers, key=lambda one: one.since or 0.0):
        if cause.kind in _TRANSACTIONS:
            oldest.setdefault(("creation" if cause.blocks else "advance", cause.kind), cause)
    for (blocks, kind), cause in oldest.items():
        age_s = _NAN if cause.since is None else max(_server_now(now) - cause.since, 0.0)
        family.add_metric([blocks, kind, cause.title], age_s)
    return family


def _mirrors(now: GatewayStatus) -> Iterator[Metric]:
    """Yield state and lag of each of http.mirrors, under its URL."""
    up = GaugeMetricFamily("walgate_mirror_up", "1 while a mirror answers, 0 while it does not.", labels=["mirror"])
    lag = GaugeMetricFamily("walgate_mirror_lag_seconds", MIRROR_LAG_TEXT, labels=["mirror"])
    for one in now.mirrors:
        up.add_metric([one.url], _NAN if one.up is None else float(one.up))
        lag.add_metric([one.url], _NAN if one.lag_seconds is None else one.lag_seconds)
    yield from (up, lag)


def _quarantined(now: GatewayStatus) -> Metric:
    family = GaugeMetricFamily("walgate_quarantined_tables", "Tables in quarantine.", labels=["table"])
    names = [one.table for one in now.quarantined]
    for name in names[:TABLE_LABELS]:
        family.add_metric([name], 1)
    if len(names) > TABLE_LABELS:
        family.add_metric([OTHER_TABLES], len(names) - TABLE_LABELS)
    return family


def _topics(board: StatusBoard) -> Iterator[Metric]:
    """Yield the counts of topics. If there are many topics, most share a label, because dashboards
    and Prometheus slow down with the number of series."""
    for name, text, counted in (
        ("walgate_topic_records", "Records of a topic that are durable in Kafka.", board.topic_records),
        ("walgate_topic_bytes", "Bytes of the batches of a topic, as sent to Kafka.", board.topic_bytes),
    ):
        family = CounterMetricFamily(name, text, labels=["topic"])
        counts = dict(counted)  # a copy: the gateway's loop adds to it
        others = sum(counts.values())
        for topic, count in islice(counts.items(), TOPIC_LABELS):
            family.add_metric([topic], count)
            others -= count
        if others:
            family.add_metric([OTHER_TOPICS], others)
        yield family


_collectors: list[StatusCollector] = []


def show(board: StatusBoard) -> None:
    """Make the metrics show `board` from now on instead of an earlier status board. A process shows
    only one."""
    for former in _collectors:
        REGISTRY.unregister(former)
    _collectors[:] = [StatusCollector(board)]
    REGISTRY.register(_collectors[0])


_labelled: set[str] = set()


def quarantined_label(table: str) -> str:
    """Return the label of a table in quarantine: its name for the first TABLE_LABELS tables,
    OTHER_TABLES for the others."""
    if len(_labelled) < TABLE_LABELS:
        _labelled.add(table)
    return table if table in _labelled else OTHER_TABLES
