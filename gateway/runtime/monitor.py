"""Watch PostgreSQL, Kafka, the registry and the mirrors, independently of the session and over
separate connections; report to the status board, and write heartbeats.

    PostgreSQL    its clock and the end of its WAL, every `READ_INTERVAL_S`; the slot and what
                  retains WAL, every `LOOK_INTERVAL_S`; a heartbeat (a transactional logical
                  message), every `source.heartbeat_interval_s`, unless that is 0
    Kafka         metadata of the position topic, every `PROBE_INTERVAL_S`
    registry      the newest schema of positions, every `PROBE_INTERVAL_S`
    mirrors       the /status of each mirror, every `PROBE_INTERVAL_S`

Nothing here ends or delays a session. A service that is down is reported within PROBE_INTERVAL_S +
PROBE_TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from operator import itemgetter
from typing import Final

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import Retry, WalgateError
from gateway.kafka.health_probe import KafkaProbe
from gateway.names import HEARTBEAT_PREFIX
from gateway.observe.http_client import ask_json
from gateway.observe.logs import library_lines
from gateway.observe.mirror_status import MirrorStatus, read_mirror
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import TITLES, PartName, RetainedWal, SlotStatus
from gateway.postgres.asyncpg_internals import address_of
from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.connection import address_text, connect_sql
from gateway.postgres.credentials import login_of
from gateway.postgres.wal_retention import read_clock, retention_causes, slot_status, with_least_ages
from gateway.schema_errors import classified_schema_errors, open_registry
from schemas.topic_names import POSITION_TOPIC, value_subject

log = structlog.get_logger()

READ_INTERVAL_S: Final = 0.2
LOOK_INTERVAL_S: Final = 2.0
PROBE_INTERVAL_S: Final = 4.0
PROBE_TIMEOUT_S: Final = 4.0
CONNECT_TIMEOUT_S: Final = 5.0
RATE_WINDOW_S: Final = 60.0
LEAST_WINDOW_S: Final = 10.0
ALARM_AGAIN_S: Final = 60.0
WORTH_A_WORD: Final = 0.1
"""The share of the limit below which fast growth alone raises no alarm."""
_AGAIN_S: Final = (0.5, 5.0)
"""The first and the longest delay between attempts to connect, in seconds; the delay doubles."""


class Monitor:
    def __init__(self, settings: Settings, board: StatusBoard) -> None:
        self._settings = settings
        self._board = board
        self._held: deque[tuple[float, int]] = deque()
        self._alarm = (0, 0.0)

    async def run(self) -> None:
        """Watch all services and mirrors until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep("postgresql", self._watch_postgresql))
            group.create_task(self._keep("kafka", self._watch_kafka))
            group.create_task(self._keep("registry", self._watch_registry))
            for url in self._settings.http.mirrors:
                group.create_task(watch_mirror(url, self._board))

    async def _keep(self, name: PartName, watch: Callable[[], Awaitable[None]]) -> None:
        """Run a watch until cancelled. A defect of the monitor must neither freeze the figures nor
        end the stream: it is reported, and the watch begins again."""
        while True:
            try:
                await watch()
            except Exception as error:
                log.error(
                    "monitor_failed",
                    service=TITLES[name],
                    error=type(error).__name__,
                    reason=str(error) if isinstance(error, WalgateError) else "",
                )
                hint = error.hint if isinstance(error, WalgateError) else ""
                self._down(name, Retry(f"the monitor failed: {type(error).__name__}", hint=hint))
            await asyncio.sleep(_AGAIN_S[1])

    # -- PostgreSQL

    async def _watch_postgresql(self) -> None:
        again_s = _AGAIN_S[0]
        while True:
            try:
                login = login_of(self._settings.source, self._board.server)
                sql = await connect_sql(login, timeout_s=CONNECT_TIMEOUT_S)
            except WalgateError as error:
                self._down("postgresql", error)
                await asyncio.sleep(again_s)
                again_s = min(again_s * 2, _AGAIN_S[1])
                continue
            try:
                self._address = address_text(sql)
                again_s = _AGAIN_S[0]
                await self._read(sql)
            except WalgateError as error:
                self._down("postgresql", error)
                await asyncio.sleep(again_s)
            finally:
                self._board.wal.lost()
                sql.terminate()

    async def _read(self, sql: asyncpg.Connection) -> None:
        """Watch the server until a session has another one."""
        looked_at = beat_at = -float("inf")
        heartbeat_s = self._settings.source.heartbeat_interval_s
        while self._board.server in (None, address_of(sql)):
            begun = time.monotonic()
            server_time, lsn = await read_clock(sql, PROBE_TIMEOUT_S)
            self._board.wal.note(lsn, server_time, (begun + time.monotonic()) / 2)
            self._board.progress()
            self._up("postgresql", self._address)
            if begun - looked_at >= LOOK_INTERVAL_S:
                looked_at = begun
                await self._look(sql, lsn, server_time)
            if heartbeat_s and begun - beat_at >= heartbeat_s:
                beat_at = begun
                await self._beat(sql)
            await asyncio.sleep(max(begun + READ_INTERVAL_S - time.monotonic(), READ_INTERVAL_S / 4))

    async def _look(self, sql: asyncpg.Connection, lsn: int, server_time: float) -> None:
        slot = await slot_status(sql, self._settings.source.slot)
        self._board.slot = slot
        self._board.held = None if slot is None or not slot.restart_lsn else self._measure(slot, lsn)
        causes = await retention_causes(sql, self._settings.source.slot)
        self._board.blockers = with_least_ages(causes, self._board.blockers, server_time)

    def _measure(self, slot: SlotStatus, lsn: int) -> RetainedWal:
        held, now = max(lsn - slot.restart_lsn, 0), time.monotonic()
        self._held.append((now, held))
        while self._held[0][0] < now - RATE_WINDOW_S:
            self._held.popleft()
        found = wal_held(slot, held, growth_rate(self._held), self._settings.source.wal_budget_bytes)
        self._warn(found)
        return found

    def _warn(self, wal: RetainedWal) -> None:
        """Log an alarm each time the level rises, and every minute while there is an alarm."""
        level, now = alarm_level(wal), time.monotonic()
        if level > self._alarm[0] or (level and now - self._alarm[1] >= ALARM_AGAIN_S):
            self._alarm = level, now
            (log.warning, log.error, log.critical)[level - 1](
                "wal_retained",
                retained_bytes=wal.retained_bytes,
                limit_bytes=wal.limit_bytes,
                limit_by=wal.limit_by,
                seconds_to_full=None if wal.seconds_to_full is None else round(wal.seconds_to_full),
                hint="run walgate status: it shows what keeps the slot's restart_lsn from advancing. If it is a transaction, "
                "end it; if it is a service that does not answer, get it running again. If max_slot_wal_keep_size is exceeded, "
                "PostgreSQL invalidates the slot",
            )
        elif level < self._alarm[0]:
            self._alarm = level, now

    async def _beat(self, sql: asyncpg.Connection) -> None:
        """Write a heartbeat. The message is transactional, since only a commit is flushed at once
        whatever the server's settings are."""
        with classified_errors("writing a heartbeat"):
            await sql.execute(
                "SELECT pg_catalog.pg_logical_emit_message(true, $1::text, $2::text) "
                "WHERE NOT pg_catalog.pg_is_in_recovery()",
                HEARTBEAT_PREFIX,
                self._settings.source.slot,
                timeout=PROBE_TIMEOUT_S,
            )

    # -- Kafka and the registry

    async def _watch_kafka(self) -> None:
        kafka = self._settings.kafka
        probe = KafkaProbe(kafka, PROBE_TIMEOUT_S)
        try:
            await self._probe("kafka", kafka.bootstrap_servers, probe.ask)
        finally:
            await probe.close()

    async def _watch_registry(self) -> None:
        settings = self._settings.registry
        async with open_registry(settings, PROBE_TIMEOUT_S) as client:

            async def ask() -> None:
                with classified_schema_errors():
                    await client.latest(value_subject(POSITION_TOPIC))

            await self._probe("registry", settings.url, ask)

    async def _probe(self, name: PartName, address: str, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await ask()
                self._up(name, address)
            except WalgateError as error:
                self._down(name, error, address)
            await asyncio.sleep(PROBE_INTERVAL_S)

    def _up(self, name: PartName, address: str = "") -> None:
        before = self._board.parts[name]
        self._board.part_is_up(name, address)
        if before.up is False:
            folded = library_lines.service_is_up(name)
            down_s = round(time.time() - before.since)
            log.info("service_up", service=TITLES[name], down_s=down_s, **({"folded_lines": folded} if folded else {}))

    def _down(self, name: PartName, error: WalgateError, address: str = "") -> None:
        before = self._board.parts[name].up
        self._board.part_is_down(name, error, address)
        if before is not False:
            library_lines.service_is_down(name)
            log.warning("service_down", service=TITLES[name], reason=error.message, hint=error.hint)


async def watch_mirror(url: str, board: StatusBoard) -> None:
    """Ask a mirror for its status at intervals, until cancelled."""
    board.mirror(MirrorStatus(url))
    while True:
        await ask_mirror(url, board)
        await asyncio.sleep(PROBE_INTERVAL_S)


async def ask_mirror(url: str, board: StatusBoard) -> None:
    """Ask a mirror for its status, and put it on the status board."""
    try:
        found = read_mirror(url, await asyncio.to_thread(ask_json, f"{url}/status"))
    except (OSError, HTTPException, ValueError, TypeError, OverflowError, RecursionError) as error:
        found = MirrorStatus(url, up=False, error=str(getattr(error, "reason", error)) or type(error).__name__)
    board.mirror(found)


def alarm_level(wal: RetainedWal) -> int:
    """Return the alarm level, which is 0 for none. Level 1 begins at half of the limit, or if the
    limit will be reached within an hour. Level 2 begins at four fifths, or ten minutes before, and
    level 3 at 95 %, or one minute before."""
    if wal.limit_bytes is None:
        return 0
    share, left_s = wal.retained_bytes / wal.limit_bytes, wal.seconds_to_full
    for level, least, soon_s in ((3, 0.95, 60.0), (2, 0.8, 600.0), (1, 0.5, 3600.0)):
        if share >= least or (left_s is not None and left_s <= soon_s and share >= WORTH_A_WORD):
            return level
    return 0


def growth_rate(held: deque[tuple[float, int]]) -> float:
    """Return the growth in bytes per second from the first to the last (moment, bytes).

    When the slot's restart_lsn advances, much WAL is freed at once. If that hides that the retained
    WAL is growing again, return the rate since its minimum instead, or 0 if the minimum is less
    than `LEAST_WINDOW_S` ago.
    """
    rate = _rate(held[0], held[-1])
    least = min(reversed(held), key=itemgetter(1))
    if rate >= 0 or least is held[-1]:
        return rate
    return _rate(least, held[-1]) if held[-1][0] - least[0] >= LEAST_WINDOW_S else 0.0


def _rate(begin: tuple[float, int], end: tuple[float, int]) -> float:
    return (end[1] - begin[1]) / (end[0] - begin[0]) if end[0] > begin[0] else 0.0


def wal_held(slot: SlotStatus, held: int, rate: float, budget_bytes: int | None) -> RetainedWal:
    """Return the WAL that the slot retains, with its limit: `budget_bytes`
    (source.wal_budget_bytes) or the server's max_slot_wal_keep_size, derived from safe_wal_size,
    whichever is less."""
    limits = [(budget_bytes, "source.wal_budget_bytes")] if budget_bytes is not None else []
    if slot.safe_wal_bytes is not None:
        limits.append((held + slot.safe_wal_bytes, "max_slot_wal_keep_size"))
    limit, by = min(limits, default=(None, ""))
    seconds = None
    if limit is not None and (rate > 0 or held >= limit):
        seconds = max(limit - held, 0) / rate if rate > 0 else 0.0
    return RetainedWal(held, rate, limit, by, seconds, slot.wal_status)
