"""Catalog queries that are repeated often. To fetch their many rows each time would load the event
loop as much as changes in the stream do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

_DIGEST: Final = """
SELECT pg_catalog.sha256(pg_catalog.string_agg(pg_catalog.sha256(pg_catalog.textsend(found::text)), ''::bytea))
FROM ({query}) AS found
"""
_NEVER: Final = object()


class CachedQuery:
    """A query that is repeated. Its rows are only fetched if they have changed since the last time.
    To find out, the digest that the server computes is compared with the last one."""

    def __init__(self) -> None:
        self._digest: object = _NEVER

    async def fetch(self, sql: asyncpg.Connection, query: str, *arguments: Sequence[object]) -> list[Any] | None:
        """Return the rows, or None if they have not changed since the last call. Call this within
        one PostgreSQL snapshot, so that the digest belongs to the rows. Raises the driver's
        errors."""
        digest = await sql.fetchval(_DIGEST.format(query=query), *arguments)
        if digest == self._digest:
            return None
        rows: list[Any] = await sql.fetch(query, *arguments)
        self._digest = digest
        return rows
