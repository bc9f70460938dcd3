"""Tables that are published and were never read, and rows that came, went or changed without an event."""

from __future__ import annotations

from dataclasses import replace

import asyncpg

from gateway.config.settings import SnapshotSettings
from gateway.postgres.cached_query import CachedQuery
from gateway.postgres.connection import transaction
from gateway.postgres.errors import DRIVER_ERRORS, classify_exception
from gateway.postgres.publication import PublicationLoader
from gateway.snapshot.progress_log import tell_late, tell_quarantined, tell_unsent
from gateway.snapshot.relation_files import RelationFiles, read_contents, unsent
from gateway.snapshot.sql import CONTENT
from gateway.snapshot.stored_state import TableState
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks


class Discovery:
    """`is_first`: nothing was delivered before this session, so that all tables are new. `is_late`: something was, without
    snapshots.

    `published`: (schema, name) -> oid, as of the last look.
    """

    def __init__(
        self,
        settings: SnapshotSettings,
        sql: asyncpg.Connection,
        publications: PublicationLoader,
        readings: TableTasks,
        *,
        is_first: bool,
        is_late: bool,
    ) -> None:
        self._settings = settings
        self._sql = sql
        self._publications = publications
        self._readings = readings
        self._is_first = is_first
        self._is_late = is_late
        self.published: dict[tuple[str, str], int] = {}
        self._content_rows = CachedQuery()
        self._found: dict[int, RelationFiles] = {}
        """Of the last look at what is known."""

    async def look(self) -> None:
        """Raises classified errors."""
        readings = self._readings
        publications = await self._publications.facts(self._sql)
        relations = {r.relation_oid: r for facts in publications.values() for r in facts.relations}
        for oid in [oid for oid in {*readings.by_oid, *readings.known} if oid not in relations]:
            readings.leave(oid)
        self.published = {(r.namespace, r.name): oid for oid, r in relations.items()}
        new = [each for oid, each in relations.items() if oid not in readings.known and oid not in readings.by_oid]
        quarantined = [each for each in new if each.relation_oid in readings.quarantined]
        if quarantined:
            new = [each for each in new if each not in quarantined]
            tell_quarantined([f"{relation.namespace}.{relation.name}" for relation in quarantined])
        for relation in quarantined:
            readings.never_read(TableState(relation.relation_oid, relation.namespace, relation.name, ""))
        is_late = self._is_late or self._settings.mode != "initial"
        if self._is_late and new and self._settings.mode == "initial":
            tell_late([f"{relation.namespace}.{relation.name}" for relation in new])
        elif new and not is_late:
            readings.begin_snapshot(len(new))
        for relation in new:
            oid = relation.relation_oid
            state = TableState(oid, relation.namespace, relation.name, "" if is_late else readings.snapshot_id)
            if is_late:
                readings.never_read(state)
            elif oid in readings.left:
                readings.left.discard(oid)
                readings.wait(TableTask(replace(state, purpose="REPLACE"), misses_keys=True))
            else:  # waiting needs no record: what is published and not known, is read
                readings.by_oid[oid] = TableTask(state, encoded=state, misses_keys=not self._is_first)
        self._is_late = self._is_first = False
        await self._compare()

    async def _compare(self) -> None:
        """Whether rows of what is known have come, gone or changed without an event."""
        readings = self._readings
        try:
            async with transaction(self._sql, isolation="repeatable_read", readonly=True):
                rows = await self._content_rows.fetch(self._sql, CONTENT, sorted(readings.known))
        except DRIVER_ERRORS as error:
            raise classify_exception(error, "querying files and partitions") from error
        if rows is not None:
            self._found = read_contents(rows)
        found, known = self._found, readings.contents
        changed = [
            (oid, now, known.get(oid))
            for oid, now in found.items()
            if now is not known.get(oid) and now != known.get(oid)
        ]
        reads = self._settings.mode == "initial" and self._settings.read_again
        for oid, now, before in changed:
            reason = "" if before is None else unsent(before, now)
            if reason and oid not in readings.quarantined:
                tell_unsent(now, reason, reads=reads)
            if reason and reads and oid not in readings.quarantined:
                readings.begin_snapshot(1)
                readings.queue(oid, now.schema, now.name, "REPLACE")
            else:
                readings.note_content(oid, now)
