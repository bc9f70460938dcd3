"""Databases of the newest and of the oldest server."""

from __future__ import annotations

import pytest

from tests.conftest import Database


@pytest.fixture(params=["database", "database_oldest"])
def source(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found
