"""Tables that PostgreSQL cannot read: the snapshot of the others ends without them, and they are read when they can be."""

from __future__ import annotations

import asyncio

import structlog

from gateway.config.settings import Settings
from gateway.errors import WalgateError
from gateway.postgres.credentials import login_of
from gateway.postgres.errors import DRIVER_ERRORS
from gateway.snapshot.chunk_reader import connect_reader
from gateway.snapshot.pending_chunks import PendingChunks
from gateway.snapshot.progress_log import tell_unreadable
from gateway.snapshot.read_plan import survey
from gateway.snapshot.reader_tasks import RETRIES_A_PAUSE
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks
from gateway.snapshot.unreadable import is_readable

log = structlog.get_logger()


class SettingAside:
    """`look` is for the conductor, `run` is a task of its own."""

    def __init__(self, settings: Settings, readings: TableTasks, arriving: PendingChunks) -> None:
        self._login = login_of(settings.source)
        self._publications = settings.source.publications
        self._pause_s = settings.source.check_interval_s * RETRIES_A_PAUSE
        self._readings = readings
        self._arriving = arriving
        self._some = asyncio.Event()

    def look(self) -> None:
        """Where every table that is left has failed again and again, the snapshot ends."""
        readings = [reading for reading in self._readings.whole_tables if not reading.is_set_aside]
        if not self._readings.snapshot_id or not readings:
            return
        if all(reading.is_hopeless and not reading.is_marked for reading in readings):
            tell_unreadable([reading.full_name for reading in readings])
            for reading in readings:
                self._readings.set_aside(reading)
            self._some.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self._pause_s)
            waiting = [reading for reading in self._readings.whole_tables if reading.is_set_aside]
            for reading in waiting:
                if await self._is_readable(reading) and self._readings.by_oid.get(reading.oid) is reading:
                    log.info("table_readable", table=reading.full_name)
                    self._readings.take_up(reading)
                    self._arriving.call()
            if not waiting:
                self._some.clear()

    async def _is_readable(self, reading: TableTask) -> bool:
        """Whether the table is not what it was when it failed, or what failed would succeed now, or fail for another reason, of
        which the table is told then."""
        chunk, recipe, obstacle = reading.failed, reading.failed_recipe, reading.obstacle
        if chunk is None or recipe is None or obstacle is None:
            return True
        try:
            sql = await connect_reader(self._login)
        except WalgateError:  # the stream tells it, if it cannot go on either
            return False
        try:
            found = await survey(sql, self._publications, [reading.oid])
            if reading.oid not in found:
                return False
            is_changed = found[reading.oid].fingerprint != recipe.surveyed.fingerprint
            return is_changed or await is_readable(sql, chunk, recipe, obstacle.sqlstate)
        except (WalgateError, *DRIVER_ERRORS):
            return False
        finally:
            sql.terminate()
