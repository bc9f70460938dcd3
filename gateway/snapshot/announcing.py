"""What the engine needs of the gateway's announcer."""

from __future__ import annotations

from typing import Protocol

from gateway.pgoutput import Relation
from gateway.transactions.transaction import RelationVersion


class Announce(Protocol):
    async def __call__(self, relation: Relation, in_force: RelationVersion | None) -> tuple[RelationVersion, str]:
        """The version that the relation's rows are encoded with, and its topic: both are there when it returns."""
        ...
