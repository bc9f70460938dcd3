"""Each compatible change in each situation: what was delivered before, during and after, and who
can read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import fastavro
import pytest
from fastavro.read import SchemaResolutionError

from schemas.compatibility import incompatible_columns
from tests.evolution.delivered import Delivered, Record
from tests.evolution.scene import OPEN, PLAIN, SITUATIONS, UNDONE, UNDONE_SITUATION, new_ids, old_ids
from tests.evolution.scenes_compatible import BEGINS_AGAIN, COMPATIBLE

pytestmark = pytest.mark.integration

Row = dict[str, Any]
WIDENED: Final = {"int_to_bigint"}
"""A reader with the old schema cannot hold the new values: it must be told so."""

_CODE: Final[Callable[[int], Row]] = lambda n: {"id": n, "code": f"c{n}"}  # noqa: E731
_NAMES: Final = {"a": 1, "A": 2, "a_x002E_b": 3, "a_x0020_b": 4, "it_x0027_s_x0020__x0022_so_x0022_": 5, "_x0031_st": 6}
_MORE_NAMES: Final = {"n_x00E4_me_x0020__x1F600_": 7, "_x005F_x0041_": 8, "a_b": 9}
ROWS: Final[dict[str, tuple[Callable[[int], Row], Callable[[int], Row]]]] = {
    "add_column": (lambda n: {"id": n}, lambda n: {"id": n, "more": "x"}),
    "drop_column": (lambda n: {"id": n, "gone": "gone", "stays": "stays"}, lambda n: {"id": n, "stays": "stays"}),
    "rename_column": (lambda n: {"id": n, "old": "a"}, lambda n: {"id": n, "new": "b"}),
    "rename_key_column": (lambda n: {"id": n, "part": 7}, lambda n: {"id": n, "piece": 7}),
    "int_to_bigint": (
        lambda n: {"id": n, "v": 5, "many": [1, None]},
        lambda n: {"id": n, "v": 1 << 40, "many": [1 << 40]},
    ),
    "varchar_to_text": (
        lambda n: {"id": n, "v": "short", "w": Decimal("1.50")},
        lambda n: {"id": n, "v": "longer now", "w": Decimal("1234567.25")},
    ),
    "drop_and_create": (lambda n: {"id": n, "gone": "a"}, lambda n: {"fresh": date(2026, 1, 2), "id": n}),
    "rename_table": (lambda n: {"id": n, "v": "a"}, lambda n: {"id": n, "v": "b"}),
    "identity_full": (_CODE, _CODE),
    "identity_index": (_CODE, _CODE),
    "identity_nothing": (_CODE, _CODE),
    "identity_default": (_CODE, _CODE),
    "enum_value": (lambda n: {"id": n, "feels": "sad"}, lambda n: {"id": n, "feels": "sad", "more": "x"}),
    "domain_over_array": (lambda n: {"id": n}, lambda n: {"id": n, "path": [1, None, 3]}),
    "key_changes": (_CODE, _CODE),
    "zero_columns": (lambda n: {"id": n}, lambda n: {"id": n}),
    "names": (lambda n: {"id": n, **_NAMES}, lambda n: {"id": n, **_NAMES, **_MORE_NAMES}),
    BEGINS_AGAIN: (lambda n: {"id": n}, lambda n: {"id": n, "feels": "glad"}),
}
EACH = [(scene, situation) for scene in COMPATIBLE for situation in SITUATIONS]


def of(played: Delivered, scene: str, situation: str) -> list[Record]:
    """Committed events of a scene's table; of both names where it is renamed."""
    table = f"{scene}_{situation}"
    return played.committed(table) + (played.committed(f"{table}_renamed") if scene == "rename_table" else [])


def inserted(records: list[Record]) -> list[Row]:
    return [each.event["after"] for each in records if each.event["op"] == "INSERT"]


@pytest.mark.parametrize(("scene", "situation"), [each for each in EACH if each[0] in ROWS])
def test_each_row_has_the_form_that_it_had_when_it_was_written(played: Delivered, scene: str, situation: str) -> None:
    old, new = ROWS[scene]
    rows = [row for row in inserted(of(played, scene, situation)) if row]
    assert rows == [*map(old, old_ids(situation)), *map(new, new_ids(situation))]


@pytest.mark.parametrize(("scene", "situation"), EACH)
def test_every_version_reads_the_events_of_every_other(played: Delivered, scene: str, situation: str) -> None:
    """Also what was rolled back: its schemas are in the registry, its events in the topic."""
    table = f"{scene}_{situation}"
    versions = played.versions(table)
    samples = {record.schema_id: record for record in played.sent(table)}
    assert set(samples) <= set(versions)
    for old, new in pairwise(versions.values()):
        assert incompatible_columns(old, new) == []
    order = list(versions)
    for reader_id, reader in versions.items():
        for schema_id, record in samples.items():
            if scene in WIDENED and order.index(reader_id) < order.index(schema_id):
                with pytest.raises(SchemaResolutionError):
                    played.read_as(record, reader)
            else:
                assert_same(record.event, played.read_as(record, reader))


def assert_same(written: Row, read: Row) -> None:
    """What both schemas know is equal; a column that only the reader knows is null."""
    for name, value in written.items():
        if name in ("old_key", "before", "after") and value is not None:
            assert read[name] == {column: value.get(column) for column in read[name]}
        else:
            assert read[name] == value, name


@pytest.mark.parametrize("scene", [scene for scene in COMPATIBLE if scene in ROWS and scene != BEGINS_AGAIN])
def test_a_form_that_was_rolled_back_was_sent_and_does_not_count(played: Delivered, scene: str) -> None:
    table = f"{scene}_{UNDONE_SITUATION}"
    new = f"{table}_renamed" if scene == "rename_table" else table
    rows = [each.event["after"] for each in played.sent(new) if each.event["after"]]
    undone = [row for row in rows if row["id"] in UNDONE]
    assert undone, "the server sent nothing of it: the situation was not played"
    assert undone == [ROWS[scene][1](row["id"]) for row in undone]


@pytest.mark.parametrize("scene", COMPATIBLE)
def test_the_open_situation_was_really_streamed(played: Delivered, scene: str) -> None:
    assert any(each.event["commit_lsn"] is None for each in played.committed(f"{scene}_{OPEN}"))


# -- what a scene shows besides its rows
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_volatile_default_is_in_new_rows_and_in_rewritten_ones(played: Delivered, situation: str) -> None:
    events = of(played, "add_volatile", situation)
    rows = inserted(events)
    assert [row["id"] for row in rows] == [*old_ids(situation), *new_ids(situation)]
    old, new = rows[: len(old_ids(situation))], rows[len(old_ids(situation)) :]
    assert all(set(row) == {"id"} for row in old)
    assert len({row["more"] for row in new}) == len(new) and all(row["at"] is not None for row in new)
    assert len(events) == len(rows) + 1, "a rewrite of the table is no change of its rows"
    update = events[-1].event
    assert (update["op"], update["after"]["id"]) == ("UPDATE", 1)
    assert update["after"]["more"] is not None
    assert update["after"]["at"].isoformat() == "2026-01-02T03:04:05.678901+00:00"


@pytest.mark.parametrize("situation", SITUATIONS)
def test_unchanged_null_and_absent_are_three_things(played: Delivered, situation: str) -> None:
    events = of(played, "unchanged", situation)
    updates = [each for each in events if each.event["op"] == "UPDATE"]
    before, during, last = updates
    assert before.event["after"] == {"id": 1, "big": None, "empty": "before"}
    assert during.event["after"] == {"id": 1, "big": None, "more": "after"}
    assert last.event["after"] == {"id": 1, "big": None, "more": "after"}
    assert [each.event["unchanged"] for each in updates] == [["big"], ["big"], []]
    first = events[0].event
    assert len(first["after"]["big"]) == 3200 and first["after"]["empty"] is None and first["unchanged"] == []
    for record in events:
        columns = column_names(played.schema(record.schema_id))
        assert ("more" in columns) != ("empty" in columns), "a column that is not there is in no schema"


def column_names(schema: Any) -> list[str]:
    (row,) = [f["type"][1]["fields"] for f in schema["fields"] if f["name"] == "before"]
    return [field["name"] for field in row]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_replica_identity_full_brings_the_old_row_and_keeps_the_key(played: Delivered, situation: str) -> None:
    *rows, update, delete = of(played, "identity_full", situation)
    assert all(each.key == {"id": each.event["after"]["id"]} for each in rows)
    assert (update.key, update.event["old_key"]) == ({"id": 9000}, None)
    assert (update.event["before"], update.event["after"]["code"]) == ({"id": 9000, "code": "c9000"}, "changed")
    assert (delete.key, delete.event["before"]) == ({"id": 1}, {"id": 1, "code": "c1"})


@pytest.mark.parametrize("situation", SITUATIONS)
def test_replica_identity_index_changes_the_key(played: Delivered, situation: str) -> None:
    *rows, second, first, delete = of(played, "identity_index", situation)
    gone, update = (first, second) if first.event["key_change"] else (second, first)  # two records of one ordinal
    count = len(old_ids(situation))
    assert [each.key for each in rows[:count]] == [{"id": n} for n in old_ids(situation)]
    assert [each.key for each in rows[count:]] == [{"code": f"c{n}"} for n in new_ids(situation)]
    assert (gone.event["op"], gone.event["key_change"], gone.key) == ("DELETE", True, {"code": "c9000"})
    assert (update.event["op"], update.key, update.event["old_key"]) == (
        "UPDATE",
        {"code": "changed"},
        {"code": "c9000"},
    )
    assert (delete.key, delete.event["old_key"]) == ({"code": "c1"}, {"code": "c1"})


@pytest.mark.parametrize("situation", SITUATIONS)
def test_replica_identity_nothing_takes_the_key_away(played: Delivered, situation: str) -> None:
    rows = of(played, "identity_nothing", situation)
    count = len(old_ids(situation))
    assert all(each.key is not None for each in rows[:count])
    assert [(each.key, each.partition) for each in rows[count:]] == [(None, 0)] * len(new_ids(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_replica_identity_default_gives_the_key_back(played: Delivered, situation: str) -> None:
    *rows, update, delete = of(played, "identity_default", situation)
    count = len(old_ids(situation))
    assert all(each.key is None for each in rows[:count])
    assert [each.key for each in rows[count:]] == [{"id": n} for n in new_ids(situation)]
    assert (update.key, update.event["before"], update.event["old_key"]) == ({"id": 9000}, None, None)
    assert (delete.key, delete.event["old_key"]) == ({"id": 1}, {"id": 1})


@pytest.mark.parametrize("situation", SITUATIONS)
def test_another_primary_key_is_another_key(played: Delivered, situation: str) -> None:
    *rows, delete = of(played, "key_changes", situation)
    count = len(old_ids(situation))
    assert [each.key for each in rows[:count]] == [{"id": n} for n in old_ids(situation)]
    assert [each.key for each in rows[count:]] == [{"code": f"c{n}"} for n in new_ids(situation)]
    assert (delete.key, delete.event["old_key"]) == ({"code": "c1"}, {"code": "c1"})


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_new_label_of_an_enum_is_a_value_like_others(played: Delivered, situation: str) -> None:
    assert of(played, "enum_value", situation)[-1].event["after"] == {"id": 9000, "feels": "glad", "more": "x"}
    assert '"labels": ["sad", "glad"]' in json.dumps([*played.versions(f"enum_value_{situation}").values()][-1])


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_domain_over_an_array_is_an_array(played: Delivered, situation: str) -> None:
    update = of(played, "domain_over_array", situation)[-1].event
    assert (update["after"]["path"], update["special"]) == (None, {"path": "{{1,2},{3,4}}"})


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_row_without_columns_is_a_row(played: Delivered, situation: str) -> None:
    rows = inserted(of(played, "zero_columns", situation))
    assert [row for row in rows if not row] == [{}]


def test_the_true_names_are_in_the_schema(played: Delivered) -> None:
    (row,) = [
        f["type"][1] for f in [*played.versions(f"names_{PLAIN}").values()][-1]["fields"] if f["name"] == "before"
    ]
    names = [field.get("pg.name", field["name"]) for field in row["fields"]]
    assert names == ["id", "a", "A", "a.b", "a b", 'it\'s "so"', "1st", "näme 😀", "_x0041_", "a_b"]
    assert fastavro.parse_schema(row) is not None
