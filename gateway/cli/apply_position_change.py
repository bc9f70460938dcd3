"""Carry out the steps of gateway/startup/position_changes.py, for the commands that change a slot's
position."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

import structlog

from gateway.cli.stream_server import stream_login
from gateway.config.settings import Settings
from gateway.errors import Retry
from gateway.observe.logs import RepeatedMessages
from gateway.observe.status_board import StatusBoard
from gateway.postgres.connection import connect_sql, end_session
from gateway.runtime.bootstrap import Bootstrap
from gateway.runtime.dialect import dialect_of
from gateway.runtime.session_memory import SessionMemory
from gateway.runtime.source_catalog import SourceCatalog
from gateway.startup.facts import Expected
from gateway.startup.position_changes import FreshPosition
from gateway.startup.start import Steps
from gateway.transactions.position import Position

log = structlog.get_logger()

_ATTEMPTS: Final = 8
"""The number of attempts of one command. A running gateway that was fenced starts again and fences
the command in its turn, until one of the two completes."""


PositionChange = Callable[[FreshPosition, Expected], Steps]


async def carry_out(settings: Settings, steps: PositionChange) -> Position:
    """Carry out the steps and return the new position, which is durable. Raises WalgateError."""
    repeats = RepeatedMessages()
    for _ in range(_ATTEMPTS - 1):
        try:
            return await _attempt(settings, steps)
        except Retry as error:
            told = repeats.again(error.message, datetime.now(UTC).isoformat(timespec="seconds"))
            if told is not None:
                log.info("retrying", reason=error.message, **told)
            await asyncio.sleep(random.uniform(0.1, 1.5))
    return await _attempt(settings, steps)


async def _attempt(settings: Settings, steps: PositionChange) -> Position:
    async with AsyncExitStack() as stack:
        sql = await connect_sql(await stream_login(settings.source))
        stack.push_async_callback(end_session, sql)
        memory = SessionMemory()
        start = Bootstrap(settings, dialect_of(settings), memory, stack, StatusBoard())
        catalog = SourceCatalog(sql, settings, memory.next_moment, memory.logged)
        return await start.carry_out(catalog, steps(start.fresh_position, catalog.expected))
