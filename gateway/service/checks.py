"""temporary"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.replication.slot import slot_facts


@dataclass
class Server:
    system_identifier: str
    timeline: int
    database: str
    database_oid: int
    version_num: int
    wal_sender_timeout_s: float


class Checks:
    @classmethod
    async def load(cls, sql, source):
        self = cls()
        self.sql = sql
        self.source = source
        row = await sql.fetchrow(
            "select (select system_identifier::text from pg_control_system()) as s, (select timeline_id from pg_control_checkpoint()) as t,"
            " current_database() as d, (select oid from pg_database where datname=current_database()) as o, current_setting('server_version_num')::int as v,"
            " (select setting::int/1000.0 from pg_settings where name='wal_sender_timeout') as w"
        )
        self.server = Server(row["s"], row["t"], row["d"], row["o"], row["v"], float(row["w"]))
        self.relations = [(r[0], r[1]) for r in await sql.fetch("select distinct schemaname, tablename from pg_publication_tables where pubname = any($1)", list(source.publications))]
        await self.reload_slot()
        return self

    async def reload_slot(self):
        self.slot = await slot_facts(self.sql, self.source.slot)

    @property
    def transactional_id(self):
        return f"walgate.{self.server.system_identifier}.{self.server.database_oid}.{self.source.slot}"

    @property
    def slot_flush_lsn(self):
        return self.slot.confirmed_flush_lsn if self.slot else None

    @property
    def slot_is_two_phase(self):
        return self.slot.two_phase

    def use_binary(self, text_only):
        return self.source.binary == "on" or (self.source.binary == "auto" and not text_only)

    def before_start(self):
        pass

    def before_stream(self, position):
        pass

    async def same_server(self, stream):
        await stream.identify()

    async def watch(self, interval_s):
        await asyncio.Event().wait()
