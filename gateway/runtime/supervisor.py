"""Run one session after another. After every transient error there is a new producer, and the
stream begins from the stored position.

    Retry          after 0.2 s, doubling up to 2 s
    RetrySlowly    after 2 s, doubling up to 60 s
    other errors   end the gateway: the operator must decide

A repeated reason is logged less and less often, with its count and the time of its first
occurrence. If an error recurs at the same resume LSN, its occurrences are counted. The gateway then
waits longer each time, and finally stops (gateway/startup/repeated_failure.py).

The delays are reset after an attempt that ran for a while. SIGTERM and SIGINT drain: what was
received and can be committed is committed and acknowledged to PostgreSQL, then the program exits
with code 0. SIGUSR1 logs where every task waits.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from gateway.config.settings import Settings
from gateway.errors import Retry, RetrySlowly, WalgateError
from gateway.failpoints import failpoint
from gateway.observe import metrics
from gateway.observe.http_client import authority
from gateway.observe.logs import RepeatedMessages
from gateway.observe.status_board import StatusBoard
from gateway.runtime.monitor import Monitor
from gateway.runtime.session import Session
from gateway.runtime.session_memory import SessionMemory
from gateway.runtime.tasks import cancel
from gateway.startup.repeated_failure import RepeatedFailure, wait_s
from schemas.lsn import Lsn

log = structlog.get_logger()

HEALTHY_S = 30.0
_DELAYS_S: dict[type[WalgateError], tuple[float, float]] = {Retry: (0.2, 2.0), RetrySlowly: (2.0, 60.0)}


class Backoff:
    """The delay before the next attempt, in seconds. It doubles with each failure of the same class
    until an attempt has run for HEALTHY_S. A standby gateway that has waited for hours must not
    wait a minute after its first failure. The jitter keeps two gateways that start together from
    fencing each other in step forever."""

    def __init__(self) -> None:
        self._delays_s: dict[type[WalgateError], float] = {}

    def delay_s(self, error: WalgateError, lasted_s: float) -> float:
        if lasted_s >= HEALTHY_S:
            self._delays_s.clear()
        kind = RetrySlowly if isinstance(error, RetrySlowly) else Retry
        first, longest = _DELAYS_S[kind]
        delay = self._delays_s.get(kind, first)
        self._delays_s[kind] = min(2 * delay, longest)
        return delay * random.uniform(0.5, 1.0)


async def serve(settings: Settings) -> None:
    """Run until stopped by a signal. Raises StopForOperator (or DataGap) if the operator must act
    first."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, _log_tasks)
    _tune_garbage_collection()
    board = StatusBoard(
        slot_name=settings.source.slot, prefix=settings.kafka.prefix, version=package_version("walgate")
    )
    metrics.show(board)
    if settings.http.port is not None:
        from gateway.observe.http_routes import start_http  # here: the import takes a tenth of the start

        port = start_http(settings.http.host, settings.http.port, board)
        log.info("http", url=f"http://{authority(settings.http.host, port)}/readyz")
    monitoring = asyncio.create_task(Monitor(settings, board).run()) if _is_watched(settings) else None
    try:
        await _sessions(settings, board, stop)
    finally:
        if monitoring is not None:
            await cancel([monitoring])


def _is_watched(settings: Settings) -> bool:
    """Return whether the monitor is needed: for the HTTP port, for heartbeats or for a WAL budget.
    Otherwise, no connection is made for it."""
    source = settings.source
    return settings.http.port is not None or source.heartbeat_interval_s > 0 or source.wal_budget_bytes is not None


async def _sessions(settings: Settings, board: StatusBoard, stop: asyncio.Event) -> None:
    """Run sessions until one is stopped, or raises an error that is not retried."""
    backoff = Backoff()
    repeats = RepeatedMessages()
    memory = SessionMemory()
    while not stop.is_set():
        begun = time.monotonic()
        session = Session(settings, board, memory)
        try:
            await _until_stopped(session, stop)
            return
        except (Retry, RetrySlowly) as error:
            metrics.RESTARTS.labels(type(error).__name__).inc()
            repeated_failure = memory.repeated_failure
            place = {} if repeated_failure is None else _place(repeated_failure)
            board.failed(error, **place)
            board.wait_for(f"the restart of replication, after this error: {error.message}")
            delay = backoff.delay_s(error, time.monotonic() - begun)
            if repeated_failure is not None:
                delay = wait_s(repeated_failure)
            if session.is_streaming:
                repeats.forget()
            told = repeats.again(error.message, datetime.now(UTC).isoformat(timespec="seconds"))
            if place:
                told = place | {"resume_lsn": str(place["resume_lsn"])}
            if told is not None:
                log.warning("restarting", reason=error.message, hint=error.hint, delay_s=round(delay, 1), **told)
        # A session has cycles, also with its error: they would wait for the rare automatic collections.
        del session
        gc.collect()
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), delay)
        failpoint("reconnect")


def _place(repeated_failure: RepeatedFailure) -> dict[str, Any]:
    """Return the count, the time of the first failure and the resume LSN, for the log and the
    status."""
    return {
        "times": repeated_failure.times,
        "since": repeated_failure.since,
        "resume_lsn": Lsn(repeated_failure.resume_lsn),
    }


async def _until_stopped(session: Session, stop: asyncio.Event) -> None:
    """Run the session. If `stop` is set, a session that does not stream yet is cancelled, and a
    session that streams drains and ends on its own."""
    running = asyncio.create_task(session.run(stop))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not running.done() and not session.is_streaming:
        await cancel([running])
        with suppress(asyncio.CancelledError):
            await running
        return
    await running


def _log_tasks() -> None:
    """Log where every task waits: files and lines only, no variables, hence no row values."""
    tasks = asyncio.all_tasks()
    for task in tasks:
        frames = [f"{Path(f.f_code.co_filename).name}:{f.f_lineno} {f.f_code.co_name}" for f in _awaiting(task)]
        log.warning("task", name=task.get_name(), at=frames)
    log.warning("tasks", count=len(tasks))


def _awaiting(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """Yield the frames from the outermost coroutine of a task to the innermost one that waits;
    `Task.get_stack` has only the outermost."""
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        if frame is not None:
            yield frame
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)


def _tune_garbage_collection() -> None:
    """Make collections rare, since rows create no cycles: freeze the objects that exist, and let
    the youngest generation grow large."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
