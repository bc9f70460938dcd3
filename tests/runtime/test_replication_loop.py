"""The reading loop against a scripted stream and broker: orders of arrival that real ones do not
show on demand."""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from aiokafka.producer.message_accumulator import BatchBuilder

from gateway.config.settings import ErrorSettings
from gateway.events.logical_message import encode_logical_message
from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker
from gateway.kafka.batches import PIECE_BYTES, RECORD_OVERHEAD_BYTES, BatchWriter
from gateway.kafka.transaction_delivery import REQUEST_BYTES, Delivery
from gateway.observe.metrics import REGISTRY, show
from gateway.observe.status_board import StatusBoard
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.transaction import Begin, Commit
from gateway.postgres.copy_frames import Received, split
from gateway.runtime.kafka_transactions import KafkaTransactions
from gateway.runtime.quarantine import QuarantinePolicy
from gateway.runtime.replication_loop import MORE_AT_HAND_BYTES, ReplicationLoop
from gateway.runtime.stream_status import StreamStatus
from gateway.runtime.tasks import run_together
from gateway.transactions.commit_policy import CommitPolicy
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.native_record_writer import EventVersion, EventWriter
from gateway.transactions.position import Position
from gateway.transactions.transaction import ExcludedTable, MessageSelection, MessageTopic
from schemas.lsn import Lsn
from schemas.used_schemas import UsedSchemas
from schemas.wire_format import frame
from tests.pgoutput.writer import write
from tests.postgres.writer import xlog_data

ROOT = Path(__file__).parents[2]
_NOWHERE = Lsn(0)
RELATION_OID = 4711
EXCLUDED_OID = 17
POLICY = CommitPolicy(memory_bytes=64 << 20)
OPEN_BYTES = POLICY.flush_bytes
MAX_RECORD_BYTES = OPEN_BYTES + (2 << 20)


class ScriptedProducer:
    """Acknowledges what is sent when it is asked for, after `delay_s`; `log` is what the broker
    saw."""

    transaction_timeout_s = 900.0

    def __init__(self, *, is_transactional: bool = True) -> None:
        self.is_transactional = is_transactional
        self.delay_s = 0.0
        self.log: list[str] = []
        self.most_sent_bytes = 0
        self._sent: dict[asyncio.Future[int], int] = {}

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(1 << 19, 0)

    async def begin(self, always: object) -> None:
        self.log.append("begin")

    def send(self, batch: Any, *, in_transaction: bool = False) -> asyncio.Future[int]:
        self.log.append(batch.topic)
        future = asyncio.get_running_loop().create_future()
        future.set_result(0)
        self._sent[future] = batch.size
        self.most_sent_bytes = max(self.most_sent_bytes, sum(self._sent.values()))
        return future

    async def delivered(self, future: asyncio.Future[int]) -> int:
        await asyncio.sleep(self.delay_s)
        self.log.append("acked")
        del self._sent[future]
        return await future

    async def commit(self) -> None:
        self.log.append("commit")


class ScriptedStream:
    """Reads what is put; an exception is raised."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.put: Callable[[bytes | Exception], None] = self._arrived.put_nowait

    async def read(self) -> Received:
        found = await self._arrived.get()
        if isinstance(found, Exception):
            raise found
        return Received(found, list(split(found)))


class Feedback:
    """What PostgreSQL is told."""

    received_lsn = Lsn(0)

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.moved = asyncio.Event()

    def receive(self, lsn: int) -> None: ...

    def acknowledge(self, lsn: int) -> None:
        self.acknowledged.append(lsn)
        self.moved.set()

    def send_now(self) -> None: ...

    async def reach(self, lsn: int) -> None:
        while lsn not in self.acknowledged:
            self.moved.clear()
            await self.moved.wait()


class Rows:
    """Stands for a RowEncoder: a row's record is what it came in."""

    def insert(self, data: bytes, position: int, end: int, *_: object) -> tuple[None, bytes]:
        return None, data[position:end]


class States:
    """Stands for the snapshots: what a check of the catalog has found."""

    def __init__(self) -> None:
        self.found: dict[bytes, bytes | None] = {}
        self.taken: dict[bytes, bytes | None] = {}

    @property
    def has_unwritten(self) -> bool:
        return bool(self.found)

    def take_states(self) -> dict[bytes, bytes | None]:
        taken, self.found = self.found, {}
        self.taken |= taken
        return taken


class Place:
    def __init__(
        self,
        policy: CommitPolicy = POLICY,
        *,
        is_transactional: bool = True,
        careful_until: Lsn = _NOWHERE,
        states: States | None = None,
    ) -> None:
        self.board = StatusBoard()
        self.producer = ScriptedProducer(is_transactional=is_transactional)
        self.stream = ScriptedStream()
        self.feedback = Feedback()
        self.writer = writer = BatchWriter(self.producer.create_batch, MAX_RECORD_BYTES)
        self.delivery = Delivery(
            cast(Any, self.producer),
            writer,
            frame(1),
            frame(2),
            "cdc.transaction",
            policy,
            self.board.count,
            UsedSchemas(),
        )
        messages = MessageTopic(
            "cdc.message",
            9,
            partial(encode_logical_message, frame(9)),
            writer.sink("cdc.message", 1, "messages"),
        )
        machine = TransactionMachine(
            epoch=3,
            resume_lsn=Lsn(100),
            last_commit_lsn=Lsn(1),
            prepared=(),
            writer=EventWriter(3, messages),
            messages=MessageSelection(lambda message: None),
        )
        version = EventVersion("public.t", 8, cast(Any, Rows()), writer.sink("cdc.public.t", 1, "public.t"))
        machine.announce(RELATION_OID, None, version)
        machine.announce(EXCLUDED_OID, None, ExcludedTable(EXCLUDED_OID, "s", "tool", "cdc.s.tool", is_marked=False))
        self.position = Position("1", 1, "d", "s", "cdc", ("p",), "v", "ACTIVE", 3, Lsn(100), Lsn(1))
        feedback = cast(Any, self.feedback)
        status = StreamStatus(self.board, feedback, machine, self.delivery, self.position)
        self.kafka = KafkaTransactions(
            machine, writer, self.delivery, feedback, self.position, status, careful_until, states=states
        )
        self.replication_loop = ReplicationLoop(
            cast(Any, self.stream),
            feedback,
            machine,
            cast(Any, None),
            self.kafka,
            4,
            status=status,
            table_errors=QuarantinePolicy(ErrorSettings(), ".".join, records_exclusions=True),
        )

    def open_batches(self, count: int, size: int = 1) -> None:
        """As rows of so many tables do."""
        for number in range(count):
            self.writer.sink(f"cdc.t{number}", 1, "t").append(None, b"x" * size, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.replication_loop.run()), asyncio.create_task(self.kafka.deliver())]
        async with asyncio.timeout(10):
            yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def fails(self, *meanwhile: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(10):
            await run_together(
                self.replication_loop.run(),
                self.kafka.deliver(),
                self.kafka.confirm(),
                *meanwhile,
                until=asyncio.sleep(3600),
            )


def message(lsn: int, content: bytes, xid: int | None = None) -> bytes:
    """A logical message in its frame: outside transactions, or within the one that is streamed."""
    return xlog_data(lsn, write(Message(xid, xid is not None, Lsn(lsn), "p", content)), lsn)


def excluded(lsn: int, end_lsn: int) -> bytes:
    """A transaction of a table that gets no topic."""
    insert = b"I" + struct.pack("!I", EXCLUDED_OID) + b"N" + struct.pack("!H", 0)
    commit = Commit(0, Lsn(end_lsn - 1), Lsn(end_lsn), 0)
    parts = (write(Begin(Lsn(end_lsn - 1), 0, 5)), insert, write(commit))
    return b"".join(xlog_data(lsn, part, lsn) for part in parts)


def row(lsn: int, content: bytes, xid: int | None = None) -> bytes:
    """An Insert in its frame: behind its Begin, or within the transaction that is streamed."""
    stream_xid = b"" if xid is None else struct.pack("!I", xid)
    insert = xlog_data(lsn, b"I" + stream_xid + struct.pack("!I", RELATION_OID) + content, lsn)
    return insert if xid is not None else xlog_data(lsn, write(Begin(Lsn(lsn), 0, 5)), lsn) + insert


@pytest.mark.parametrize("while_committing", [False, True])
async def test_a_batch_that_left_before_its_end_was_known_is_committed(while_committing: bool) -> None:
    place = Place()
    place.producer.delay_s = 0.05
    async with place.running():
        if while_committing:
            place.stream.put(message(200, b"small"))
            await asyncio.sleep(0)
        place.stream.put(message(300, b"x" * (OPEN_BYTES + 1)))
        await place.feedback.reach(300)
        await place.kafka.drain()


async def acknowledged(place: Place, batch_count: int) -> list[int]:
    """What PostgreSQL is told of two reads, each of a transaction, that arrive at once while
    `batch_count` batches are open."""
    place.open_batches(batch_count)
    async with place.running():
        for lsn in (200, 300):
            place.stream.put(message(lsn, b"x" * MORE_AT_HAND_BYTES))
        await place.feedback.reach(300)
    return place.feedback.acknowledged


async def test_a_kafka_transaction_over_many_batches_waits_while_the_stream_has_more() -> None:
    assert await acknowledged(Place(), 1) == [200, 300]
    assert await acknowledged(Place(), 2 * MORE_AT_HAND_BYTES // POLICY.batch_worth_bytes) == [300]


@pytest.mark.parametrize(
    "policy",
    [
        replace(POLICY, hold_s=0.0),
        replace(POLICY, memory_bytes=MORE_AT_HAND_BYTES),
        replace(POLICY, max_owed_markers=0),
    ],
    ids=["age", "memory", "markers"],
)
async def test_it_waits_for_no_more_and_no_longer_than_it_is_worth(policy: CommitPolicy) -> None:
    assert await acknowledged(Place(policy), 1000) == [200, 300]


async def test_a_kafka_transaction_that_waits_is_closed_by_a_stop() -> None:
    place = Place()
    place.open_batches(1000)
    async with place.running():
        place.stream.put(message(200, b"x" * MORE_AT_HAND_BYTES))
        await asyncio.sleep(0)
        await place.kafka.drain()
    assert place.feedback.acknowledged == [200]


async def test_what_a_check_has_found_is_durable_before_a_stop_without_any_record() -> None:
    states = States()
    place = Place(states=states)
    async with place.running():
        place.stream.put(message(200, b"small"))
        await place.feedback.reach(200)
        states.found[b"table"] = b"left"
        await place.kafka.drain()
        assert states.taken == {b"table": b"left"}
        assert "walgate.snapshot" in place.producer.log and place.producer.log[-1] == "commit"


async def test_the_slot_follows_a_server_that_is_behind_and_sends_only_what_is_left_out() -> None:
    """Such a server sends no keepalives."""
    place = Place()
    async with place.running():
        place.stream.put(excluded(200, 300))
        place.stream.put(excluded(400, 400 + POLICY.idle_bytes))
        await place.feedback.reach(400 + POLICY.idle_bytes)
    assert place.feedback.acknowledged == [400 + POLICY.idle_bytes], "16 MB of WAL are one step"


async def test_pieces_count_in_the_memory_of_a_kafka_transaction_that_waits() -> None:
    """While Kafka does not answer: small transactions over many tables are few bytes and many
    pieces."""
    limit = 8 << 20
    place = Place(replace(POLICY, memory_bytes=limit))
    place.producer.delay_s = 3600
    sinks = [place.writer.sink(f"cdc.t{number}", 1, "t") for number in range(500)]
    piece_count = 0

    async def read() -> Received:
        nonlocal piece_count
        manifest = Manifest(3)
        for sink in sinks:
            sink.append(None, b"x", manifest)
        piece_count += len(sinks)
        await asyncio.sleep(0)
        data = message(200 + piece_count, b"small")
        return Received(data, list(split(data)))

    place.stream.read = read  # type: ignore[method-assign]
    async with place.running():
        while place.delivery.in_flight_bytes <= limit:
            await asyncio.sleep(0)
    assert limit < piece_count * PIECE_BYTES < 2.2 * limit


async def test_a_request_has_a_bounded_size() -> None:
    place = Place()
    size = REQUEST_BYTES // 5
    place.open_batches(30, size)
    async with place.running():
        place.stream.put(message(200, b"small"))
        await place.feedback.reach(200)
    assert REQUEST_BYTES <= place.producer.most_sent_bytes < REQUEST_BYTES + size + RECORD_OVERHEAD_BYTES
    assert place.producer.log.count("cdc.t29") == 1


async def test_with_at_least_once_a_position_follows_its_markers_in_a_transaction_of_its_own() -> None:
    place = Place(is_transactional=False)
    await place.delivery.deliver_now([Marker("COMMIT", 5, 200)], place.position)
    assert place.producer.log == ["cdc.transaction", "acked", "begin", "walgate.position", "acked", "commit"]


async def test_with_at_least_once_only_the_newest_of_the_positions_that_wait_is_written() -> None:
    place = Place(is_transactional=False)
    for lsn in (300, 400):
        place.delivery.close([Marker("COMMIT", 5, lsn)], replace(place.position, resume_lsn=Lsn(lsn)))
        assert await place.delivery.deliver() is None
        await place.delivery.rest()
        assert not place.delivery.is_quiet
    assert (await place.delivery.commit_position()).resume_lsn == 400
    assert place.delivery.is_quiet
    assert place.producer.log.count("walgate.position") == 1


async def test_small_transactions_share_a_kafka_transaction_within_the_commit_interval() -> None:
    place = Place(replace(POLICY, commit_interval_s=0.2))
    async with place.running():
        began = asyncio.get_running_loop().time()
        place.stream.put(message(200, b"at once"))
        await place.feedback.reach(200)
        assert asyncio.get_running_loop().time() - began < 0.2
        for lsn in (300, 400, 500):
            place.stream.put(message(lsn, b"later"))
            await asyncio.sleep(0.01)
        await place.feedback.reach(500)
        assert asyncio.get_running_loop().time() - began >= 0.2
        assert place.feedback.acknowledged == [200, 500]
        await place.kafka.drain()


async def test_with_at_least_once_positions_keep_to_the_commit_interval_and_rows_do_not() -> None:
    place = Place(replace(POLICY, commit_interval_s=0.2), is_transactional=False)
    loop = asyncio.get_running_loop()
    times = []
    for lsn in (300, 400):
        began = loop.time()
        place.delivery.close([Marker("COMMIT", 5, lsn)], replace(place.position, resume_lsn=Lsn(lsn)))
        await place.delivery.deliver()
        await place.delivery.rest()
        assert loop.time() - began < 0.1
        await place.delivery.commit_position()
        times.append(loop.time())
    assert times[1] - times[0] >= 0.19


async def test_what_is_under_way_is_seen_while_kafka_does_not_answer() -> None:
    place = Place()
    show(place.board)
    place.producer.delay_s = 3600
    async with place.running():
        place.stream.put(message(200, b"x" * (OPEN_BYTES + 1)))
        while not (REGISTRY.get_sample_value("walgate_in_flight_bytes") or 0) > OPEN_BYTES:
            await asyncio.sleep(0)


LONGEST_PATH, MOST_FILES = 35, 12
SCRIPTED = {"kafka/producer.py", "postgres/standby_status.py", "postgres/replication_stream.py"}
"""Files whose part is played by a script here."""


def path_of_a_commit() -> list[tuple[str, str]]:
    """(file, function) of each step in docs/how-it-works.md."""
    rows = re.findall(r"^\|[^|]*\| (`[^|]*) \| `([^`|]*\.py)` \|$", (ROOT / "docs/how-it-works.md").read_text(), re.M)
    return [(file, function) for functions, file in rows for function in re.findall(r"`([^`]+)`", functions)]


async def test_the_path_of_a_commit_is_the_documented_one() -> None:
    path = path_of_a_commit()
    assert 30 <= len(set(path)) == len(path) <= LONGEST_PATH
    assert len({file for file, _ in path}) <= MOST_FILES
    for file, function in path:
        found: Any = import_module(f"gateway.{file.removesuffix('.py').replace('/', '.')}")
        for name in function.split("."):
            found = getattr(found, name)
    root = f"{ROOT}/gateway/"
    called: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            called.append((code.co_filename.removeprefix(root), code.co_qualname))

    place = Place()
    async with place.running():
        place.stream.put(row(200, b"a row"))
        while not place.writer.open:
            await asyncio.sleep(0)
        sys.setprofile(note)
        try:
            place.stream.put(xlog_data(300, write(Commit(0, Lsn(200), Lsn(300), 0)), 300))
            await place.feedback.reach(300)
        finally:
            sys.setprofile(None)
    played = [step for step in path if step[0] not in SCRIPTED]
    assert [step for step in dict.fromkeys(called) if step in played] == played
