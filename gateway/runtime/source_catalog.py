"""Read PostgreSQL's catalog, at the start and while the stream runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.failpoints import failpoint
from gateway.names import transactional_id
from gateway.postgres.asyncpg_internals import address_of
from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.credentials import Credentials, login_of, names_one_host
from gateway.postgres.publication import PublicationLoader, tables_that_held_rows
from gateway.postgres.server import load_facts
from gateway.postgres.slot import advance_slot, create_slot, drop_slot, slot_facts
from gateway.relations.describe import describe
from gateway.relations.type_catalog import TYPES_QUERY, read_types, unknown_type
from gateway.runtime.assign_column_rules import protect
from gateway.snapshot.discovery.unsent_changes import UnsentChangesLog
from gateway.snapshot.read_plan import as_message
from gateway.startup.facts import Expected, Facts, ServerFacts, SlotFacts, published_types
from gateway.startup.findings import OperatorWarning
from gateway.startup.periodic_check import check_running
from gateway.startup.publication_checks import added_tables, removed_tables, rows_not_sent
from gateway.transactions.position import Position
from gateway.values.column_codec import has_binary_decoder
from schemas.lsn import Lsn
from schemas.relation import RelationDescription, TypeFacts

log = structlog.get_logger()
_NAMED_TABLES = 10


def expected_of(settings: Settings) -> Expected:
    """Return the settings that a start and `walgate check` compare with the facts."""
    source = settings.source
    return Expected(
        slot=source.slot,
        publications=source.publications,
        two_phase=source.two_phase,
        failover=source.failover,
        keys_needed=settings.writes_debezium and settings.debezium.compacted_topics,
        advance_bytes=source.wal_budget_bytes if source.on_wal_budget == "advance" else None,
        is_only_host=names_one_host(source.dsn.get_secret_value()),
    )


class SourceCatalog:
    """Read the catalog over `sql`, a connection of the session. `moment` returns the next moment of
    the process. A warning is logged once, and kept in `logged`."""

    def __init__(
        self,
        sql: asyncpg.Connection,
        settings: Settings,
        moment: Callable[[], int],
        logged: set[OperatorWarning],
        *,
        reads_new_tables: bool = True,
    ) -> None:
        self._sql = sql
        self._source = settings.source
        self._columns = settings.columns
        self._moment = moment
        self._logged = logged
        self._reads_new_tables = reads_new_tables
        self._takes_snapshots = settings.takes_snapshots
        self._unsent = UnsentChangesLog(sql, settings.source.publications)
        self._facts: Facts | None = None
        self.publications = PublicationLoader(settings.source.publications, settings.source.excluded_tables)
        self.expected = expected_of(settings)

    async def look(self) -> Facts:
        self._facts = await load_facts(self._sql, self._source.slot, self.publications, self._moment())
        return self._facts

    @property
    def facts(self) -> Facts:
        """The facts that `look` read last."""
        assert self._facts is not None
        return self._facts

    @property
    def server(self) -> ServerFacts:
        return self.facts.server

    async def backend_pid(self) -> int:
        """Return the process ID of the server process that answers these queries and creates the
        slot. Raises WalgateError."""
        with classified_errors("querying the process ID"):
            pid: int = await self._sql.fetchval("SELECT pg_catalog.pg_backend_pid()")
        return pid

    @property
    def login(self) -> Credentials:
        """The login of further sessions, which connect to the server that answers these queries.
        Another host of the DSN may be a standby, or an old primary."""
        return login_of(self._source, address_of(self._sql))

    @property
    def transactional_id(self) -> str:
        return self.transactional_id_of(self.server.system_identifier)

    def transactional_id_of(self, system_identifier: str) -> str:
        """Return the slot's transactional id on a server with this system identifier."""
        return transactional_id(system_identifier, self.server.database_oid, self._source.slot)

    @property
    def relations(self) -> list[tuple[str, str]]:
        """The (schema, table) of every published relation, sorted."""
        publications = self.facts.publications.values()
        return sorted({(r.namespace, r.name) for publication in publications for r in publication.relations})

    async def describe_relations(self) -> list[RelationDescription]:
        """Describe the published relations as the catalog has them now."""
        publications = self.facts.publications
        relations = {r.relation_oid: r for publication in publications.values() for r in publication.relations}
        types = await self._types(sorted(published_types(publications)))
        return [
            protect(
                describe(
                    as_message(each),
                    types,
                    is_key_whole={column.name for column in each.columns}.issuperset(each.generated_identity),
                ),
                self._columns,
            )
            for each in relations.values()
        ]

    async def _types(self, oids: list[int]) -> dict[int, TypeFacts]:
        with classified_errors("querying the types of the published columns"):
            return read_types(await self._sql.fetch(TYPES_QUERY, oids))

    def warn(self, warnings: tuple[OperatorWarning, ...]) -> None:
        for warning in warnings:
            if warning not in self._logged:
                self._logged.add(warning)
                log.warning("warning", message=warning.message, hint=warning.hint)

    async def create_slot(self) -> Lsn:
        source = self._source
        log.info(
            "creating_slot",
            slot=source.slot,
            note="PostgreSQL waits until all open transactions that have written data have ended",
        )
        lsn = await create_slot(
            self._sql,
            source.slot,
            version_num=self.server.version_num,
            two_phase=source.two_phase,
            failover=source.failover,
        )
        log.info("slot_created", slot=source.slot, resume_lsn=str(lsn))
        return lsn

    async def slot(self) -> SlotFacts | None:
        """Read the slot as it is now; `facts` does not change."""
        return await slot_facts(self._sql, self._source.slot)

    async def drop_slot(self) -> None:
        await drop_slot(self._sql, self._source.slot)
        log.warning("slot_dropped", slot=self._source.slot)

    async def advance_slot(self, end_lsn: Lsn) -> None:
        await advance_slot(self._sql, self._source.slot, end_lsn)

    async def use_binary(self, *, text_only: bool) -> bool:
        """Return whether to request binary tuples. With source.binary = auto, they are used if the
        type of every published column has a binary decoder.

        Only a UTF8 database is read in binary format: hstore_send counts bytes in the database's
        encoding and converts them afterwards, and "char" is not converted at all.
        """
        if not self.may_be_binary(text_only=text_only):
            if self.server.encoding != "UTF8":
                log.info("text_tuples", encoding=self.server.encoding)
            return False
        if self._source.binary == "on":
            return True
        oids = sorted(published_types(self.facts.publications))
        facts = await self._types(oids)
        types = (facts.get(oid) or unknown_type(oid, name="?") for oid in oids)
        undecodable = [each.name for each in types if not has_binary_decoder(each)]
        if undecodable:
            log.info("text_tuples", types_without_binary_decoder=undecodable)
        return not undecodable

    def may_be_binary(self, *, text_only: bool) -> bool:
        """Return whether any value may be requested in binary format."""
        return self._source.binary != "off" and not text_only and self.server.encoding == "UTF8"

    async def watch(self, position: Position, backend_pid: int, check: Callable[[Facts], None]) -> None:
        """Run the periodic check, and `check` with it, until cancelled. Raises errors that end the
        session."""
        seen = self.facts
        expected = replace(self.expected, timeline=position.timeline, backend_pid=backend_pid)
        if not self._takes_snapshots:
            await self._unsent.check(_relation_oids(seen))
        while True:
            await asyncio.sleep(self._source.check_interval_s)
            failpoint("before_periodic_check")
            last, now = self.facts, await self.look()
            check(now)
            _log_removed([relation.full_name for relation in removed_tables(last, now)])
            added = added_tables(last, now)
            if added:
                names = [relation.full_name for relation in added]
                log.info("tables_added", count=len(names), tables=names[:_NAMED_TABLES])
            if not self._takes_snapshots:
                await self._unsent.check(_relation_oids(now))
            if added and not self._reads_new_tables:
                held = await tables_that_held_rows(self._sql, self._source.publications, added)
                self.warn((rows_not_sent(held),) if held else ())
            report = check_running(seen, now, expected)
            # A publication that is missing is compared with its last facts when it is back.
            seen = replace(now, publications={**seen.publications, **now.publications})
            self.warn(report.warnings)
            report.raise_errors()
            failpoint("after_periodic_check")


def _relation_oids(facts: Facts) -> set[int]:
    return {relation.relation_oid for publication in facts.publications.values() for relation in publication.relations}


def _log_removed(names: list[str]) -> None:
    if names:
        log.warning(
            "tables_removed",
            count=len(names),
            tables=names[:_NAMED_TABLES],
            reason="they are no longer published, or were dropped: their changes are no longer sent",
            hint="if this is not intended, add them to the publication again (ALTER PUBLICATION ... ADD TABLE), and take a new "
            "snapshot of them: changes that were made in between are not sent. Topics and mirrors keep what they have",
        )
