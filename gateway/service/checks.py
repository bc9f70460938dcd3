"""The checks of gateway/replication, at the three moments when they are asked: before anything, before the stream, while
it runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import structlog

from gateway.kafka.position import Position
from gateway.lsn import Lsn
from gateway.operate import metrics
from gateway.operate.errors import Retry
from gateway.operate.failpoints import failpoint
from gateway.operate.settings import SourceSettings
from gateway.relations.catalog import TYPES_QUERY, read_types, unknown_type
from gateway.replication.errors import DRIVER_ERRORS, classify_exception
from gateway.replication.facts import Caution, Expected, Facts
from gateway.replication.feedback import StandbyStatus
from gateway.replication.preflight import Report, check_running, load_facts, preflight, report_of
from gateway.replication.publication import published_types
from gateway.replication.server import ServerFacts
from gateway.replication.server_checks import check_timeline
from gateway.replication.stream import ReplicationStream
from gateway.replication.timeline import check_promotion
from gateway.values.codec import has_binary_decoder
from schemas.description import TypeFacts

log = structlog.get_logger()


class Checks:
    """`sql` is the connection of the attempt; errors are raised, cautions are logged once and kept in `told`."""

    def __init__(self, sql: asyncpg.Connection, source: SourceSettings, facts: Facts, told: set[Caution]) -> None:
        self._sql = sql
        self._source = source
        self._facts = facts
        self._expected = Expected(
            slot=source.slot, publications=source.publications, two_phase=source.two_phase, failover=source.failover
        )
        self._told = told

    @classmethod
    async def load(cls, sql: asyncpg.Connection, source: SourceSettings, told: set[Caution]) -> Checks:
        return cls(sql, source, await load_facts(sql, source.slot, source.publications), told)

    @property
    def server(self) -> ServerFacts:
        return self._facts.server

    @property
    def slot_flush_lsn(self) -> Lsn | None:
        return None if self._facts.slot is None else self._facts.slot.confirmed_flush_lsn

    @property
    def transactional_id(self) -> str:
        return f"walgate.{self.server.system_identifier}.{self.server.database_oid}.{self._source.slot}"

    @property
    def relations(self) -> list[tuple[str, str]]:
        """(schema, table) of everything published."""
        publications = self._facts.publications.values()
        return sorted({(r.namespace, r.name) for publication in publications for r in publication.relations})

    def before_start(self) -> None:
        """What can be said without a position: in particular that nobody else reads the slot."""
        self._raise(preflight(self._facts, replace(self._expected, adopt_slot=True)))

    async def before_stream(self, position: Position) -> None:
        """Everything, against the position; the slot exists now."""
        self._facts = await load_facts(self._sql, self._source.slot, self._source.publications)
        self._expected = replace(
            self._expected,
            resume_lsn=position.resume_lsn,
            system_identifier=position.system_identifier,
            timeline=position.timeline,
            database=position.database,
        )
        self._raise(preflight(self._facts, self._expected))

    async def same_server(self, stream: ReplicationStream, position: Position) -> int:
        """A DSN may name several hosts, and a server may be promoted: who really sends? Returns its timeline."""
        identity = await stream.identify()
        is_other = identity.system_identifier != self.server.system_identifier
        if is_other or (not self.server.in_recovery and identity.timeline != self.server.timeline):
            raise Retry("the replication connection reached another server than the SQL connection")
        # A position of epoch 0 is of nothing that was sent: its timeline is what the server's facts said just now.
        if position.epoch > 0 and identity.timeline != position.timeline:
            self._raise(report_of(check_timeline(identity.timeline, position.timeline)))
            history = await stream.timeline_history(identity.timeline)
            findings = check_promotion(position.resume_lsn, position.timeline, identity.timeline, history)
            self._raise(report_of(findings))
        return identity.timeline

    async def use_binary(self, *, text_only: bool) -> bool:
        """`auto`: binary tuples where every published column's type has a binary decoder.

        Only a UTF8 database is read in binary: hstore_send counts bytes in the database's encoding, then converts them, and
        "char" is not converted at all.
        """
        if self._source.binary == "off" or text_only:
            return False
        if self.server.encoding != "UTF8":
            log.info("text_tuples", encoding=self.server.encoding)
            return False
        if self._source.binary == "on":
            return True
        oids = sorted(published_types(dict(self._facts.publications)))
        try:
            facts = read_types(await self._sql.fetch(TYPES_QUERY, oids))
        except DRIVER_ERRORS as error:
            raise classify_exception(error, "types of the published columns") from error
        undecodable = [facts[oid].name if oid in facts else "?" for oid in oids if not _is_decodable(oid, facts)]
        if undecodable:
            log.info("text_tuples", types_without_binary_decoder=undecodable)
        return not undecodable

    async def watch(self, stream: ReplicationStream, feedback: StandbyStatus) -> None:
        """The periodic check, until cancelled. Raises what it finds."""
        before = self._facts
        while True:
            await asyncio.sleep(self._source.check_interval_s)
            failpoint("before_periodic_check")
            now = await load_facts(self._sql, self._source.slot, self._source.publications)
            expected = replace(self._expected, resume_lsn=feedback.flush_lsn, backend_pid=stream.backend_pid)
            self._raise(check_running(before, now, expected))
            failpoint("after_periodic_check")
            metrics.SERVER_LSN.set(now.server.flush_lsn)

    def _raise(self, report: Report) -> None:
        for caution in report.cautions:
            if caution not in self._told:
                self._told.add(caution)
                log.warning("caution", message=caution.message, hint=caution.hint)
        report.raise_errors()


def _is_decodable(oid: int, facts: dict[int, TypeFacts]) -> bool:
    return has_binary_decoder(facts.get(oid) or unknown_type(oid))
