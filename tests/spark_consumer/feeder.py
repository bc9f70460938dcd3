"""Writes to Kafka what a gateway would write, by the contract of the topics, and keeps the truth
beside it.

It is not the gateway: it makes what a gateway makes only rarely (void epochs, aborted Kafka
transactions, damaged manifests), at will. Rows and schemas are real: value schemas from
schemas.change_schema, records by fastavro, offsets from the broker's answers.
"""

from __future__ import annotations

import io
import json
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

import fastavro
from confluent_kafka import IsolationLevel, Message, Producer, TopicPartition, admin
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from schemas.change_schema import change_schema, key_schema
from schemas.records import LOGICAL_MESSAGE, TRANSACTION_MARKER
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.topic_names import avro_name, message_topic, topic_name, transaction_topic, value_subject
from schemas.wire_format import frame
from tests.support import stock_registry


class WrittenTopics(Protocol):
    """Where a gateway, or a feeder, writes."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def registry_url(self) -> str: ...
    @property
    def prefix(self) -> str: ...


def words_of(topics: WrittenTopics) -> list[str]:
    """Options of a job that reads them."""
    servers = ["--bootstrap-servers", topics.bootstrap_servers, "--registry", topics.registry_url]
    return [*servers, "--prefix", topics.prefix]


Row = dict[str, Any]
Key = tuple[Any, ...]

BOOL, INT4, INT8, TEXT, FLOAT8, BYTEA, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = (
    TypeFacts(oid, "pg_catalog", name, Kind.BASE)
    for oid, name in [
        (16, "bool"), (23, "int4"), (20, "int8"), (25, "text"), (701, "float8"), (17, "bytea"),
        (1082, "date"), (1114, "timestamp"), (1184, "timestamptz"), (1700, "numeric"), (2950, "uuid"),
    ]
)  # fmt: skip
INT4_ARRAY = TypeFacts(1007, "pg_catalog", "_int4", Kind.ARRAY, element=INT4)
NUMERIC_12_2 = (12 << 16 | 2) + 4  # typmod
VISIBLE_TIMEOUT_S = 30.0


def relation(
    name: str,
    columns: dict[str, TypeFacts | tuple[TypeFacts, int]],
    key: tuple[str, ...],
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
) -> RelationDescription:
    described = []
    for column, facts in columns.items():
        facts, typmod = facts if isinstance(facts, tuple) else (facts, -1)
        described.append(ColumnDescription(column, facts, typmod, column in key))
    return RelationDescription(zlib.crc32(name.encode()), "public", name, identity, tuple(described))


@dataclass
class Table:
    """`rows`: what is committed, by key; of a table without key, a list in order of commit."""

    description: RelationDescription
    topic: str
    schema_id: int
    parsed: Any
    key_parsed: Any
    rows: dict[Key, Row] = field(default_factory=dict)
    log: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"public.{self.description.name}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.description.identity_columns)

    def key(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key_columns)


@dataclass
class Change:
    """One event of the truth. `row` is the whole row behind it, `after` what is sent. `left` is the
    key that an UPDATE has changed, also where `old_key` is not sent."""

    table: Table | None
    op: str
    subxid: int
    ordinal: int
    change_lsn: int
    row: Row | None = None
    after: Row | None = None
    before: Row | None = None
    old_key: Row | None = None
    left: Row | None = None
    unchanged: tuple[str, ...] = ()
    special: dict[str, str] = field(default_factory=dict)
    commit_lsn: int = 0


@dataclass
class Placed:
    """Where a record came to lie."""

    topic: str
    partition: int
    offset: int = -1


class Transaction:
    """One PostgreSQL transaction. A streamed one is sent while it is open, by `send`."""

    def __init__(self, feeder: Feeder, xid: int, *, streamed: bool) -> None:
        self.feeder, self.xid, self.streamed = feeder, xid, streamed
        self.epoch = feeder.epoch
        self.changes: list[Change] = []
        self.aborted: set[int] = set()
        self.placed: list[Placed] = []
        self.schema_ids: list[int] = []
        self._sent = 0

    def change(self, table: Table | None, op: str, subxid: int | None = None, **facts: Any) -> Change:
        made = Change(
            table, op, subxid or (self.xid if self.streamed else -1), len(self.changes), self.feeder.next_lsn(), **facts
        )
        self.changes.append(made)
        return made

    def insert(
        self, table: Table, row: Row, subxid: int | None = None, special: dict[str, str] | None = None
    ) -> Change:
        return self.change(table, "INSERT", subxid, row=row, after=row, special=special or {})

    def update(
        self, table: Table, old: Row, new: Row, subxid: int | None = None, unchanged: tuple[str, ...] = ()
    ) -> Change:
        full = table.description.replica_identity is ReplicaIdentity.FULL
        moved = bool(table.key_columns) and table.key(old) != table.key(new)
        left = {name: old[name] for name in table.key_columns} if moved else None
        return self.change(
            table, "UPDATE", subxid, row=new, unchanged=unchanged,
            after={name: None if name in unchanged else value for name, value in new.items()},
            before=old if full else None,
            old_key=None if full else left,
            left=left,
        )  # fmt: skip

    def delete(self, table: Table, old: Row, subxid: int | None = None) -> Change:
        full = table.description.replica_identity is ReplicaIdentity.FULL
        key = None if full else {name: old[name] for name in table.key_columns}
        return self.change(table, "DELETE", subxid, row=old, before=old if full else None, old_key=key)

    def read(self, table: Table, row: Row) -> Change:
        """A row of a snapshot."""
        return self.change(table, "READ", row=row, after=row)

    def truncate(self, *tables: Table, subxid: int | None = None) -> None:
        for table in tables:
            self.change(table, "TRUNCATE", subxid)

    def abort_to(self, subxid: int) -> None:
        """ROLLBACK TO SAVEPOINT of a streamed transaction."""
        self.aborted.add(subxid)

    def send(self, commit_lsn: int | None = None) -> None:
        """Records of the changes made since the last call."""
        for change in self.changes[self._sent :]:
            self.feeder.send_change(self, change, commit_lsn)
        self._sent = len(self.changes)

    def surviving(self) -> list[Change]:
        return [change for change in self.changes if change.subxid not in self.aborted]

    def manifest(self) -> dict[str, Any]:
        """Ranges of at most `feeder.range_records` records, from the offsets that the broker
        gave."""
        places: dict[tuple[str, int], list[int]] = defaultdict(list)
        for placed in self.placed:
            places[placed.topic, placed.partition].append(placed.offset)
        ranges = []
        size = self.feeder.range_records
        for (topic, partition), offsets in places.items():
            offsets.sort()
            pieces = [offsets[start : start + size] for start in range(0, len(offsets), size)]
            names = ("topic", "partition", "first_offset", "last_offset", "record_count")
            ranges += [
                dict(zip(names, (topic, partition, piece[0], piece[-1], len(piece)), strict=True)) for piece in pieces
            ]
        return {
            "epoch": self.epoch, "event_count": len(self.changes), "aborted_subxids": sorted(self.aborted),
            "schema_ids": self.schema_ids, "ranges": ranges, "excluded": [], "snapshot": None,
        }  # fmt: skip

    def commit(self, kind: str | None = None, damage: Callable[[dict[str, Any]], None] | None = None) -> int:
        """Sends what is left and the marker: the commit LSN. `damage` may spoil the marker."""
        return self.feeder.commit(self, kind or ("STREAM_COMMIT" if self.streamed else "COMMIT"), damage)


class Feeder:
    """`truth`: every committed change in order of (commit_lsn, ordinal)."""

    def __init__(
        self, bootstrap_servers: str, registry_url: str, prefix: str, partitions: int = 3, range_records: int = 100_000
    ) -> None:
        self.prefix, self.partitions, self.range_records = prefix, partitions, range_records
        self.bootstrap_servers, self.registry_url = bootstrap_servers, registry_url
        self.truth: list[Change] = []
        self.epoch = 1
        self._lsn = 0x1_0000_0000
        self._xid = 700
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
        self._registry = SchemaRegistryClient(stock_registry.settings(registry_url))
        self._transactional_id = uuid4().hex
        self._producer: Producer | None = None
        self._newest_marker = Placed(transaction_topic(prefix), 0)
        self._make_topic(transaction_topic(prefix), 1)
        self._make_topic(message_topic(prefix), 1)
        self._marker_id = self._register(value_subject(transaction_topic(prefix)), TRANSACTION_MARKER)
        self._marker_parsed = fastavro.parse_schema(TRANSACTION_MARKER)
        self._message_id = self._register(value_subject(message_topic(prefix)), LOGICAL_MESSAGE)
        self._message_parsed = fastavro.parse_schema(LOGICAL_MESSAGE)
        self.open()

    def _make_topic(self, topic: str, partitions: int) -> None:
        for future in self._admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(30)

    def _register(self, subject: str, schema: dict[str, Any]) -> int:
        return self._registry.register_schema(subject, Schema(json.dumps(schema), "AVRO"))

    def options(self, **more: str) -> dict[str, str]:
        """Options of the data source."""
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "registry.url": self.registry_url,
            "prefix": self.prefix,
            **more,
        }

    def table(self, description: RelationDescription, topic: str | None = None) -> Table:
        """A new table with its topic."""
        topic = topic or topic_name(self.prefix, description.namespace, description.name)
        self._make_topic(topic, self.partitions)
        return self._with_schema(description, topic)

    def _with_schema(self, description: RelationDescription, topic: str) -> Table:
        schema, key = change_schema(description, self.prefix), key_schema(description, self.prefix)
        schema_id = self._register(value_subject(topic), schema)
        return Table(description, topic, schema_id, fastavro.parse_schema(schema), key and fastavro.parse_schema(key))

    def alter(self, table: Table, description: RelationDescription) -> Table:
        """The same table with other columns: a new schema; rows lose and gain columns as in
        PostgreSQL."""
        made = self._with_schema(description, table.topic)
        names = [column.name for column in description.columns]
        made.rows = {key: {name: row.get(name) for name in names} for key, row in table.rows.items()}
        made.log = [{name: row.get(name) for name in names} for row in table.log]
        return made

    def next_lsn(self) -> int:
        self._lsn += 100
        return self._lsn

    def begin(self, *, streamed: bool = False) -> Transaction:
        return Transaction(self, self.next_xid(), streamed=streamed)

    def next_xid(self) -> int:
        self._xid += 1
        return self._xid

    # Kafka transactions

    def open(self) -> None:
        """A new producer and its first Kafka transaction. Of one that was there, everything
        uncommitted is aborted."""
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "transactional.id": self._transactional_id, "linger.ms": 2,
             "log_level": 2, "queue.buffering.max.messages": 2_000_000}
        )  # fmt: skip
        self._producer.init_transactions(30)
        self._producer.begin_transaction()

    @property
    def producer(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def kafka_commit(self) -> None:
        """Kafka answers before it has written the end of the transaction into the topics: returns
        when readers see it."""
        self.producer.commit_transaction(60)
        self.producer.begin_transaction()
        deadline = time.monotonic() + VISIBLE_TIMEOUT_S
        while self._end_of_markers() <= self._newest_marker.offset:
            assert time.monotonic() < deadline, f"marker {self._newest_marker.offset} is not visible"
            time.sleep(0.002)

    def _end_of_markers(self) -> int:
        """For a reader of committed records."""
        latest: Any = vars(admin)["OffsetSpec"].latest()  # not in the stubs' exports
        place = TopicPartition(self._newest_marker.topic, self._newest_marker.partition)
        (found,) = self._admin.list_offsets({place: latest}, isolation_level=IsolationLevel.READ_COMMITTED).values()
        return int(found.result(30).offset)

    def kafka_abort(self) -> None:
        self.producer.flush(60)
        self.producer.abort_transaction(60)
        self.producer.begin_transaction()

    def restart(self) -> None:
        """A new incarnation of the gateway."""
        self.epoch += 1
        self.marker({"kind": "EPOCH", "xid": 0, "marker_lsn": self.next_lsn()})
        self.kafka_commit()

    def close(self) -> None:
        self.producer.flush(30)
        self.producer.abort_transaction(30)
        self._producer = None
        self._registry.close()

    # records

    def _produce(self, topic: str, partition: int, value: bytes, transaction: Transaction | None = None) -> Placed:
        placed = Placed(topic, partition)
        if transaction is not None:
            transaction.placed.append(placed)

        def delivered(error: Any, message: Message) -> None:
            assert error is None, error
            placed.offset = message.offset() or 0

        while True:
            try:
                self.producer.produce(topic, value, partition=partition, on_delivery=delivered)
            except BufferError:
                self.producer.poll(0.1)
            else:
                return placed

    def send_change(self, transaction: Transaction, change: Change, commit_lsn: int | None) -> None:
        if change.table is None:
            self._send_message(transaction, change, commit_lsn)
            return
        table = change.table
        if table.schema_id not in transaction.schema_ids:
            transaction.schema_ids.append(table.schema_id)
        record = {
            "op": change.op, **_identity(transaction, change, commit_lsn), "key_change": False,
            "old_key": change.old_key and _key_record(table, change.old_key),
            "before": _avro(change.before), "after": _avro(change.after),
            "unchanged": list(change.unchanged), "special": change.special,
        }  # fmt: skip
        if change.op == "TRUNCATE":
            for partition in range(self.partitions):
                self._produce(table.topic, partition, encode(table.schema_id, table.parsed, record), transaction)
            return
        key = {name: (change.row or {})[name] for name in table.key_columns}
        self._produce(
            table.topic, self._partition(table, key), encode(table.schema_id, table.parsed, record), transaction
        )
        if change.left is not None:
            removal = {**record, "op": "DELETE", "key_change": True, "after": None, "unchanged": [], "special": {}}
            value = encode(table.schema_id, table.parsed, removal)
            self._produce(table.topic, self._partition(table, change.left), value, transaction)

    def _partition(self, table: Table, key: Row) -> int:
        if table.key_parsed is None:
            return zlib.crc32(table.topic.encode()) % self.partitions
        key = _key_record(table, key)
        return zlib.crc32(encode(0, table.key_parsed, key)) % self.partitions

    def _send_message(self, transaction: Transaction, change: Change, commit_lsn: int | None) -> None:
        record = {
            "op": "MESSAGE", **_identity(transaction, change, commit_lsn), "transactional": True,
            "message_lsn": change.change_lsn, "prefix": "test", "content": b"content",
        }  # fmt: skip
        self._produce(
            message_topic(self.prefix), 0, encode(self._message_id, self._message_parsed, record), transaction
        )

    def marker(self, marker: dict[str, Any]) -> None:
        facts = {"subxid": -1, "epoch": self.epoch, **marker}
        self._newest_marker = self._produce(
            transaction_topic(self.prefix), 0, encode(self._marker_id, self._marker_parsed, facts)
        )

    # snapshots

    def bound(
        self,
        kind: str,
        table: Table | None,
        purpose: str,
        snapshot_id: str = "one",
        rows: int = 0,
        lsn: int | None = None,
    ) -> int:
        """SNAPSHOT_BEGIN or SNAPSHOT_END of a table, or of all: its LSN. `lsn`: of another one in
        the same transaction."""
        lsn = self.next_lsn() if lsn is None else lsn
        manifest = {
            "epoch": self.epoch, "event_count": 0, "aborted_subxids": [], "schema_ids": [], "ranges": [], "excluded": [],
            "snapshot": _chunk(table, purpose, snapshot_id, rows),
        }  # fmt: skip
        self.marker({"kind": kind, "xid": self.next_xid(), "marker_lsn": lsn, "manifest": manifest})
        return lsn

    def chunk(self, table: Table, rows: list[Row], purpose: str, snapshot_id: str = "one") -> int:
        """A transaction that brings rows of a snapshot."""
        transaction = self.begin()
        for row in rows:
            transaction.read(table, row)
        chunk = _chunk(table, purpose, snapshot_id, len(rows))
        return transaction.commit(damage=lambda marker: marker["manifest"].update(snapshot=chunk))

    def commit(self, transaction: Transaction, kind: str, damage: Callable[[dict[str, Any]], None] | None) -> int:
        commit_lsn = self.next_lsn()
        transaction.send(None if transaction.streamed else commit_lsn)
        self.producer.flush(60)
        marker = {
            "kind": kind, "xid": transaction.xid, "marker_lsn": commit_lsn, "end_lsn": commit_lsn + 8,
            "time": 1_700_000_000_000_000 + commit_lsn, "manifest": transaction.manifest(),
        }  # fmt: skip
        if damage is not None:
            damage(marker)
        self.marker(marker)
        for change in transaction.surviving():
            change.commit_lsn = commit_lsn
            apply(change)
            self.truth.append(change)
        return commit_lsn


def _chunk(table: Table | None, purpose: str, snapshot_id: str, rows: int) -> dict[str, Any]:
    oid, name = (0, "") if table is None else (table.description.oid, table.description.name)
    return {
        "snapshot_id": snapshot_id, "relation_oid": oid, "schema": "public" if oid else "", "name": name,
        "topic": "" if table is None else table.topic, "purpose": purpose, "chunk": 0, "row_count": rows, "stale_count": 0,
    }  # fmt: skip


def _key_record(table: Table, key: Row) -> Row:
    """Text where the key's schema has text for the column: schemas.avro_types.key_type."""
    texts = {item["name"] for item in table.key_parsed["fields"] if item["type"][1] == "string"}
    return {name: str(value) if name in texts else value for name, value in (_avro(key) or {}).items()}


def _avro(row: Row | None) -> Row | None:
    return row and {avro_name(name): value for name, value in row.items()}


def _identity(transaction: Transaction, change: Change, commit_lsn: int | None) -> dict[str, Any]:
    return {
        "xid": transaction.xid, "subxid": change.subxid, "epoch": transaction.epoch, "change_lsn": change.change_lsn,
        "ordinal": change.ordinal, "commit_lsn": commit_lsn, "commit_time": None, "origin": None,
    }  # fmt: skip


def apply(change: Change) -> None:
    """The change's effect on the committed rows."""
    table = change.table
    if table is None:
        return
    if not table.key_columns:
        table.log.append({"op": change.op, **(change.row or {})})
        return
    if change.op == "TRUNCATE":
        table.rows.clear()
        return
    assert change.row is not None
    if change.op == "DELETE":
        del table.rows[table.key(change.row)]
        return
    if change.left is not None:
        table.rows.pop(table.key(change.left))
    table.rows[table.key(change.row)] = change.row


def encode(schema_id: int, parsed: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, record)
    return frame(schema_id) + out.getvalue()
