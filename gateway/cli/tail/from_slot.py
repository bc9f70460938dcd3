"""Messages as PostgreSQL sends them, from a temporary slot: the gateway, its slot and Kafka are not
touched.

A temporary slot is dropped when its connection ends, in whatever way. But while PostgreSQL creates
the slot, the walsender waits for other transactions and does not notice that the client has gone.
The walsender is therefore found by the slot's name, and terminated explicitly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg
import structlog

from gateway.cli.stream_server import stream_login
from gateway.cli.tail.filters import MessageFilter
from gateway.cli.tail.message_json import MessageRenderer, Shown
from gateway.cli.tail.output import Output
from gateway.config.source import SourceSettings
from gateway.errors import StopForOperator
from gateway.postgres.classify_errors import DRIVER_ERRORS, LossReported, classified_errors
from gateway.postgres.connection import connect_replication, sql_session
from gateway.postgres.copy_frames import DRAINED, KEEPALIVE, Received, drained_size
from gateway.postgres.publication import publication_names
from gateway.postgres.replication_stream import ReplicationStream
from gateway.postgres.server import server_facts
from gateway.postgres.slot_creation_blockers import naming_blockers
from gateway.postgres.standby_status import StandbyStatus, wal_sender_timeout_of
from gateway.postgres.start_replication import pgoutput_options, protocol_version
from schemas.lsn import Lsn
from schemas.topic_names import format_relation

log = structlog.get_logger()
T = TypeVar("T")

_END_TIMEOUT_MS: Final = 10_000
_TABLES: Final = """
SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1, 2
"""
_END: Final = """
SELECT pg_catalog.pg_terminate_backend(active_pid, $2)
FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND temporary AND active_pid IS NOT NULL
"""


async def tail_slot(
    source: SourceSettings, publications: Sequence[str], chosen: MessageFilter, output: Output, *, in_progress: bool
) -> None:
    """Show transactions that commit from now on, until `output` has ended; with `in_progress` also
    changes that are not committed yet. Raises WalgateError."""
    login = await stream_login(source)
    async with sql_session(login) as sql:
        with classified_errors("querying the publications and tables"):
            await _check_publications(sql, publications)
            await _warn_of_tables(sql, chosen)
        server = await server_facts(sql)
        timeout_s = wal_sender_timeout_of(server.wal_sender_timeout_s)
        stream = await connect_replication(login, wal_sender_timeout_s=timeout_s)
        slot = f"walgate_tail_{stream.backend_pid}"
        try:
            async with naming_blockers(login, stream.backend_pid):
                lsn = await _unless_ended(stream.create_temporary_slot(slot), output)
            if lsn is None:
                return
            options = pgoutput_options(
                server.version_num, publications, streaming=in_progress, messages=True, origin=source.origin
            )
            await stream.start(slot, lsn, options)
            log.info("tailing", slot=slot, from_lsn=str(lsn), publications=list(publications))
            feedback = StandbyStatus(stream, lsn, timeout_s)
            shower = MessageRenderer(protocol_version(server.version_num))
            await _copy(stream, feedback, shower, chosen, output)
        finally:
            await stream.close()
            with suppress(*DRIVER_ERRORS):  # the slot is dropped with its connection even if this fails
                await sql.fetch(_END, slot, _END_TIMEOUT_MS)


async def _copy(
    stream: ReplicationStream, feedback: StandbyStatus, shower: MessageRenderer, chosen: MessageFilter, output: Output
) -> None:
    answering = asyncio.create_task(feedback.run())
    try:
        while not output.ended.is_set():
            try:
                received = await _unless_ended(stream.read(), output)
            except LossReported as error:
                raise StopForOperator(
                    error.message, hint="check whether a publication was dropped, and run walgate tail again without it"
                ) from error
            if received is not None:
                last, shown = _show(received, shower, chosen)
                await output.write(shown)
                feedback.acknowledge(last)
    finally:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering


def _show(received: Received, shower: MessageRenderer, chosen: MessageFilter) -> tuple[Lsn, list[Shown]]:
    """Return the last LSN and the chosen messages."""
    found: list[Shown] = []
    last = 0
    for kind, lsn, start, end in received.frames:
        last = max(last, lsn)
        payload = received.data[start:end]
        if kind == DRAINED:
            found += chosen.choose(shower.show_head(payload, lsn, drained_size(received.data, start)))
        elif kind != KEEPALIVE:
            found += chosen.choose(shower.show(payload, lsn))
    return Lsn(last), found


async def _unless_ended(doing: Coroutine[Any, Any, T], output: Output) -> T | None:
    """Return the result of `doing`; None if the output ended first."""
    working, ending = asyncio.ensure_future(doing), asyncio.ensure_future(output.ended.wait())
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


async def _check_publications(sql: asyncpg.Connection, names: Sequence[str]) -> None:
    """Raise StopForOperator if a publication is missing: PostgreSQL 18 would only warn, and send
    none of its changes."""
    there = sorted(await publication_names(sql))
    missing = [name for name in names if name not in there]
    if missing:
        raise StopForOperator(
            f"publications that do not exist: {', '.join(missing)}",
            hint=f"use --publication with one of: {', '.join(there)}"
            if there
            else "CREATE PUBLICATION walgate FOR TABLE ...",
        )


async def _warn_of_tables(sql: asyncpg.Connection, chosen: MessageFilter) -> None:
    """Log table patterns that match no table. This is no error: a table that is created later is
    shown as well."""
    there = [format_relation(*row) for row in await sql.fetch(_TABLES)]
    for pattern, near in chosen.unmatched(there):
        log.warning("no_such_table", table=pattern, hint=f"did you mean {near}?" if near else "")
