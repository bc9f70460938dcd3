"""Partitions, publications with lists and filters, generated columns, odd names, many columns: what
was delivered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.evolution.delivered import Delivered
from tests.evolution.scene import MANY

pytestmark = pytest.mark.integration


def told(played: Delivered, table: str) -> list[tuple[str, Any]]:
    """(operation, new row or old key) of committed events; without the many rows of an open
    transaction."""
    found = [(each.event["op"], each.event["after"] or each.event["old_key"]) for each in played.committed(table)]
    return [each for each in found if each[1] is None or each[1]["id"] < 1000]


def many(played: Delivered, table: str) -> list[dict[str, Any]]:
    return [row for row in played.rows(table) if row["id"] >= 1000]


def test_partitions_are_relations_of_their_own(played: Delivered) -> None:
    assert told(played, "part_low") == [
        ("INSERT", {"id": 1, "v": "a"}),
        ("DELETE", {"id": 1}),  # moved to the other partition
        ("INSERT", {"id": 2, "v": "low"}),
        ("INSERT", {"id": 3, "v": "alone"}),
    ]
    assert told(played, "part_high") == [
        ("INSERT", {"id": 101, "v": "b"}),
        ("INSERT", {"id": 102, "v": "moved"}),
        ("TRUNCATE", None),
        ("TRUNCATE", None),  # one in each partition of the topic
    ]
    assert told(played, "part_new") == [
        ("INSERT", {"v": "own", "id": 201}),
        ("INSERT", {"v": "through the root", "id": 202}),
        ("INSERT", {"v": "x", "id": 203, "more": 7}),
    ]
    assert many(played, "part_rest") == [{"id": 1000 + n, "v": "rest", "more": 1} for n in range(MANY)]
    assert many(played, "part_many") == [{"more": 2, "v": "many", "id": 2000 + n} for n in range(MANY)]
    assert played.sent("part") == []


def test_a_moved_row_is_a_delete_and_an_insert_of_one_transaction(played: Delivered) -> None:
    (gone,) = [each.event for each in played.committed("part_low") if each.event["op"] == "DELETE"]
    (come,) = [each.event for each in played.committed("part_high") if (each.event["after"] or {}).get("id") == 102]
    assert (gone["xid"], gone["ordinal"], come["ordinal"]) == (come["xid"], 0, 1)


def test_partitions_through_their_root_are_one_relation(played: Delivered) -> None:
    """In the form of the root, whatever the order of columns in the partition; a detached partition
    is not published."""
    assert told(played, "roots.part") == [
        ("INSERT", {"id": 1, "v": "a"}),
        ("INSERT", {"id": 101, "v": "b"}),
        ("DELETE", {"id": 1}),
        ("INSERT", {"id": 102, "v": "moved"}),
        ("INSERT", {"id": 2, "v": "low"}),
        ("INSERT", {"id": 202, "v": "through the root"}),
        ("INSERT", {"id": 203, "v": "x", "more": 7}),
    ]
    assert many(played, "roots.part") == [
        *({"id": 1000 + n, "v": "rest", "more": 1} for n in range(MANY)),
        *({"id": 2000 + n, "v": "many", "more": 2} for n in range(MANY)),
    ]
    assert [played.sent(f"roots.{name}") for name in ("part_low", "part_high", "part_new", "part_many")] == [[]] * 4


def test_generated_columns_are_absent_unless_the_publication_has_them(played: Delivered) -> None:
    rows = [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2},
        {"id": 3, "a": 3},
        {"id": 4, "a": 4, "twice": 99},  # no longer generated
        {"id": 4, "a": 5, "twice": 99},
    ]
    assert played.rows("generated") == rows


def test_stored_generated_columns_are_sent_where_published(played: Delivered) -> None:
    assert played.rows("made.generated") == [
        {"id": 1, "a": 1, "twice": 2},
        {"id": 2, "a": 2, "twice": 4},
        {"id": 3, "a": 3, "twice": 6, "thrice": 9},
        {"id": 4, "a": 4, "twice": 99, "thrice": 12},
        {"id": 4, "a": 5, "twice": 99, "thrice": 15},
    ]


def test_a_column_list_leaves_columns_out_and_a_filter_rows(played: Delivered) -> None:
    assert told(played, "picked.listed") == [
        ("INSERT", {"id": 1, "a": 10}),
        ("INSERT", {"id": 2, "a": None}),  # null, while b and secret are absent
        ("DELETE", {"id": 1}),  # left what is published
        ("INSERT", {"id": 3, "a": 10}),  # entered
        ("INSERT", {"id": 4, "a": 10}),
        ("INSERT", {"id": 104, "a": 10, "b": "b"}),  # the list and the filter were widened in the transaction
        ("INSERT", {"id": 5, "a": 10, "b": "b"}),
        ("INSERT", {"id": 6, "a": 10, "b": None}),
    ]
    assert "secret" not in json.dumps([*played.versions("picked.listed").values()])


def test_an_old_row_decides_with_replica_identity_full(played: Delivered) -> None:
    events = [each.event for each in played.committed("picked.filtered")]
    assert [(each["op"], each["before"], each["after"]) for each in events] == [
        ("INSERT", None, {"id": 1, "a": 1}),
        ("DELETE", {"id": 1, "a": 1}, None),
        ("INSERT", None, {"id": 2, "a": 2}),
    ]


def test_names_that_differ_by_case_or_by_a_dot_are_topics_of_their_own(played: Delivered) -> None:
    assert played.rows("Case") == [{"id": 1, "v": "upper"}]
    assert played.rows("case") == [{"id": 1, "v": "lower"}]
    named = [(each.topic.partition(".")[2], each.event) for each in played.records]
    assert {name: event["after"]["id"] for name, event in named if name.startswith("a")} == {"a-2eb.c": 1, "a.b-2ec": 2}


def test_a_table_may_have_any_name(played: Delivered) -> None:
    name = 'My "Täble" 😀'
    assert played.rows(name) == [{"id": 1}, {"id": 2, "_x0031__x002E__x0020_k_x00E4_se_x003B__x0020__x1F9C0_": "x"}]
    *_, newest = played.versions(name).values()
    assert newest["pg.relation"]["name"] == name


def test_a_table_that_is_made_anew_is_told_by_its_schema(played: Delivered) -> None:
    first, second = played.committed("made_anew")
    assert (first.event["after"], second.event["after"]) == ({"id": 1}, {"id": 2})
    versions = played.versions("made_anew")
    assert versions[first.schema_id]["pg.relation"]["oid"] != versions[second.schema_id]["pg.relation"]["oid"]


def test_a_table_may_have_1600_columns(played: Delivered) -> None:
    rows = played.rows("wide")
    assert [len(row) for row in rows] == [1599, 1599, 1600, 1600]
    assert [{name: value for name, value in row.items() if value is not None} for row in rows] == [
        {"id": 1, "c0": 10, "c1597": 11},
        {"id": 2},
        {"id": 3, "last": 12},
        {"id": 4, "last": 13},
    ]


def test_old_and_new_events_of_the_scripts_read_each_other(played: Delivered) -> None:
    tables = ("part_low", "part_new", "roots.part", "generated", "made.generated", "picked.listed", "wide")
    for table in tables:
        for reader in played.versions(table).values():
            for record in {each.schema_id: each for each in played.sent(table)}.values():
                read = played.read_as(record, reader)["after"]
                after = record.event["after"]
                assert read == (None if after is None else {name: after.get(name) for name in read}), table
