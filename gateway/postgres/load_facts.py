"""One look at PostgreSQL: publications, slot, server, in this order."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from gateway.postgres.publication import PublicationLoader, publication_facts
from gateway.postgres.server import server_facts
from gateway.postgres.slot import slot_facts
from gateway.startup.facts import Facts


async def load_facts(
    sql: asyncpg.Connection, slot: str, publications: Sequence[str] | PublicationLoader, moment: int = 0
) -> Facts:
    """The server last: its end of the WAL must not be older than the slot's LSNs. A `PublicationLoader` is for who comes again: its
    first look costs more."""
    if isinstance(publications, PublicationLoader):
        publications_now = await publications.facts(sql)
    else:
        publications_now = await publication_facts(sql, publications)
    slot_now = await slot_facts(sql, slot)
    return Facts(await server_facts(sql), slot_now, publications_now, moment)
