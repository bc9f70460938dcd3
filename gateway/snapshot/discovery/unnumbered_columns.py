"""Columns that were sent without their numbers, because their ALTER TABLE had not committed yet.

Consumers then do not know that a column was renamed, or that it has a default in existing rows. The
catalog shows it when the transaction has committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import asyncpg

from gateway.postgres.classify_errors import DRIVER_ERRORS, classify_exception
from gateway.relations.attributes import ATTRIBUTES_QUERY, OPEN_TRANSACTION_QUERY, Attribute, read_attributes
from schemas.relation import RelationDescription

_LOOKS: Final = 20
_LOOKS_APART_S: Final = 0.05
"""A commit is in the stream a little before other sessions see it."""


class UnnumberedColumns:
    """The columns that each streamed or prepared transaction has sent without numbers, by xid and
    relation oid, each with the greatest number that was known in its relation."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql
        self._sent: dict[int, dict[int, tuple[int, set[str]]]] = {}

    def sent(self, xid: int, description: RelationDescription, attributes: Sequence[Attribute]) -> None:
        names = {column.name for column in description.columns if column.attnum is None}
        if names and attributes and not any(each.is_in_list for each in attributes):
            of_transaction = self._sent.setdefault(xid, {})
            number, earlier = of_transaction.get(description.oid, (attributes[-1].number, set[str]()))
            of_transaction[description.oid] = number, names | earlier

    def rolled_back(self, xid: int) -> None:
        self._sent.pop(xid, None)

    async def in_doubt(self, xid: int, *, has_committed: bool) -> list[int]:
        """Return the relations in which existing rows may have other values now, or the same in
        columns of another name. If the transaction is only prepared, or its commit is not visible,
        these are all of its relations that had columns without numbers. Raises classified
        errors."""
        sent = self._sent.pop(xid, {})
        if not sent or not has_committed:
            return [*sent]
        try:
            for _ in range(_LOOKS):
                if await self._sql.fetchval(OPEN_TRANSACTION_QUERY, 0, str(xid)) is None:
                    break
                await asyncio.sleep(_LOOKS_APART_S)
            else:
                return [*sent]
            attributes = read_attributes(await self._sql.fetch(ATTRIBUTES_QUERY, [*sent]))
        except DRIVER_ERRORS as error:
            raise classify_exception(error, f"querying the columns that transaction {xid} has altered") from error
        return [
            oid
            for oid, (number, names) in sent.items()
            if any(
                each.name in names and (each.number <= number or each.missing is not None)
                for each in attributes.get(oid, ())
            )
        ]
