"""Compare relations with their state at the last check, to find rows that were added, removed or
changed without an event."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from gateway.names import qualified
from gateway.postgres.cached_query import CachedQuery
from gateway.postgres.classify_errors import DRIVER_ERRORS, classified_errors, classify_exception
from gateway.postgres.connection import transaction
from gateway.snapshot.discovery.content_query import PLAN, content_query
from gateway.snapshot.progress_log import log_unsent_at_all
from gateway.snapshot.rules.published_content import LeafContent, PublishedContent, new_files, read_contents, unsent
from gateway.snapshot.sql import FILE_FACTS, HORIZON, has_old_row

_COMPARABLE_XIDS: Final = (1 << 31) - 100_000_000
"""Rows have 32-bit transaction ids: ids that are farther apart cannot be compared."""
MAX_CHECK_S: Final = 5.0
"""Seconds that one check may spend on examining new files. The remaining tables are examined at the
next check."""


@dataclass(frozen=True, slots=True)
class CatalogCheck:
    """The relations as of one PostgreSQL snapshot. `until`: the time of `time.monotonic` after
    which no more new files are examined."""

    contents: dict[int, PublishedContent]
    horizon: int
    until: float

    def is_as_before(self, oid: int, before: PublishedContent) -> bool:
        """Return whether a relation is unchanged. If so, keep the object `before`, so that the next
        comparison only compares identities."""
        now = self.contents[oid]
        if now is before:
            return True
        if now == before:
            self.contents[oid] = before
            return True
        return False


class Comparison:
    """Load the catalog entries and files that relations depend on, and compare them with earlier
    ones. Methods raise WalgateError.

    `publications` are names. `trusts_unreadable`: if the role may not read a table, treat its new
    file as a copy of the old one.
    """

    def __init__(
        self, sql: asyncpg.Connection, publications: Sequence[str], *, trusts_unreadable: bool = False
    ) -> None:
        self._sql = sql
        self._trusts_unreadable = trusts_unreadable
        self._publications = list(publications)
        self._query = CachedQuery()
        self._contents: dict[int, PublishedContent] = {}

    async def check(self, relation_oids: Iterable[int]) -> CatalogCheck:
        query = content_query(self._sql.get_server_version().major)
        with classified_errors("querying files and partitions"):
            async with transaction(self._sql, isolation="repeatable_read", readonly=True):
                await self._sql.execute(PLAN)
                horizon: int = await self._sql.fetchval(HORIZON)
                rows = await self._query.fetch(self._sql, query, sorted(relation_oids), self._publications)
        if rows is not None:
            self._contents = read_contents(rows, horizon)
        return CatalogCheck(self._contents, horizon, time.monotonic() + MAX_CHECK_S)

    async def reason(self, before: PublishedContent, now: PublishedContent, horizon: int, until: float) -> str | None:
        """Return the reason why rows may have been added, removed or changed without an event since
        transaction `horizon`. Return "" if nothing indicates that they have, or None if it cannot
        be decided yet."""
        copied = set()
        for leaf in new_files(before, now) if before.account is not None else ():
            if time.monotonic() > until:
                return None
            is_copy = await keeps_old_row(self._sql, leaf, horizon, unreadable=self._trusts_unreadable)
            if is_copy is None:
                return None
            if is_copy:
                copied.add(leaf.oid)
        return unsent(before, now, copied)


class UnsentChangesLog:
    """Log the tables whose rows may have changed without an event, while the gateway takes no
    snapshots. The contents that it compares with are not stored."""

    def __init__(self, sql: asyncpg.Connection, publications: Sequence[str]) -> None:
        self._comparison = Comparison(sql, publications, trusts_unreadable=True)
        self._contents: dict[int, PublishedContent] = {}
        self._horizons: dict[int, int] = {}

    async def check(self, relation_oids: Iterable[int]) -> None:
        check = await self._comparison.check(relation_oids)
        for oid, now in list(check.contents.items()):
            before = self._contents.get(oid)
            reason: str | None = ""
            if before is not None and not check.is_as_before(oid, before):
                reason = await self._comparison.reason(before, now, self._horizons[oid], check.until)
            if reason is None:
                continue
            self._contents[oid], self._horizons[oid] = check.contents[oid], check.horizon
            if reason:
                log_unsent_at_all(now.schema, now.name, reason)


async def keeps_old_row(
    sql: asyncpg.Connection, leaf: LeafContent, horizon: int, *, unreadable: bool = False
) -> bool | None:
    """Return whether the table has a row from before transaction `horizon`.

    False also means that this is unknown. Return `unreadable` if the role may not read the table.
    Return None if the table is locked, was dropped, or has yet another file: the next check
    decides. Raises WalgateError.
    """
    try:
        facts = await sql.fetchrow(FILE_FACTS, leaf.oid)
        if facts is None or facts["filenode"] != leaf.filenode:
            return None
        if horizon <= 0 or facts["next_xid"] - horizon >= _COMPARABLE_XIDS:
            return False
        return await _has_old_row(sql, qualified(facts["nspname"], facts["relname"]), horizon)
    except asyncpg.InsufficientPrivilegeError:
        return unreadable
    except DRIVER_ERRORS as error:
        raise classify_exception(error, "looking into the new file of a table") from error


async def _has_old_row(sql: asyncpg.Connection, table: str, horizon: int) -> bool | None:
    try:
        async with transaction(sql, readonly=True):
            await sql.execute("SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '1s'")
            return bool(await sql.fetchval(has_old_row(table), str(horizon & 0xFFFFFFFF)))
    except asyncpg.LockNotAvailableError:
        return None
    except asyncpg.InsufficientPrivilegeError:
        raise
    except asyncpg.PostgresError:  # the table is large and new, or unreadable: unknown
        return False
