"""A replication connection after log-in: simple queries, then CopyBoth, then its end.

    State     Meaning                                            Next
    READY     authenticated; identify() and start() may run      QUERY or STARTING
    QUERY     a simple query was sent                            READY, or FAILED
    STARTING  START_REPLICATION was sent                         COPYING, or FAILED
    COPYING   the server sends frames, we send standby status    FAILED
    FAILED    `failure` holds the reason, transport aborted      final

FAILED is final: after any failure, a new connection starts from the durable position. Frames that
were whole before the failure are still given to the reader. Nothing that follows an error, or a
notice that ends the stream, is given to the reader.
"""

from __future__ import annotations

import asyncio
import enum
import struct
import time
from collections.abc import Callable, Mapping
from typing import Final, cast

from gateway.errors import Retry, StopForOperator, WalgateError
from gateway.postgres.classify_errors import LossReported, StreamCut, classify, classify_in_stream, classify_notice
from gateway.postgres.copy_frames import FrameError, Received, standby_status
from gateway.postgres.receive_buffer import CAPACITY, LARGEST_MESSAGE, LARGEST_ROW, ReceiveBuffer
from gateway.postgres.server_message import ServerMessage, parse_server_message
from gateway.postgres.start_replication import start_command, temporary_slot_command
from gateway.startup.facts import SystemIdentity
from schemas.lsn import Lsn

# Those parameters on which the text form of values depends and which the server reports (PostgreSQL
# manual, 54.2.7).
PINNED_REPORTS: Final = {"client_encoding": "UTF8", "DateStyle": "ISO", "IntervalStyle": "iso_8601", "TimeZone": "UTC"}
_TERMINATE: Final = b"X\x00\x00\x00\x04"
_CLOSE_TIMEOUT_S: Final = 1.0


class State(enum.Enum):
    READY = enum.auto()
    QUERY = enum.auto()
    STARTING = enum.auto()
    COPYING = enum.auto()
    FAILED = enum.auto()


class ReplicationStream(asyncio.BufferedProtocol):
    """The protocol of a replication connection, which `connect_replication` makes. One task reads,
    and another one sends standby status.

    `place` names the connection in errors. All errors are WalgateErrors, classified by what happens
    next.
    """

    def __init__(
        self,
        place: str,
        *,
        capacity: int = CAPACITY,
        largest_row: int = LARGEST_ROW,
        largest_message: int = LARGEST_MESSAGE,
        clock: Callable[[], float] = time.monotonic,
        backend_pid: int = 0,
        server_major: int = 0,
    ) -> None:
        self.on_reply_request: Callable[[], None] = _ignore
        self._on_notice: Callable[[ServerMessage], None] = _ignore_notice
        self._tolerates_left_out: Callable[[], bool] = _never
        self.backend_pid = backend_pid
        self._place = place
        self._clock = clock
        self._receive_buffer = ReceiveBuffer(self._control, self._keepalive, capacity, largest_row, largest_message)
        self._state = State.READY
        self._transport: asyncio.Transport | None = None
        self.failure: WalgateError | None = None
        self._server_major = server_major
        self._binary = False  # the binary format was requested
        self._may_be_wedged = False
        self._agreed = False  # CopyBothResponse has arrived, whatever came after it
        self.is_paused = False
        """Whether reading is paused because the buffer is full: the reader is slower than the
        server."""
        self._arrived_at = clock()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._rows: list[tuple[bytes | None, ...]] = []

    # Called by the session

    async def identify(self, timeout_s: float = 30.0) -> SystemIdentity:
        """Run IDENTIFY_SYSTEM. Only call this before `start`."""
        identifier, timeline, flush_lsn, database = await self._one_row("IDENTIFY_SYSTEM", 4, timeout_s)
        try:
            return SystemIdentity(identifier, int(timeline), Lsn.parse(flush_lsn), database or None)
        except ValueError as error:
            raise FrameError("IDENTIFY_SYSTEM", 0, "a timeline and an LSN", "something else") from error

    async def find_backend_pid(self) -> None:
        """Set `backend_pid` to the process ID that the server itself gives. A proxy may have sent
        another number at the login, as Neon's does. Only call this before `start`."""
        (pid,) = await self._one_row("SELECT pg_catalog.pg_backend_pid()", 1, 30.0)
        self.backend_pid = int(pid)

    async def timeline_history(self, timeline: int, timeout_s: float = 30.0) -> str:
        """Run TIMELINE_HISTORY. Only call this before `start`. Timeline 1 has no history (58P01).
        The result is for `check_promotion` in gateway/startup/timeline_checks.py."""
        return (await self._one_row(f"TIMELINE_HISTORY {int(timeline)}", 2, timeout_s))[1]

    async def create_temporary_slot(self, name: str, timeout_s: float = 3600.0) -> Lsn:
        """Run CREATE_REPLICATION_SLOT ... TEMPORARY, and return the slot's consistent point. Only
        call this before `start`. The slot is dropped when this connection ends. The server waits
        for the end of every open transaction that has written."""
        return Lsn.parse((await self._one_row(temporary_slot_command(name), 4, timeout_s))[1])

    async def start(
        self,
        slot: str,
        start_lsn: Lsn,
        options: Mapping[str, str],
        timeout_s: float = 60.0,
        *,
        on_notice: Callable[[ServerMessage], None] | None = None,
        tolerates_left_out: Callable[[], bool] | None = None,
    ) -> None:
        """Run START_REPLICATION. Return when the server has accepted the command, which happens
        before it reads any WAL.

        `on_notice` is called with warnings from the server that do not affect what is sent.
        `tolerates_left_out` is called when a publication is missing: if it returns true, the stream
        goes on unless data has arrived already. Raises the WalgateError for the ErrorResponse:
        Retry if the slot is missing or in use, StopForOperator if an option is refused, ...
        """
        self._on_notice = on_notice or _ignore_notice
        self._tolerates_left_out = tolerates_left_out or _never
        query = start_command(slot, start_lsn, options)
        self._binary = options.get("binary") == "on"
        self._may_be_wedged = self._server_major >= 18 and options.get("two_phase") == "on"
        self._send_query(query, State.STARTING, f"starting replication from slot {slot} at {start_lsn}")
        await self._until(lambda: self._agreed, timeout_s)

    async def read(self) -> Received:
        """Wait for at least one whole CopyData frame; return all whole frames that have arrived.

        Raises the error that ended the stream, at each call. A call may be cancelled; nothing is
        then lost.
        """
        while not self._receive_buffer.complete_bytes:
            if self.failure is not None:
                raise self.failure
            await self._wait()
        received = self._receive_buffer.take()
        if self.is_paused and self._transport is not None and self.failure is None:
            self.is_paused = False
            self._arrived_at = self._clock()
            self._transport.resume_reading()
        return received

    def send_standby_status(self, received_lsn: int, flush_lsn: int, *, reply_requested: bool = False) -> None:
        """Send a standby status without waiting. Do nothing on a failed connection: `read` raises
        the failure."""
        if self._state is State.COPYING and self._transport is not None:
            self._transport.write(standby_status(received_lsn, flush_lsn, time.time(), reply_requested=reply_requested))

    def silence_s(self) -> float:
        """Return the seconds since anything arrived, or 0 while reading is paused, as this side
        then causes the silence."""
        return 0.0 if self.is_paused else self._clock() - self._arrived_at

    def fail(self, error: WalgateError) -> None:
        """End the connection at once. The reader gets the whole frames, then `error`. If called
        repeatedly, the first error is kept."""
        if self.failure is None:
            self.failure = error
        self._state = State.FAILED
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    async def close(self) -> None:
        """Send Terminate, and wait at most a second until the connection is closed. This may be
        called at any time."""
        if self.failure is None:
            self.failure = Retry(f"{self._place}: closed by the gateway")
            self._state = State.FAILED
            self._wake()
        if self._transport is None or self._closed.done():
            return
        if not self._transport.is_closing():
            self._transport.write(_TERMINATE)
            self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self._transport.abort()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one by its methods, not by its class.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive_buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived_at = self._clock()
        if self.failure is not None:
            return
        try:
            self._receive_buffer.add(nbytes)
        except FrameError as error:
            self.fail(error)
        if self._receive_buffer.complete_bytes:
            if self._receive_buffer.is_full and not self.is_paused and self._transport is not None:
                self.is_paused = True
                self._transport.pause_reading()
            self._wake()

    def eof_received(self) -> None:
        self._lost("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._lost(f"connection lost: {type(exc).__name__}: {exc}" if exc else "connection lost")

    def _lost(self, what: str) -> None:
        partial = self._receive_buffer.partial_bytes
        inside = f", {partial} bytes into a message" if partial else ""
        kind = StreamCut if self._agreed else Retry
        self.fail(kind(f"{self._place}: {what}{inside}"))

    # Messages other than CopyData

    def _keepalive(self, end_lsn: int, reply_requested: bool) -> None:
        if reply_requested:
            self.on_reply_request()

    def _control(self, kind: int, body: bytes) -> bool:
        """Act on one whole message. Return False to end the stream after it (see
        `ReceiveBuffer`)."""
        try:
            error = self._handle(chr(kind), body)
        except FrameError as wrong:
            error = wrong
        if error is not None:
            self.fail(error)
        return error is None

    def _handle(self, kind: str, body: bytes) -> WalgateError | None:
        """Act on one message; return the error that it causes, if any."""
        match kind, self._state:
            case "E", (State.STARTING | State.COPYING):
                said = parse_server_message(body)
                return classify_in_stream(
                    said,
                    self._place,
                    binary=self._binary,
                    is_streaming=self._agreed,
                    may_be_wedged=self._may_be_wedged,
                )
            case "E", _:
                return classify(parse_server_message(body), self._place)
            case "N", _:
                return self._notice(parse_server_message(body))
            case "S", _:
                # The text form of values must not change while streaming.
                name, _, value = body.rstrip(b"\0").decode("utf-8", "replace").partition("\0")
                return check_report(name, value, self._place)
            case "W", State.STARTING:
                self._state = State.COPYING
                self._agreed = True
                self._place = "replication stream"
                self._wake()
            case "T", State.QUERY:
                self._rows.clear()
            case "D", State.QUERY:
                self._rows.append(_data_row(body))
            case "C", State.QUERY:
                pass
            case "Z", State.QUERY:
                self._state = State.READY
                self._wake()
            # CopyDone, or CommandComplete alone, as walsenders send it at the end of a shutdown
            # (WalSndDone).
            case (("c" | "C"), State.COPYING):
                return Retry(f"{self._place}: the server ended the stream")
            case _:
                return FrameError(
                    f"message in state {self._state.name}", 0, "a message that is allowed in this state", f"{kind!r}"
                )
        return None

    def _notice(self, said: ServerMessage) -> WalgateError | None:
        error = classify_notice(said, self._place)
        if isinstance(error, LossReported) and not self._receive_buffer.holds_data and self._tolerates_left_out():
            error = None
        if error is None:
            self._on_notice(said)
        return error

    # Queries and waiting

    async def _one_row(self, command: str, column_count: int, timeout_s: float) -> list[str]:
        """Run a replication command and return its one row, with "" for NULL."""
        self._send_query(command, State.QUERY, command)
        await self._until(lambda: self._state is State.READY, timeout_s)
        if [len(row) for row in self._rows] != [column_count]:
            raise FrameError(command, 0, f"one row of {column_count} columns", f"{len(self._rows)} rows")
        return [(value or b"").decode("utf-8", "replace") for value in self._rows[0]]

    def _send_query(self, query: str, state: State, doing: str) -> None:
        if self.failure is not None:
            raise self.failure
        assert self._state is State.READY and self._transport is not None, f"query in state {self._state.name}"
        self._state = state
        self._place = doing
        self._rows = []
        content = query.encode() + b"\0"
        self._transport.write(b"Q" + struct.pack("!i", len(content) + 4) + content)

    async def _until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    if self.failure is not None:
                        raise self.failure
                    await self._wait()
        except TimeoutError:
            self.fail(Retry(f"{self._place}: no response within {timeout_s:.0f} s"))
            assert self.failure is not None
            raise self.failure from None

    async def _wait(self) -> None:
        """Wait until something has changed."""
        assert self._waiter is None, "one reader at a time"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def check_report(name: str, value: str, place: str) -> WalgateError | None:
    """Return an error unless the parameter has the value that the session pinned. DateStyle is
    "ISO, MDY": its second part only affects input."""
    pinned = PINNED_REPORTS.get(name)
    if pinned is None or value.split(",")[0] == pinned:
        return None
    return StopForOperator(
        f"{place}: {name} is {value!r}, but the gateway requires {pinned!r}",
        hint=f"make sure that neither a connection pooler nor a login event trigger sets {name} for this session",
    )


def _data_row(body: bytes) -> tuple[bytes | None, ...]:
    """Parse a DataRow: an Int16 count, then for each column an Int32 length (-1 for NULL) and the
    bytes."""
    columns: list[bytes | None] = []
    try:
        (count,) = struct.unpack_from("!h", body)
        position = 2
        for _ in range(count):
            (length,) = struct.unpack_from("!i", body, position)
            position += 4
            columns.append(None if length < 0 else body[position : position + length])
            position += max(length, 0)
    except struct.error:
        position = -1
    if position != len(body):
        raise FrameError("DataRow", 0, "columns that end where the message ends", "something else")
    return tuple(columns)


def _ignore() -> None:
    """Do nothing: the server repeats its request until it gets a reply."""


def _ignore_notice(_: ServerMessage) -> None:
    """Do nothing."""


def _never() -> bool:
    return False
