"""`python -m bench.encode`: the gateway's CPU time per row, by stages, without network.

It records a stream from a real server, then replays it through the same objects that the service
uses. Each figure is the best of many replays, in CPU time, so that it is also valid on a busy
computer.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka.producer.message_accumulator import BatchBuilder
from rich.console import Console
from rich.table import Table

from bench.workloads import PUBLICATION, W1, W1_ROWS, W4, W4_ROWS
from gateway.config.debezium import DebeziumSettings
from gateway.config.settings import ErrorSettings
from gateway.debezium.envelope_schema import CatalogColumn, connect_relation
from gateway.debezium.record_writer import DebeziumTopics, DebeziumWriter
from gateway.debezium.relation_version import DebeziumVersion
from gateway.debezium.row_encoder import DebeziumEncoder
from gateway.debezium.source_block import SourceNames
from gateway.errors import StopForOperator
from gateway.events.marker_encoder import encode_markers
from gateway.events.row_encoder import RowEncoder
from gateway.kafka.batches import Batch, BatchWriter
from gateway.local import Postgres
from gateway.pgoutput.letters import ROW_MESSAGES
from gateway.pgoutput.relation import Relation
from gateway.postgres.connection import connect_replication
from gateway.postgres.copy_frames import XLOG_DATA, Received
from gateway.postgres.receive_buffer import ReceiveBuffer
from gateway.postgres.start_replication import pgoutput_options
from gateway.relations.describe import describe
from gateway.relations.type_catalog import COLUMNS_QUERY, KEY_QUERY, TYPES_QUERY, read_key, read_types
from gateway.runtime.kafka_transactions import KafkaTransactions
from gateway.runtime.quarantine import QuarantinePolicy
from gateway.runtime.replication_loop import ReplicationLoop
from gateway.snapshot.change_tracking import RecordingObserver
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import TableProgress as SnapshotTable
from gateway.snapshot.rules.visibility import Visibility
from gateway.transactions.commit_policy import CommitPolicy
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.native_record_writer import EventVersion, EventWriter
from gateway.transactions.position import Position
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from gateway.transactions.transaction import MessageSelection, MessageTopic
from schemas.lsn import Lsn

NO_COMPRESSION, LZ4 = 0, 3
"""Compression codes of Kafka's record batch."""

COPY_BOTH = b"W\0\0\0\7\0\0\0"
TABLES = "bench, bench1, bench2, bench3"
W3COLUMNS = (
    "create table bench (id bigint primary key, a int, b text)",
    "insert into bench select n, n % 1000, 'customer ' || n from generate_series({first}, {last}) n",
)
TPC_B = (
    "create table bench (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22), hid bigint primary key);"
    + "".join(
        f"create table bench{n} (id int primary key, bid int, balance int, filler char(84));"
        f"insert into bench{n} select i, 1, 0 from generate_series(1, 100) i;"
        for n in (1, 2, 3)
    ),
    "".join(f"update bench{n} set balance = balance + {{first}} where id = {{first}} % 100 + 1;" for n in (1, 2, 3))
    + "insert into bench values (1, 1, {first}, {first}, '2026-01-01', '', {first})",
)
"""W2's transaction: one row in each of four tables."""


@dataclass(frozen=True, slots=True)
class Capture:
    """The frames of one slot, and the catalog's facts about their relations."""

    title: str
    data: bytes
    rows: int
    version_num: int
    facts: dict[int, Any]
    catalog: dict[int, tuple[list[CatalogColumn], list[str]]]
    """By relation: the columns, and those of the key."""


async def capture(
    postgres: Postgres, title: str, tables: str, rows: str, count: int, size: int, *, binary: bool
) -> Capture:
    sql = await postgres.connect()
    await sql.execute(f"drop publication if exists {PUBLICATION}; drop table if exists {TABLES}; {tables}")
    await sql.execute(f"create publication {PUBLICATION} for all tables")
    slot = "encode"
    await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    body = rows.format(first="i", last=f"i + {size - 1}")
    await sql.execute(f"do $$ begin for i in 1..{count} by {size} loop {body}; commit; end loop; end $$")
    version_num = sql.get_server_version().major * 10000
    oids = [
        row[0]
        for row in await sql.fetch(
            "select distinct atttypid from pg_attribute join pg_class c on c.oid = attrelid"
            " where relnamespace = 'public'::regnamespace"
        )
    ]
    facts = read_types(await sql.fetch(TYPES_QUERY, oids))
    catalog = {}
    for (oid,) in await sql.fetch(
        "select oid from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
    ):
        columns = [CatalogColumn(*row) for row in await sql.fetch(COLUMNS_QUERY, oid)]
        catalog[oid] = columns, read_key(await sql.fetch(KEY_QUERY, oid))
    stream = await connect_replication(postgres.dsn)
    options = pgoutput_options(
        version_num, (PUBLICATION,), binary=binary, streaming=False, two_phase=False, messages=False, origin="any"
    )
    await stream.start(slot, Lsn(0), options)
    pieces = []
    seen = 0
    while seen < count:
        piece = await stream.read()
        pieces.append(piece.data)
        seen += sum(1 for kind, _, start, _ in piece.frames if kind == XLOG_DATA and piece.data[start] in ROW_MESSAGES)
    await stream.close()
    while await sql.fetchval("select active from pg_replication_slots where slot_name = $1", slot):
        await asyncio.sleep(0.05)
    await sql.execute("select pg_drop_replication_slot($1)", slot)
    await sql.close()
    return Capture(f"{title}, {'binary' if binary else 'text'}", b"".join(pieces), count, version_num, facts, catalog)


# -- the stages; each includes all before it


def receive(captured: Capture) -> list[Received]:
    """Fill the receive buffer with bytes as a socket would, and take whole frames from it."""
    receive_buffer = ReceiveBuffer(lambda kind, body: True, lambda lsn, reply: None)
    _fill(receive_buffer, COPY_BOTH)
    rest = memoryview(captured.data)
    taken = []
    while rest:
        rest = rest[_fill(receive_buffer, rest) :]
        taken.append(receive_buffer.take())
    return taken


def _fill(receive_buffer: ReceiveBuffer, data: bytes | memoryview) -> int:
    """Add as many bytes as fit, as a busy connection does; return their number."""
    space = receive_buffer.space()
    count = min(len(space), len(data))
    space[:count] = data[:count]
    receive_buffer.add(count)
    return count


def walk(captured: Capture) -> None:
    """Iterate over the frames without processing them."""
    for received in receive(captured):
        for _ in received.frames:
            pass


class _Nowhere:
    """A sink that drops its records, to measure encoding alone."""

    def append(self, key: bytes | None, value: bytes, manifest: object) -> None: ...

    def append_everywhere(self, value: bytes, manifest: object) -> None: ...

    def offer(self, value: bytes, manifest: object) -> bool:
        return True

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None: ...

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        return True

    def too_large(self, what: str, size: int) -> StopForOperator:
        raise AssertionError(what)


class _NoneExcluded:
    async def find(self, _: Relation) -> None:
        return None


class _Registrar:
    """Relation versions from the captured facts, without registry and topics."""

    excluded_tables = _NoneExcluded()

    def __init__(self, captured: Capture, sink: Callable[[str], Any]) -> None:
        self._captured = captured
        self._sink = sink

    async def announce(self, relation: Relation, *_: Any, **__: Any) -> RelationVersion:
        description = describe(relation, self._captured.facts)
        return EventVersion(relation.name, 1, RowEncoder(description, 1, 2), self._sink(relation.name))

    async def comes_as_root(self, _: Relation, previous: Relation | None) -> bool:
        return False

    async def compare_identity(self, partition: Relation, root: Relation, in_force: RelationVersion | None) -> None: ...


class _DebeziumRegistrar(_Registrar):
    """Relation versions in Debezium's format, with its default settings."""

    def __init__(self, captured: Capture, writer: DebeziumWriter) -> None:
        super().__init__(captured, lambda _: _Nowhere())
        self._writer = writer

    async def announce(self, relation: Relation, *_: Any, **__: Any) -> RelationVersion:
        columns, key = self._captured.catalog[relation.relation_oid]
        options = DebeziumSettings()
        description = describe(relation, self._captured.facts)
        connect = connect_relation(description, columns, key, options)
        encoder = DebeziumEncoder(connect, 1, 2, options, lambda *reason: None)
        keys = RowEncoder(description, 1, 2)
        return DebeziumVersion(f"public.{relation.name}", 1, keys, encoder, _Nowhere(), self._writer)


class _SnapshotAnnouncer(_Registrar):
    """Relation versions of tables that are being read for a snapshot: changed keys are recorded."""

    def __init__(self, captured: Capture, machine: TransactionMachine) -> None:
        super().__init__(captured, lambda _: _Nowhere())
        self._observer = RecordingObserver(machine, StalenessJudge(Visibility(3, 4), 0), lambda *message: None)

    async def announce(self, relation: Relation, *_: Any, **__: Any) -> RelationVersion:
        table = SnapshotTable(self._observer.judge, (), 1 << 22)
        table.begin()
        self._observer.begin(relation.relation_oid, table, ())
        return await super().announce(relation)


class _Stand:
    """Stands in for stream, feedback, status and delivery: nothing is closed or acknowledged."""

    is_free = is_quiet = holds_unclosed = False
    received_lsn = in_flight_bytes = 0
    policy = CommitPolicy(memory_bytes=64 << 20)

    def receive(self, received_lsn: int) -> None: ...


def _replication_loop(captured: Capture, writer: BatchWriter, sink: Callable[[str], Any]) -> ReplicationLoop:
    return _replication_loop_of(_machine(sink), writer, _Registrar(captured, sink))


def _machine(sink: Callable[[str], Any]) -> TransactionMachine:
    return _machine_of(EventWriter(1, MessageTopic("messages", 3, lambda *_: b"", sink("messages"))))


def _machine_of(writer: RecordWriter) -> TransactionMachine:
    selection = MessageSelection(lambda _: None)
    return TransactionMachine(epoch=1, resume_lsn=0, last_commit_lsn=0, prepared=(), writer=writer, messages=selection)


def _replication_loop_of(machine: TransactionMachine, writer: BatchWriter, registrar: Any) -> ReplicationLoop:
    stand: Any = _Stand()
    position = Position("1", 1, "bench", "bench", "bench", (PUBLICATION,), "1")
    errors = QuarantinePolicy(ErrorSettings(), ".".join, records_exclusions=True)
    kafka = KafkaTransactions(machine, writer, stand, stand, position, stand)
    return ReplicationLoop(stand, stand, machine, registrar, kafka, 4, status=stand, table_errors=errors)


def encode_debezium(captured: Capture) -> None:
    """Run state machine and row encoder in Debezium's format."""
    nowhere: Any = _Nowhere()
    writer = DebeziumWriter(
        epoch=1, last_commit_lsn=0, names=SourceNames("1", "bench", "bench"),
        topics=DebeziumTopics(nowhere, b"", b""), options=DebeziumSettings(), clock_ns=time.time_ns,
    )  # fmt: skip
    _take_all(captured, _machine_of(writer), _DebeziumRegistrar(captured, writer))


def encode_under_snapshot(captured: Capture) -> None:
    """Run state machine and row encoder while the tables are being read for a snapshot."""
    machine = _machine(lambda name: _Nowhere())
    _take_all(captured, machine, _SnapshotAnnouncer(captured, machine))


def encode(captured: Capture) -> None:
    """Run state machine and row encoder."""
    _take_all(captured, _machine(lambda name: _Nowhere()), _Registrar(captured, lambda name: _Nowhere()))


def _take_all(captured: Capture, machine: TransactionMachine, registrar: _Registrar) -> None:
    replication_loop = _replication_loop_of(machine, BatchWriter(_builder(NO_COMPRESSION), 1 << 24), registrar)
    for data, frames in receive(captured):
        _run(replication_loop._take(data, frames))


def _builder(compression: int) -> Callable[[], BatchBuilder]:
    return lambda: BatchBuilder(1 << 19, compression, is_transactional=1)


def batch(captured: Capture) -> None:
    """Append records to batches."""
    _batch(captured, NO_COMPRESSION, send=False)


def send(captured: Capture) -> None:
    """Make batches ready to send: lz4 and CRC."""
    _batch(captured, LZ4, send=True)


def mark(captured: Capture) -> None:
    """Do the work per transaction: build its manifest from the offsets of its pieces, and its
    markers."""
    replication_loop, batches = _batch(captured, LZ4, send=True)
    for ready in batches:
        place = ready.topic, ready.partition
        for manifest, first, count in ready.pieces:
            manifest.add(place, first, count)
    for _ in encode_markers(b"\0\0\0\0\1", replication_loop._machine.take_markers(), 1):
        pass


def _batch(captured: Capture, compression: int, *, send: bool) -> tuple[ReplicationLoop, list[Batch]]:
    writer = BatchWriter(_builder(compression), 1 << 24)
    replication_loop = _replication_loop(captured, writer, lambda name: writer.sink(f"bench.public.{name}", 3, name))
    for data, frames in receive(captured):
        _run(replication_loop._take(data, frames))
    if send:
        writer.close_all()
        for ready in writer.ready:
            ready.builder._build()
    return replication_loop, writer.ready


def _run(coroutine: Any) -> None:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("waited")


STAGES: tuple[tuple[str, Callable[[Capture], object]], ...] = (
    ("receive", receive),
    ("frames", walk),
    ("encode", encode),
    ("batch", batch),
    ("lz4 and crc", send),
    ("markers", mark),
)


def measure(captured: Capture, repeat: int) -> list[float]:
    """Return the microseconds of CPU per row, for each stage with all before it. The last two are
    alternatives to `encode`, with all before it."""
    stages = [*(stage for _, stage in STAGES), encode_debezium, encode_under_snapshot]
    best = [float("inf")] * len(stages)
    for _ in range(repeat):
        for index, stage in enumerate(stages):
            begun = time.process_time()
            stage(captured)
            best[index] = min(best[index], time.process_time() - begun)
    return [seconds / captured.rows * 1e6 for seconds in best]


async def _captures(rows: int, only: str) -> list[Capture]:
    shapes = [
        ("3 columns", *W3COLUMNS, rows, 100),
        ("7 columns", W1.tables, W1_ROWS, rows, 100),
        ("7 columns, 4 rows a transaction", W1.tables, W1_ROWS, rows, 4),
        ("TPC-B, 4 rows in 4 tables", *TPC_B, rows, 4),
        ("50 columns", W4.tables, W4_ROWS, rows // 5, 100),
    ]
    async with Postgres() as postgres:
        return [
            await capture(postgres, title, tables, statement, count, size, binary=binary)
            for title, tables, statement, count, size in shapes
            for binary in (True, False)
            if only in f"{title}, {'binary' if binary else 'text'}"
        ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.encode", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    captures = asyncio.run(_captures(arguments.rows, arguments.only))
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    others = "encode, Debezium's", "ratio", "more under a snapshot"
    table = Table("us of CPU a row", *(name for name, _ in STAGES), "sum", *others)
    for captured in captures:
        *sums, debezium, under_snapshot = measure(captured, arguments.repeat)
        steps = [late - early for early, late in zip([0.0, *sums], sums, strict=False)]
        debezium -= sums[1]
        figures = *steps, sums[-1], debezium, debezium / steps[2], under_snapshot - sums[2]
        table.add_row(captured.title, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
