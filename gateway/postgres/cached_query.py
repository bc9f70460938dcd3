"""Queries of the catalog that are made again and again, where each row costs the loop as much as a
change of the stream does."""

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
    """One query. Its rows come when they are not those of the last time: the server compares their
    digest."""

    def __init__(self) -> None:
        self._digest: object = _NEVER

    async def fetch(self, sql: asyncpg.Connection, query: str, *arguments: Sequence[object]) -> list[Any] | None:
        """None: the same rows as the last time. Only in one snapshot of the database: they must be
        those of the digest. Raises what the driver raises."""
        digest = await sql.fetchval(_DIGEST.format(query=query), *arguments)
        if digest == self._digest:
            return None
        rows: list[Any] = await sql.fetch(query, *arguments)
        self._digest = digest
        return rows
