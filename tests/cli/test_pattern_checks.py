"""Patterns of the settings that match a table only if case is ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.cli.pattern_checks import check_patterns
from gateway.config.settings import Settings
from tests.startup.facts import ORDERS, with_publication

QUOTED = replace(ORDERS, namespace="shop", name="Orders")
PLAIN = replace(ORDERS, relation_oid=QUOTED.relation_oid + 1, namespace="shop", name="items")


def warnings(**sections: Any) -> list[str]:
    sections["source"] = {"dsn": "postgresql://u@h/d", **sections.get("source", {})}
    settings = Settings(**sections)
    facts = with_publication(all_tables=False, relations=(QUOTED, PLAIN))
    return [warning.message for warning in check_patterns(settings, facts)]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"source": {"excluded_tables": ["orders"]}}, "source.excluded_tables: orders matches nothing"),
        ({"source": {"excluded_tables": ["shop.ITEM*"]}}, "source.excluded_tables: shop.ITEM* matches nothing"),
        (
            {"errors": {"tables": [{"pattern": r"shop\.orders", "on_error": "quarantine"}]}},
            r"errors.tables: shop\.orders matches nothing",
        ),
        (
            {"kafka": {"topics": [{"pattern": r"cdc\.shop\.ord.*", "partitions": 1}]}},
            r"kafka.topics: cdc\.shop\.ord.* matches nothing",
        ),
        ({"kafka": {"topic_names": {"shop.orders": "cdc.o"}}}, "kafka.topic_names: shop.orders matches nothing"),
    ],
)
def test_a_pattern_in_the_wrong_case_is_named(sections: dict[str, Any], said: str) -> None:
    (warning,) = warnings(**sections)
    assert warning.startswith(said) and "upper and lower case" in warning


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"source": {"excluded_tables": ["Orders", "other"]}},
        {"kafka": {"topic_names": {'shop."Orders"': "cdc.o", "shop.future": "cdc.f"}}},
        {"errors": {"tables": [{"pattern": ".*", "on_error": "quarantine"}]}},
    ],
)
def test_a_pattern_that_matches_or_is_for_a_table_to_come_is_no_mistake(sections: dict[str, Any]) -> None:
    assert warnings(**sections) == []
