"""What a status makes of the registry's answers."""

from __future__ import annotations

from gateway.service.status_report import _column_count
from schemas.relation import change_schema
from tests.events.rows import ALL, relation


def test_columns_are_counted_in_the_row() -> None:
    description = relation(ALL, (0, 5, 8))
    assert _column_count(change_schema(description, "cdc")) == len(description.columns)
