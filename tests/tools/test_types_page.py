"""docs/types.md is what the code decides, and a fresh database has no type that is not in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.relations.type_catalog import TYPES_QUERY, read_types
from gateway.values.built_in_types import built_in_types
from tests.conftest import Database
from tools.types_page import render_table

PAGE = Path(__file__).parents[2] / "docs" / "types.md"
FIRST_USER_OID = 16384


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text("utf-8") == render_table(), "run python -m tools.types_page > docs/types.md"


@pytest.mark.integration
async def test_the_page_lists_every_type_of_a_fresh_database(database: Database) -> None:
    connection = await database.connect()
    try:
        rows = await connection.fetch("SELECT oid::int8, typname FROM pg_type WHERE oid < $1", FIRST_USER_OID)
        words = set(PAGE.read_text("utf-8").replace("`", " ").replace(",", " ").split())
        assert len(rows) > 600
        assert [name for _, name in rows if name not in words] == []
        found = read_types([tuple(row) for row in await connection.fetch(TYPES_QUERY, [row[0] for row in rows])])
        listed = {facts.oid: facts for facts in built_in_types()}
        assert listed.keys() == found.keys()
        for oid, facts in found.items():
            known = listed[oid]
            for fact in ("namespace", "name", "kind", "sends_binary", "delimiter", "base_typmod"):
                assert getattr(known, fact) == getattr(facts, fact), (facts.name, fact)
            assert (known.element and known.element.oid) == (facts.element and facts.element.oid)
    finally:
        await connection.close()
