from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.errors import NeedsText, Retry, StopForOperator, WalgateError
from gateway.postgres.classify_errors import CannotDecode, LossReported, StreamCut
from gateway.postgres.connection import connect_replication
from gateway.postgres.copy_frames import FrameError, split
from gateway.postgres.replication_stream import ReplicationStream
from gateway.postgres.standby_status import StandbyStatus
from schemas.lsn import Lsn
from tests.postgres.scripted_server import READY, Peer, Script, scripted_server
from tests.postgres.writer import (
    COPY_DONE,
    data_row,
    error,
    keepalive,
    message,
    parameter_status,
    row_description,
    warning,
    xlog_data,
)

ROW = xlog_data(16, b"Irow")
OPTIONS = {"proto_version": "4"}
NEVER_HANGS_S = 30


@asynccontextmanager
async def streaming(
    script: Script, capacity: int = 1 << 16, options: dict[str, str] = OPTIONS
) -> AsyncIterator[ReplicationStream]:
    """A client whose START_REPLICATION was agreed to; `script` follows that."""

    async def whole(peer: Peer) -> None:
        await peer.agree()
        await script(peer)

    async with asyncio.timeout(NEVER_HANGS_S), scripted_server(whole) as dsn:
        stream = await connect_replication(dsn, capacity=capacity)
        try:
            await stream.start("s", Lsn(0), options)
            yield stream
        finally:
            await stream.close()


async def read_to_the_end(stream: ReplicationStream) -> tuple[bytes, WalgateError]:
    data = b""
    while True:
        try:
            data += (await stream.read()).data
        except WalgateError as ended:
            return data, ended


async def send_and_wait(peer: Peer, data: bytes) -> None:
    await peer.send(data)
    await peer.reader.read()


@pytest.mark.parametrize(
    ("sent", "kind", "said"),
    [
        (ROW[:-2], StreamCut, "32 bytes into a message"),
        (b"", StreamCut, "closed the connection"),
        (COPY_DONE, Retry, "server ended the stream"),
        (message("C", b"COPY 0\0"), Retry, "server ended the stream"),
        (error("57P01", "terminating connection due to administrator command", severity="FATAL"), Retry, "57P01"),
        (error("XX000", "boom"), CannotDecode, "boom"),
        (error("58P01", "WAL has been removed", R="WalSndSegmentOpen"), LossReported, "removed"),
        (warning("55000", 'skipped loading publication "p"', F="pgoutput.c"), LossReported, "skipped"),
        (warning("57P02", "terminating connection because of crash"), Retry, "57P02"),
        (parameter_status("client_encoding", "LATIN1"), StopForOperator, "client_encoding"),
        (parameter_status("DateStyle", "German, DMY"), StopForOperator, "DateStyle"),
        (message("?", b"abc"), FrameError, "'?'"),
        (message("D", b"\0\0"), FrameError, "'D'"),
        (message("W", b"\0\0\0"), FrameError, "'W'"),
        (READY, FrameError, "'Z'"),
        (message("E", b"Cno end"), FrameError, "zero byte"),
        (message("d", b"x" + bytes(30)), FrameError, "'w' or 'k'"),
        (message("d", b"w" + bytes(3)), FrameError, "XLogData"),
        (b"d" + struct.pack("!i", -1) + bytes(40), FrameError, "CopyData"),
        (b"d" + struct.pack("!i", 2**31 - 1) + b"w" + bytes(40), FrameError, "a length from 4"),
        (b"\xff" * 100, FrameError, "a length from 4"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value),
)
async def test_end_of_the_stream_comes_after_the_rows_and_is_classified(
    sent: bytes, kind: type[WalgateError], said: str
) -> None:
    async with streaming(lambda peer: peer.send(ROW + sent)) as stream:
        data, ended = await read_to_the_end(stream)
        assert data == ROW
        assert type(ended) is kind
        assert said in str(ended)
        with pytest.raises(kind):  # and it stays so
            await stream.read()


async def test_a_type_without_a_binary_form_is_asked_for_as_text() -> None:
    said = error("42883", "no binary output function available for type aclitem")
    async with streaming(lambda peer: peer.send(ROW + said), options={**OPTIONS, "binary": "on"}) as stream:
        assert type((await read_to_the_end(stream))[1]) is NeedsText
    async with streaming(lambda peer: peer.send(ROW + said), options={**OPTIONS, "binary": "off"}) as stream:
        assert type((await read_to_the_end(stream))[1]) is CannotDecode


@pytest.mark.parametrize("sent", [error("XX000"), warning("55000", F="pgoutput.c"), COPY_DONE])
async def test_nothing_behind_bad_news_is_given_out(sent: bytes) -> None:
    async with streaming(lambda peer: peer.send(ROW + sent + ROW + ROW)) as stream:
        data, _ = await read_to_the_end(stream)
        assert data == ROW


async def test_message_cut_at_every_byte_is_never_given_out_in_part() -> None:
    for cut in range(len(ROW)):
        async with streaming(lambda peer, cut=cut: peer.send(ROW + ROW[:cut])) as stream:  # type: ignore[misc]
            data, ended = await read_to_the_end(stream)
            assert data == ROW
            assert type(ended) is StreamCut


async def test_stream_sent_byte_by_byte_is_the_same() -> None:
    sent = ROW + keepalive(17) + parameter_status("application_name", "x") + ROW

    async def drip(peer: Peer) -> None:
        for byte in sent:
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        await peer.reader.read()

    async with streaming(drip) as stream:
        data = b""
        while len(data) < len(ROW + keepalive(17) + ROW):
            data += (await stream.read()).data
        assert data == ROW + keepalive(17) + ROW
        assert [frame[0] for frame in split(data)] == [119, 107, 119]


async def test_parameters_that_do_not_matter_may_change() -> None:
    async with streaming(lambda peer: send_and_wait(peer, parameter_status("search_path", "x") + ROW)) as stream:
        assert (await stream.read()).data == ROW


async def test_parameter_that_was_not_taken_at_login_is_refused() -> None:
    async def silent(peer: Peer) -> None:
        await peer.reader.read()

    async with asyncio.timeout(NEVER_HANGS_S), scripted_server(silent, {"DateStyle": "SQL, DMY"}) as dsn:
        with pytest.raises(StopForOperator, match="DateStyle"):
            await connect_replication(dsn)


async def test_session_asks_for_a_walsender_and_pins_what_values_look_like() -> None:
    startup: dict[str, str] = {}

    async def note(peer: Peer) -> None:
        startup.update(peer.startup)
        await peer.reader.read()

    async with asyncio.timeout(NEVER_HANGS_S), scripted_server(note) as dsn:
        stream = await connect_replication(dsn)
        await stream.close()
    assert startup["replication"] == "database"
    assert startup["extra_float_digits"] == "3" and startup["bytea_output"] == "hex"
    assert stream.backend_pid == 4711


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error("42704", 'replication slot "s" does not exist'), Retry),
        (error("55006", 'replication slot "s" is active for PID 1'), Retry),
        (error("42601", 'syntax error at or near "START_REPLICATION"'), StopForOperator),
        (error("55000", 'can no longer access replication slot "s"'), Retry),
        (message("C", b"SELECT 0\0") + READY, FrameError),
        (READY, FrameError),
        (ROW, FrameError),
        (b"", Retry),
        (b"W\0\0", Retry),
    ],
)
async def test_refused_start_is_classified(answer: bytes, kind: type[WalgateError]) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.receive()
        await peer.send(answer)

    async with asyncio.timeout(NEVER_HANGS_S), scripted_server(refuse) as dsn:
        stream = await connect_replication(dsn)
        with pytest.raises(WalgateError) as caught:
            await stream.start("s", Lsn(0), OPTIONS)
        assert type(caught.value) is kind
        await stream.close()


async def test_start_that_is_not_answered_ends_with_its_time() -> None:
    async def silent(peer: Peer) -> None:
        await peer.reader.read()

    async with asyncio.timeout(NEVER_HANGS_S), scripted_server(silent) as dsn:
        stream = await connect_replication(dsn)
        with pytest.raises(Retry, match="no response"):
            await stream.start("s", Lsn(0), OPTIONS, timeout_s=0.1)


async def test_rows_that_come_with_the_agreement_are_kept() -> None:
    async def hurry(peer: Peer) -> None:
        await peer.receive()
        await send_and_wait(peer, message("W", b"\0\0\0") + ROW)

    async with asyncio.timeout(NEVER_HANGS_S), scripted_server(hurry) as dsn:
        stream = await connect_replication(dsn)
        await stream.start("s", Lsn(0), OPTIONS)
        assert (await stream.read()).data == ROW
        await stream.close()


@pytest.mark.parametrize(
    "answer",
    [
        row_description("a") + data_row(b"1") + message("C", b"X\0") + READY,
        row_description("a", "b", "c", "d") + data_row(b"1", b"one", b"0/0", None) + message("C", b"X\0") + READY,
        row_description("a") + message("D", b"\0\7") + message("C", b"X\0") + READY,
        message("C", b"X\0") + READY,
    ],
)
async def test_identity_that_can_not_be_read_is_refused(answer: bytes) -> None:
    async def answer_badly(peer: Peer) -> None:
        await peer.receive()
        await send_and_wait(peer, answer)

    async with asyncio.timeout(NEVER_HANGS_S), scripted_server(answer_badly) as dsn:
        stream = await connect_replication(dsn)
        with pytest.raises(StopForOperator):
            await stream.identify()
        await stream.close()


async def test_back_pressure_reaches_the_server_and_the_buffer_stays_small() -> None:
    sent = 0
    row = xlog_data(1, bytes(10_000))

    async def flood(peer: Peer) -> None:
        nonlocal sent
        while True:
            await peer.send(row)
            sent += len(row)

    async with streaming(flood, capacity=1 << 16) as stream:
        while not stream.is_paused:
            await asyncio.sleep(0)
        last = -1
        while sent != last:  # until the sockets are full
            last = sent
            await asyncio.sleep(0.1)
        assert stream.silence_s() == 0.0  # the silence is ours
        got = 0
        while got < last + 1_000_000:  # and it goes on behind what was sent
            data = (await stream.read()).data
            got += len(data)
            assert len(data) <= 1 << 16
            await asyncio.sleep(0)


async def test_cancelled_read_loses_nothing() -> None:
    go_on = asyncio.Event()

    async def wait_and_send(peer: Peer) -> None:
        await go_on.wait()
        await send_and_wait(peer, ROW)

    async with streaming(wait_and_send) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stream.read()
        go_on.set()
        assert (await stream.read()).data == ROW


async def test_silent_server_is_asked_and_then_given_up() -> None:
    statuses: list[bytes] = []

    async def black_hole(peer: Peer) -> None:
        while True:
            statuses.append((await peer.receive())[1])

    async with streaming(black_hole) as stream:
        status = StandbyStatus(stream, Lsn(5), 0.6, silence_limit_s=1.0)
        task = asyncio.create_task(status.run())
        with pytest.raises(Retry, match="sent nothing"):
            await stream.read()
        await task
    assert [body[-1] for body in statuses][:1] == [0]
    assert 1 in [body[-1] for body in statuses]


async def test_server_that_asks_without_end_is_answered_ten_times_a_second_and_left() -> None:
    replies = 0

    async def stopping(peer: Peer) -> None:
        nonlocal replies
        while True:
            await peer.send(keepalive(99, reply_requested=True))
            await peer.receive()
            replies += 1

    async with streaming(stopping) as stream:
        task = asyncio.create_task(StandbyStatus(stream, Lsn(5), 60.0).run())
        started_at = asyncio.get_running_loop().time()
        await task  # the reader waits for Kafka all the while: nobody reads
        assert 3.0 <= asyncio.get_running_loop().time() - started_at < 4.5
        _, ended = await read_to_the_end(stream)
        assert isinstance(ended, Retry) and "shutting down" in ended.message
    assert 25 <= replies <= 45


async def test_close_says_goodbye() -> None:
    last: list[str] = []
    left = asyncio.Event()

    async def note(peer: Peer) -> None:
        try:
            while True:
                last.append((await peer.receive())[0])
        finally:
            left.set()

    async with streaming(note) as stream:
        stream.send_standby_status(1, 1)
    async with asyncio.timeout(NEVER_HANGS_S):
        await left.wait()
    assert last == ["d", "X"]
    with pytest.raises(Retry, match="closed by the gateway"):
        await stream.read()
