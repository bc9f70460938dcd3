"""The end of the reading loop's stream, with the scripted stream and broker of
test_replication_loop.py: what was closed before it is durable, whatever ends the stream."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Retry, StopForOperator
from gateway.pgoutput.stream import StreamStart
from gateway.postgres.classify_errors import CannotDecode, LossReported, StreamCut
from gateway.runtime.kafka_transactions import WholeFirst
from gateway.runtime.tasks import run_together
from gateway.startup.repeated_failure import DecodingFailed
from gateway.startup.server_notices import LeftOut, WalRemoved
from schemas.lsn import Lsn
from tests.pgoutput.writer import write
from tests.postgres.writer import xlog_data
from tests.runtime.test_replication_loop import MAX_RECORD_BYTES, Place, message, row

_NOWHERE = Lsn(0)
SMALL = (message(200, b"before"), message(300, b"before, too"))
REFUSED = StopForOperator("the server cannot decode what follows")
NOT_DECODED = CannotDecode("the server cannot send a change", "", DecodingFailed("division by zero", "22012"))
LEFT_OUT = LossReported("no publication", LeftOut("no publication", ends_stream=False))
REMOVED = LossReported("no WAL", WalRemoved("requested WAL segment has already been removed"))
TOO_LARGE = row(400, b"x" * (MAX_RECORD_BYTES + 1))

CUT = StreamCut("the server closed the connection")

both_deliveries = pytest.mark.parametrize("is_transactional", [True, False], ids=["exactly_once", "at_least_once"])


@both_deliveries
@pytest.mark.parametrize(
    "arriving",
    [
        pytest.param((SMALL[0] + SMALL[1], REFUSED), id="one read, then an error of the server"),
        pytest.param((*SMALL, REFUSED), id="two reads, then an error of the server"),
        pytest.param((*SMALL, NOT_DECODED), id="two reads, then a change that the server cannot send"),
        pytest.param((SMALL[0] + SMALL[1], LEFT_OUT), id="one read, then changes that the server leaves out"),
        pytest.param((SMALL[0] + SMALL[1], REMOVED), id="one read, then WAL that is gone"),
        pytest.param((*SMALL, REMOVED), id="two reads, then WAL that is gone"),
        pytest.param((SMALL[0] + SMALL[1] + TOO_LARGE,), id="a row too large in the same read"),
        pytest.param((SMALL[0], SMALL[1] + TOO_LARGE), id="a row too large while the first is committed"),
    ],
)
async def test_what_was_committed_before_the_stream_can_not_go_on_is_delivered(
    arriving: tuple[bytes | Exception, ...], is_transactional: bool
) -> None:
    """At the latest by a second attempt, which gets the same bytes."""
    careful_until = _NOWHERE
    for _ in range(2):
        place = Place(is_transactional=is_transactional, careful_until=careful_until)
        place.producer.delay_s = 0.01
        for data in arriving:
            place.stream.put(data)
        with pytest.raises((StopForOperator, CannotDecode, LossReported, WholeFirst)) as raised:
            await place.fails()
        if not isinstance(raised.value, WholeFirst):
            break
        careful_until = raised.value.whole_until
    assert not isinstance(raised.value, WholeFirst)
    assert place.feedback.acknowledged[-1] == place.kafka.durable_lsn == 300


async def test_a_row_too_large_in_a_stream_over_many_tables_is_what_is_told() -> None:
    """It is met while the batches of the other tables are being closed, and the last Kafka
    transaction is being committed."""
    place = Place()
    place.producer.delay_s = 0.05
    place.stream.put(message(200, b"committed before"))
    stream_start = xlog_data(310, write(StreamStart(700, True)), 310)

    async def others_and_the_large_one() -> None:
        while "begin" not in place.producer.log:
            await asyncio.sleep(0)
        place.open_batches(3)
        place.stream.put(stream_start + row(320, b"x" * (MAX_RECORD_BYTES + 1), xid=700))

    with pytest.raises(StopForOperator, match="makes a record of"):
        await place.fails(others_and_the_large_one())
    assert place.feedback.acknowledged == [200]


@both_deliveries
@pytest.mark.parametrize("error", [CUT, Retry("looking up a table: the server closed the connection")], ids=type)
async def test_what_was_closed_before_the_stream_is_cut_is_durable(is_transactional: bool, error: Retry) -> None:
    """A server that crashes at a place gives no more time than this."""
    place = Place(is_transactional=is_transactional, careful_until=Lsn(300))
    place.producer.delay_s = 0.01
    for data in (*SMALL, error):
        place.stream.put(data)
    with pytest.raises(type(error)):
        await place.fails()
    assert place.kafka.closed_lsn == place.kafka.durable_lsn == 300


async def test_a_cut_stream_waits_for_no_transaction_that_is_incomplete() -> None:
    place = Place()
    place.stream.put(message(200, b"complete"))
    place.stream.put(row(300, b"the first row of a transaction"))
    place.stream.put(CUT)
    with pytest.raises(StreamCut):
        await place.fails()
    assert place.kafka.durable_lsn == 200


async def test_a_broker_that_fails_ends_the_wait_of_a_cut_stream() -> None:
    place = Place()

    async def fail() -> None:
        raise Retry("the broker does not answer")

    place.producer.commit = fail  # type: ignore[method-assign]
    for data in (SMALL[0], CUT):
        place.stream.put(data)
    with pytest.raises(Retry, match="the broker does not answer"):
        await place.fails()
    assert place.kafka.durable_lsn == 100


async def test_a_stop_while_a_cut_stream_waits_for_the_broker_is_not_delayed() -> None:
    """The session gives the drain a limited time, and the wait ends with it."""
    place = Place()
    place.producer.delay_s = 3600
    for data in (SMALL[0], CUT):
        place.stream.put(data)

    async def drain() -> None:
        while place.kafka.closed_lsn < 200:
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await place.kafka.drain()

    async with asyncio.timeout(10):
        await run_together(place.replication_loop.run(), place.kafka.deliver(), place.kafka.confirm(), until=drain())


@both_deliveries
async def test_a_stop_within_a_transaction_makes_what_was_delivered_before_durable(is_transactional: bool) -> None:
    place = Place(is_transactional=is_transactional)
    place.producer.delay_s = 0.01
    place.stream.put(SMALL[0])
    place.stream.put(row(300, b"the first row of a transaction"))

    async def drain() -> None:
        while place.kafka.closed_lsn < 200:
            await asyncio.sleep(0)
        await place.kafka.drain()

    async with asyncio.timeout(10):
        await run_together(place.replication_loop.run(), place.kafka.deliver(), place.kafka.confirm(), until=drain())
    assert place.feedback.acknowledged == [200]
