"""What the engine needs of the gateway's announcer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.pgoutput import Relation
from gateway.transactions.transaction import RelationVersion


class RegisterRelations(Protocol):
    async def __call__(
        self, relations: Sequence[tuple[Relation, RelationVersion | None]]
    ) -> list[tuple[RelationVersion, str]]:
        """Of each relation, given with what is in force of it, the version that its rows are encoded with, and its topic: both
        are there when it returns."""
        ...
