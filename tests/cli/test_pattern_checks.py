"""Patterns of the settings that match a table only if case is ignored, or only the end of its name,
and rules for columns of a key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.cli.pattern_checks import check_patterns
from gateway.config.settings import Settings
from gateway.errors import StopForOperator
from gateway.startup.findings import Finding
from tests.startup.facts import ORDERS, with_publication

QUOTED = replace(ORDERS, namespace="shop", name="Orders")
PLAIN = replace(ORDERS, relation_oid=QUOTED.relation_oid + 1, namespace="shop", name="items")
WHOLE = replace(
    PLAIN, relation_oid=PLAIN.relation_oid + 1, name="whole", replica_identity="FULL", identity_columns=(),
    primary_key=("id",),
)  # fmt: skip


def findings(**sections: Any) -> list[Finding]:
    sections["source"] = {"dsn": "postgresql://u@h/d", **sections.get("source", {})}
    settings = Settings(**sections)
    return list(check_patterns(settings, with_publication(all_tables=False, relations=(QUOTED, PLAIN, WHOLE))))


def warnings(**sections: Any) -> list[str]:
    return [finding.message for finding in findings(**sections)]


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
        {"kafka": {"topics": [{"pattern": r"shop\.items", "partitions": 1}]}},
        {"errors": {"tables": [{"pattern": "items", "on_error": "quarantine"}]}},
    ],
)
def test_a_pattern_that_matches_only_the_end_of_a_name_is_named(sections: dict[str, Any]) -> None:
    (warning,) = warnings(**sections)
    assert "matches nothing that is published; it matches only the end of" in warning and "shop.items" in warning


@pytest.mark.parametrize("table", ["items", "whole"])
@pytest.mark.parametrize(
    ("rule", "way"),
    [
        ({"action": "drop"}, "set action = hash and in_key = true"),
        ({"action": "null"}, "set action = hash and in_key = true"),
        ({"action": "truncate", "length": 2}, "set action = hash and in_key = true"),
        ({"action": "hash"}, "set in_key = true"),
        ({"action": "hash", "in_key": True}, None),
    ],
)
def test_a_rule_for_a_column_of_a_key_must_keep_keys_distinct(
    table: str, rule: dict[str, Any], way: str | None
) -> None:
    columns: dict[str, Any] = {"rules": [{"pattern": rf"shop\.{table}\.id", **rule}]}
    if rule["action"] == "hash":
        columns["hash_key"] = "the key of all hashes"
    found = findings(columns=columns)
    assert len(found) == (way is not None), found
    for finding in found:
        assert type(finding) is StopForOperator and finding.hint.startswith(str(way))
        assert finding.message.startswith(f"shop.{table}, column id is part of the key")


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
