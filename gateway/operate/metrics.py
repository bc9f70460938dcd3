"""Every metric that operators meet, each with its sentence. Set per Kafka transaction or per check,
or looked up when somebody asks; never per row."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()

EVENTS = Counter("walgate_events", "Change events and logical messages that are durable in Kafka.", registry=REGISTRY)
TRANSACTIONS = Counter("walgate_transactions", "Committed transactions that are durable in Kafka.", registry=REGISTRY)
CYCLES = Counter("walgate_kafka_transactions", "Kafka transactions that were committed.", registry=REGISTRY)
ATTEMPTS = Counter(
    "walgate_attempts",
    "Starts and new attempts after an error, by what ended the last.",
    ["ended_by"],
    registry=REGISTRY,
)
CONNECTED = Gauge("walgate_connected", "1 while the replication stream is read, else 0.", registry=REGISTRY)
EPOCH = Gauge("walgate_epoch", "Incarnation of the gateway, as on every record.", registry=REGISTRY)
RECEIVED_LSN = Gauge("walgate_received_lsn_bytes", "Newest LSN that came from PostgreSQL.", registry=REGISTRY)
FLUSH_LSN = Gauge(
    "walgate_flush_lsn_bytes", "LSN up to which everything is durable in Kafka and confirmed.", registry=REGISTRY
)
SERVER_LSN = Gauge(
    "walgate_server_lsn_bytes", "The server's own flush LSN at the last periodic check.", registry=REGISTRY
)
UNDER_WAY = Gauge(
    "walgate_under_way_bytes",
    "Batches that Kafka has not acknowledged; reading pauses at kafka.memory_bytes.",
    registry=REGISTRY,
)
OPEN_STREAMS = Gauge("walgate_open_streams", "Transactions in progress of which rows were sent.", registry=REGISTRY)
PREPARED = Gauge("walgate_prepared_transactions", "Prepared transactions that wait for their end.", registry=REGISTRY)
