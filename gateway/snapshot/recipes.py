"""How relations are read now: looked up in the catalog, announced as the stream would, with the encoder of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import asyncpg

from gateway.config.settings import Settings
from gateway.errors import UnwritableRelation
from gateway.postgres.errors import DRIVER_ERRORS, classify_exception
from gateway.snapshot.announcing import RegisterRelations
from gateway.snapshot.read_plan import ReadPlan, Surveyed, as_message, recipe, survey
from gateway.snapshot.table_errors import UnwritableTable
from gateway.snapshot.table_task import TableTask
from gateway.transactions.machine import TransactionMachine


class ReadPlans:
    """`text_only`: a binary value came that cannot be encoded. Raises classified errors and UnwritableTable."""

    def __init__(
        self,
        settings: Settings,
        sql: asyncpg.Connection,
        machine: TransactionMachine,
        announce: RegisterRelations,
        *,
        text_only: bool,
    ) -> None:
        self._source = settings.source
        self._prefix = settings.kafka.prefix
        self._in_debezium = settings.writes_debezium
        self._sql = sql
        self._machine = machine
        self._announce = announce
        self.text_only = text_only

    async def survey(self, relation_oids: Sequence[int]) -> dict[int, Surveyed]:
        """Of those that are published; without their row filters where somebody has locked one of them."""
        publications = self._source.publications
        try:
            with suppress(asyncpg.LockNotAvailableError):
                return await survey(self._sql, publications, relation_oids)
            return await survey(self._sql, publications, relation_oids, prints_filters=False)
        except DRIVER_ERRORS as error:
            raise classify_exception(error, "querying the tables of the snapshot") from error

    async def of(self, surveyed: Iterable[Surveyed]) -> list[ReadPlan]:
        tables = list(surveyed)
        relations = [as_message(each.relation) for each in tables]
        if not relations:
            return []
        try:
            announced = await self._announce([(each, self._machine.in_force(each.relation_oid)) for each in relations])
        except UnwritableRelation as error:
            for each in relations:
                if each.relation_oid == error.relation_oid:
                    raise UnwritableTable(error, each.relation_oid, (each.namespace, each.name)) from error
            raise
        text_only, keeps_tuples = self.text_only, self._in_debezium
        return [
            recipe(each, version, topic, self._prefix, text_only=text_only, keeps_tuples=keeps_tuples)
            for each, (version, topic) in zip(tables, announced, strict=True)
        ]

    async def of_readings(self, readings: Sequence[TableTask], now: float) -> list[tuple[TableTask, ReadPlan]]:
        """Those whose tables are there and not locked; the others wait for the next check."""
        found = await self.survey([reading.oid for reading in readings]) if readings else {}
        found = {oid: surveyed for oid, surveyed in found.items() if surveyed.row_filter is not None}
        for reading in readings:
            if reading.oid not in found:
                reading.blocked_until = now + self._source.check_interval_s
        there = [reading for reading in readings if reading.oid in found]
        return list(zip(there, await self.of(found[reading.oid] for reading in there), strict=True))
