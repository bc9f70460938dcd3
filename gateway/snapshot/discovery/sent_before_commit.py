"""Columns as they were sent before the ALTER TABLE that made them had committed.

Such a column may have no number, or that of another column. Consumers then do not know that it was
renamed, or that it has a default in existing rows. The catalog shows it when the transaction has
committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from gateway.postgres.classify_errors import classified_errors
from gateway.relations.attributes import ATTRIBUTES_QUERY, Attribute, are_explained, read_attributes
from schemas.relation import RelationDescription

_LOCK_QUERY: Final = """
select exists (
    select from pg_catalog.pg_locks l
    where l.virtualtransaction = t.virtualtransaction and l.locktype = 'relation' and l.relation = $1
      and l.mode = 'AccessExclusiveLock' and l.granted)
from pg_catalog.pg_locks t
where t.locktype = 'transactionid' and t.transactionid = $2::pg_catalog.text::pg_catalog.xid
  and t.mode = 'ExclusiveLock' and t.granted
"""
_ALTERED_QUERY: Final = """
select distinct attrelid::pg_catalog.int8 from pg_catalog.pg_attribute
where attrelid = any ($1::pg_catalog.oid[]) and attnum > 0
  and pg_catalog.age(xmax) <= pg_catalog.age($2::pg_catalog.text::pg_catalog.xid)
"""
"""Return those of the relations $1 of which the open transaction $2, or a subtransaction of it, has
altered or dropped a column. Its id is then the xmax of the column's row, as other sessions see it.
"""
_LOOKS: Final = 20
_LOOKS_APART_S: Final = 0.05


@dataclass(slots=True)
class _Columns:
    """Columns of one relation as a transaction has sent them. `greatest`: the greatest number in
    the catalog before it; `numbers`: pairs of name and number; `were_explained`: whether the
    catalog had all of them."""

    greatest: int
    numbers: set[tuple[str, int | None]] = field(default_factory=set)
    were_explained: bool = True

    def may_be_others(self, attributes: Sequence[Attribute]) -> bool:
        """Return whether existing rows may have other values in these columns than consumers
        expect, now that the relation has these attributes."""
        now = {each.name: each for each in attributes if each.name is not None}
        return any(
            (name in now and now[name].number != number)
            if number is not None
            else name not in now or now[name].number <= self.greatest or now[name].missing is not None
            for name, number in self.numbers
        )


class SentBeforeCommit:
    """The columns that each streamed or prepared transaction has sent, by xid and relation oid."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql
        self._sent: dict[int, dict[int, _Columns]] = {}

    def note(self, xid: int, description: RelationDescription, attributes: Sequence[Attribute]) -> None:
        """Record the columns of a Relation message. `attributes`: those of the catalog."""
        if attributes and not any(each.is_in_list for each in attributes):
            sent = self._sent.setdefault(xid, {}).setdefault(description.oid, _Columns(attributes[-1].number))
            sent.numbers |= {(column.name, column.attnum) for column in description.columns}
            sent.were_explained &= are_explained([column.name for column in description.columns], attributes, xid)

    def rolled_back(self, xid: int) -> None:
        self._sent.pop(xid, None)

    async def in_doubt(self, xid: int, *, has_committed: bool) -> list[int]:
        """Return the relations whose existing rows may have values that consumers do not expect.
        Until other sessions see the transaction end, these are the relations that it has altered,
        and those whose columns the catalog did not explain. Raises WalgateError."""
        sent = self._sent.pop(xid, {})
        if not sent:
            return []
        is_visible = has_committed and await is_seen(self._sql, xid)
        with classified_errors(f"querying the columns that transaction {xid} has altered"):
            if not is_visible:
                altered = {row[0] for row in await self._sql.fetch(_ALTERED_QUERY, [*sent], str(xid))}
                if await holds_lock(self._sql, 0, xid) is not None:  # so it had not ended before
                    return [oid for oid, columns in sent.items() if oid in altered or not columns.were_explained]
            attributes = read_attributes(await self._sql.fetch(ATTRIBUTES_QUERY, [*sent]))
        return [oid for oid, columns in sent.items() if oid in attributes and columns.may_be_others(attributes[oid])]


async def holds_lock(sql: asyncpg.Connection, relation_oid: int, xid: int) -> bool | None:
    """Return whether a transaction has the lock on a relation without which it cannot have changed
    its columns; None if the transaction has ended. A prepared transaction has not ended."""
    with classified_errors(f"querying the locks of transaction {xid}"):
        found: bool | None = await sql.fetchval(_LOCK_QUERY, relation_oid, str(xid))
    return found


async def is_seen(sql: asyncpg.Connection, xid: int, relation_oid: int | None = None) -> bool:
    """Wait until other sessions see the end of a transaction whose commit was received, which is
    after its synchronous standbys have answered. Return False if they do not after a second.
    `relation_oid`: it is enough that the transaction cannot have altered this relation."""
    for _ in range(_LOOKS):
        found = await holds_lock(sql, relation_oid or 0, xid)
        if found is None or (relation_oid is not None and not found):
            return True
        await asyncio.sleep(_LOOKS_APART_S)
    return False
