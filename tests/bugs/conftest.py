"""The servers of tests/exactly_once, which a test may break."""

from __future__ import annotations

from tests.exactly_once.conftest import own_database, own_postgres

__all__ = ["own_database", "own_postgres"]
