"""Errors of what PostgreSQL answers to a snapshot's queries."""

from __future__ import annotations

from gateway.errors import Retry, StopForOperator


class UnreadableSnapshot(StopForOperator):
    """`pg_current_snapshot()` answered something else than documented."""


class UnreadableCopy(Retry):
    """COPY sent something else than documented, or was cut off."""
