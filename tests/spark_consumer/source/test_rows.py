"""Changes as rows of a key: which changes move a row to another key, and which values a row has
then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import UnsupportedSchema
from spark_consumer.source.rows import feed, flat, keyed, last_states, versions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Tuple = tuple[Any, ...]
Change = tuple[Any, ...]
"""op, old_key, before, after, unchanged, and special if there is any."""
MakeFrame = Callable[..., DataFrame]


@pytest.fixture
def changes(spark: SparkSession) -> MakeFrame:
    """Make the typed frame of a table from its changes, each in a transaction of its own."""

    def make(row: str, old_key: str, *steps: Change) -> DataFrame:
        kinds = (
            "op string, commit_lsn long, commit_time timestamp, ordinal long, "
            f"old_key struct<{old_key}>, before struct<{row}>, after struct<{row}>, "
            "unchanged array<string>, special map<string, string>"
        )
        rows = [
            (op, day, datetime(2026, 1, day, tzinfo=UTC), 0, *rest, *([] if len(rest) == 5 else [{}]))
            for day, (op, *rest) in enumerate(steps, 1)
        ]
        return spark.createDataFrame(rows, kinds)

    return make


def rows_of(frame: DataFrame, *names: str) -> list[Tuple]:
    return [tuple(row[name] for name in names) for row in frame.toArrow().to_pylist()]


def days_of(changes: DataFrame, key: list[str], *names: str) -> list[Tuple]:
    """The versions, with the days on which they begin and end."""
    found = versions(changes, key).orderBy("valid_from").toArrow().to_pylist()
    return [
        (*(row[name] for name in names), row["valid_from"].day, row["valid_to"] and row["valid_to"].day)
        for row in found
    ]


ITEM, ITEM_KEY = "id long, big string", "id long"


def insert(*row: Any, special: dict[str, str] | None = None) -> Change:
    return "INSERT", None, None, row, [], special or {}


def test_the_old_key_of_a_row_with_replica_identity_full_is_in_before(changes: MakeFrame) -> None:
    history = changes(
        ITEM,
        ITEM_KEY,
        insert(1, "a"),
        ("UPDATE", None, (1, "a"), (1, "b"), []),
        ("UPDATE", None, (1, "b"), (10, None), ["big"]),
        ("UPDATE", None, (10, "b"), (10, "c"), []),
        ("DELETE", None, (10, "c"), None, []),
        insert(2, "d"),
        ("UPDATE", None, (2, "d"), (20, "e"), []),
    )
    moved = rows_of(keyed(history, ["id"]).orderBy("_commit_lsn", "_op"), "_op", "id", "big", "_unchanged")
    assert moved == [
        ("INSERT", 1, "a", []),
        ("UPDATE", 1, "b", []),
        ("DELETE", 1, "b", []),
        ("UPDATE", 10, "b", []),
        ("UPDATE", 10, "c", []),
        ("DELETE", 10, "c", []),
        ("INSERT", 2, "d", []),
        ("DELETE", 2, "d", []),
        ("UPDATE", 20, "e", []),
    ]
    newest = {row.id: row._op for row in feed(history, ["id"]).orderBy("_sequence").collect()}
    assert newest == {1: "DELETE", 10: "DELETE", 2: "DELETE", 20: "UPDATE"}
    assert rows_of(last_states(history, ["id"]), "id", "big") == [(20, "e")]
    assert days_of(history, ["id"], "id", "big") == [
        (1, "a", 1, 2), (1, "b", 2, 3), (10, "b", 3, 4), (10, "c", 4, 5), (2, "d", 6, 7), (20, "e", 7, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "moves"),
    [(float("nan"), float("nan"), False), (0.0, -0.0, False), (float("nan"), 1.0, True), (1.0, 2.0, True)],
)
def test_a_float_key_moves_only_to_what_is_not_equal_in_postgresql(
    changes: MakeFrame, old: float, new: float, moves: bool
) -> None:
    history = changes("x double", "x double", ("UPDATE", None, (old,), (new,), []))
    assert sorted(row._op for row in keyed(history, ["x"]).collect()) == (["DELETE"] if moves else []) + ["UPDATE"]


CODED, CODED_KEY = "code string, n long, note string", "code string, n long"
LONG = "a long code"


def test_a_toasted_key_that_was_not_sent_has_not_changed(changes: MakeFrame) -> None:
    """PostgreSQL sends the key tuple of every UPDATE of such a row."""
    history = changes(
        CODED,
        CODED_KEY,
        insert(LONG, 1, "a"),
        ("UPDATE", (LONG, 1), None, (None, 1, "b"), ["code"]),
    )
    key = ["code", "n"]
    expected: list[Tuple] = [("INSERT", LONG, 1, "a", []), ("UPDATE", LONG, 1, "b", [])]
    for function in (flat, lambda frame: keyed(frame, key)):
        found = function(history).orderBy("_commit_lsn")
        assert rows_of(found, "_op", "code", "n", "note", "_unchanged") == expected
    assert rows_of(last_states(history, key), "code", "n", "note") == [(LONG, 1, "b")]
    assert days_of(history, key, "code", "n", "note") == [(LONG, 1, "a", 1, 2), (LONG, 1, "b", 2, None)]


def test_a_key_changes_beside_its_toasted_column(changes: MakeFrame) -> None:
    history = changes(
        CODED,
        CODED_KEY,
        insert(LONG, 1, "a"),
        ("UPDATE", (LONG, 1), None, (None, 2, "b"), ["code"]),
        ("UPDATE", None, None, (LONG, 2, "c"), []),
        insert("short", 5, "d"),
        ("UPDATE", None, ("short", 5, "d"), (None, 6, "d"), ["code"]),  # since then, REPLICA IDENTITY FULL
    )
    key = ["code", "n"]
    moved = rows_of(keyed(history, key).orderBy("_commit_lsn", "_op"), "_op", "code", "n", "_unchanged")
    assert moved == [
        ("INSERT", LONG, 1, []),
        ("DELETE", LONG, 1, []),
        ("UPDATE", LONG, 2, []),
        ("UPDATE", LONG, 2, []),
        ("INSERT", "short", 5, []),
        ("DELETE", "short", 5, []),
        ("UPDATE", "short", 6, []),
    ]
    found = rows_of(last_states(history, key).orderBy("n"), "code", "n", "note")
    assert found == [(LONG, 2, "c"), ("short", 6, "d")]


def test_a_key_tuple_from_before_the_key_was_altered_tells_nothing_of_the_new_key(changes: MakeFrame) -> None:
    """In the frame, `old_key` has the columns of the newest key, null where a record has others."""
    history = changes(ITEM, ITEM_KEY, insert(1, "a"), ("UPDATE", (None,), None, (1, "b"), []))
    assert rows_of(keyed(history, ["id"]).orderBy("_commit_lsn"), "_op", "id") == [("INSERT", 1), ("UPDATE", 1)]


def test_a_key_never_has_the_value_of_a_row_that_has_left_it(changes: MakeFrame) -> None:
    """A value that was not sent with a change of key is null from then on: it is under the old
    key."""
    history = changes(
        ITEM,
        ITEM_KEY,
        insert(1, "X"),
        ("UPDATE", (1,), None, (10, None), ["big"]),
        insert(5, "Y"),
        ("UPDATE", (5,), None, (1, None), ["big"]),
        ("UPDATE", None, None, (1, None), ["big"]),
        ("UPDATE", None, None, (10, "Z"), []),
        ("UPDATE", None, None, (10, None), ["big"]),
    )
    moved = rows_of(keyed(history, ["id"]).orderBy("_commit_lsn", "_op"), "_op", "id", "_unchanged")
    assert moved[1:3] == [("DELETE", 1, []), ("UPDATE", 10, ["big"])]
    assert rows_of(last_states(history, ["id"]).orderBy("id"), "id", "big") == [(1, None), (10, "Z")]
    assert days_of(history, ["id"], "id", "big") == [
        (1, "X", 1, 2), (10, None, 2, 6), (5, "Y", 3, 4), (1, None, 4, 5), (1, None, 5, None),
        (10, "Z", 6, 7), (10, "Z", 7, None),
    ]  # fmt: skip


def test_a_key_never_has_the_value_of_a_deleted_row(changes: MakeFrame) -> None:
    history = changes(
        ITEM,
        ITEM_KEY,
        insert(1, "X"),
        ("DELETE", (1,), None, None, []),
        insert(5, "Y"),
        ("UPDATE", (5,), None, (1, None), ["big"]),
    )
    assert rows_of(last_states(history, ["id"]), "id", "big") == [(1, None)]
    assert days_of(history, ["id"], "id", "big") == [(1, "X", 1, 2), (5, "Y", 3, 4), (1, None, 4, None)]


PERIOD = "id long, valid_to timestamp, day date, local timestamp_ntz, price decimal(12,2), note string"
PERIOD_KEY = "id long, valid_to string, day string, local string, price string"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)
SOME = (NOON, NOON.date(), NAIVE, Decimal("1.50"))


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (("2026-01-01 12:00:00+00", "2026-01-01", "2026-01-01 12:00:00", "1.50"), SOME),
        (("infinity", "-infinity", "infinity", "NaN"), (None,) * 4),
        (("0044-03-15 00:00:00+00 BC", "0044-03-15 BC", "0044-03-15 00:00:00 BC", "Infinity"), (None,) * 4),
        (("10000-01-01 00:00:00+00", "10000-01-01", "10000-01-01 00:00:00", "-Infinity"), (None,) * 4),
    ],
)
def test_a_value_of_the_old_key_that_has_no_type_in_spark_is_null_as_in_the_row(
    changes: MakeFrame, texts: Tuple, values: Tuple
) -> None:
    """The row of a period ends, and is deleted. A null in a key would be any row of a MERGE."""
    key = ["id", "valid_to", "day", "local", "price"]
    later = (datetime(2026, 2, 1, tzinfo=UTC), *SOME[1:])
    special = {} if values == SOME else dict(zip(key[1:], texts, strict=True))
    history = changes(
        PERIOD,
        PERIOD_KEY,
        insert(1, *values, "a", special=special),
        ("UPDATE", (1, *texts), None, (1, *later, "b"), []),
        insert(2, *values, "c", special=special),
        ("DELETE", (2, *texts), None, None, []),
    )
    assert rows_of(flat(history).where("_op = 'DELETE'"), *key) == [(2, *values)]
    assert rows_of(last_states(history, key), *key, "note") == [(1, *later, "b")]
    if special:
        for function, frame in ((keyed, history), (keyed, history.where("op = 'DELETE'")), (feed, history)):
            with pytest.raises(PySparkException, match="in a key column"):
                function(frame, key).select("note").collect()
    else:
        moved = rows_of(keyed(history, key).orderBy("_commit_lsn", "_op"), "_op", *key)
        assert moved == [
            ("INSERT", 1, *values), ("DELETE", 1, *values), ("UPDATE", 1, *later), ("INSERT", 2, *values),
            ("DELETE", 2, *values),
        ]  # fmt: skip


SINCE, SINCE_KEY = "id long, since timestamp, start string, note string", "id long, since string, start string"


@pytest.mark.parametrize("is_full", [False, True])
def test_special_values_of_a_key_are_different_keys(changes: MakeFrame, is_full: bool) -> None:
    def special(since: str | None, start: str | None, prefix: str = "") -> dict[str, str]:
        return {prefix + name: text for name, text in (("since", since), ("start", start)) if text}

    def old(since: str | None, start: str | None, note: str) -> Tuple:
        return (None, (1, None, None, note)) if is_full else ((1, since, start), None)

    def texts(since: str, start: str) -> dict[str, str]:
        return special(since, start, "before.") if is_full else {}

    late = "24:00:00"
    history = changes(
        SINCE,
        SINCE_KEY,
        insert(1, None, None, "a", special=special("-infinity", late)),
        insert(1, None, None, "b", special=special("infinity", late)),
        insert(1, None, None, "c", special=special("0044-03-15 00:00:00+00 BC", late)),
        insert(1, None, None, "d", special=special("0100-03-15 00:00:00+00 BC", late)),
        ("DELETE", *old("infinity", late, "b"), None, [], texts("infinity", late)),
        (
            "UPDATE", *old("-infinity", late, "a"), (1, None, None, "e"), [],
            special("infinity", late) | texts("-infinity", late),
        ),
        (
            "UPDATE", *old("0044-03-15 00:00:00+00 BC", late, "c"), (1, None, "10:00:00", "f"), [],
            special("0044-03-15 00:00:00+00 BC", None) | texts("0044-03-15 00:00:00+00 BC", late),
        ),
    )  # fmt: skip
    key = ["id", "since", "start"]
    assert rows_of(last_states(history, key).orderBy("note"), *key, "note") == [
        (1, None, late, "d"), (1, None, late, "e"), (1, None, "10:00:00", "f"),
    ]  # fmt: skip
    assert sorted(days_of(history, key, "start", "note")) == [
        ("10:00:00", "f", 7, None), (late, "a", 1, 6), (late, "b", 2, 5), (late, "c", 3, 7), (late, "d", 4, None),
        (late, "e", 6, None),
    ]  # fmt: skip


def test_a_special_key_that_was_not_sent_is_that_of_the_old_key(changes: MakeFrame) -> None:
    history = changes(
        SINCE,
        SINCE_KEY,
        insert(1, None, "10:00:00", "a", special={"since": "infinity"}),
        ("UPDATE", (1, "infinity", "10:00:00"), None, (1, None, "10:00:00", "b"), ["since"]),
        (
            "UPDATE",
            None,
            (1, None, "10:00:00", "b"),
            (1, None, "10:00:00", "c"),
            ["since"],
            {"before.since": "infinity"},
        ),
    )
    assert [row.note for row in last_states(history, ["id", "since", "start"]).collect()] == ["c"]


ODD, ODD_KEY = "`_id.x` long, `_op` string, cut string, `v.w` string, valid_to string, row string", "`_id.x` long"


def test_no_name_of_a_column_is_taken_for_another(changes: MakeFrame) -> None:
    history = changes(
        ODD,
        ODD_KEY,
        insert(1, "o", "c", "v", "t", "r"),
        ("UPDATE", None, None, (1, "o", "c", None, None, "r2"), ["v.w"]),
        insert(2, "o", "c", "v", "t", "r"),
        ("DELETE", (2,), None, None, []),
    )
    row: Tuple = (1, "o", "c", "v", None, "r2")
    names = ["_id.x", "_op", "cut", "v.w", "valid_to", "row"]
    last = last_states(history, ["_id.x"])
    assert last.columns == names
    assert rows_of(last, *names) == [row]
    found = versions(history, ["_id.x"], bounds=("since", "until")).orderBy("since")
    assert found.columns == [*names, "since", "until"]
    assert [old[:-2] for old in rows_of(found, *found.columns)] == [
        (1, "o", "c", "v", "t", "r"),
        row,
        (2, *row[1:3], "v", "t", "r"),
    ]
    for function in (versions, keyed, lambda frame, _: flat(frame)):
        with pytest.raises(UnsupportedSchema, match="the table has a column '(valid_to|_op)'"):
            function(history, ["_id.x"])
    dotted = changes("`a.b` long, `_SEQUENCE` string", "`a.b` long", insert(1, "s"))
    assert rows_of(keyed(dotted, ["a.b"]), "a.b", "_SEQUENCE") == [(1, "s")]
    with pytest.raises(UnsupportedSchema, match="_SEQUENCE"):
        feed(dotted, ["a.b"])
    only_key = changes("`a.b` long", "`a.b` long", insert(1))
    assert rows_of(last_states(only_key, ["a.b"]), "a.b") == [(1,)]


SET, SET_KEY = "members array<int>, note string", "members string"


def test_a_key_with_an_array_has_the_values_of_before(changes: MakeFrame) -> None:
    history = changes(
        SET,
        SET_KEY,
        insert([1, 2], "a"),
        ("UPDATE", None, ([1, 2], "a"), ([1, 3], "b"), []),
        insert([5], "c"),
        ("DELETE", None, ([5], "c"), None, []),
    )
    assert rows_of(last_states(history, ["members"]), "members", "note") == [([1, 3], "b")]


def test_a_key_with_an_array_that_is_known_as_text_only_ends_the_query(changes: MakeFrame) -> None:
    """Of its deletion, no row would come. `flat` does not compare keys."""
    history = changes(SET, SET_KEY, insert([1, 2], "a"), ("DELETE", ("{1,2}",), None, None, []))
    assert rows_of(flat(history).orderBy("_commit_lsn"), "_op", "members") == [("INSERT", [1, 2]), ("DELETE", None)]
    with pytest.raises(PySparkException, match="'members' is an array.*REPLICA IDENTITY FULL"):
        last_states(history, ["members"]).collect()


BOOKING = "id long, room string, guest string"


@pytest.mark.parametrize(("old_key", "key"), [("", ["id"]), ("id long", ["room"])])
def test_a_key_that_old_key_does_not_have_needs_the_old_row(changes: MakeFrame, old_key: str, key: list[str]) -> None:
    """Two tables with REPLICA IDENTITY FULL: one without a key, and one read by another unique
    column."""
    history = changes(
        BOOKING,
        old_key,
        insert(1, "r1", "a"),
        insert(2, "r2", "b"),
        ("UPDATE", None, (1, "r1", "a"), (3, "r3", "a"), []),
        ("UPDATE", None, (2, "r2", "b"), (2, "r2", "c"), []),
        insert(4, "r4", "d"),
        ("DELETE", None, (4, "r4", "d"), None, []),
    )
    moved = [("INSERT", 1), ("INSERT", 2), ("DELETE", 1), ("UPDATE", 3), ("UPDATE", 2), ("INSERT", 4), ("DELETE", 4)]
    for function in (keyed, feed):
        assert rows_of(function(history, key).orderBy("_commit_lsn", "_op"), "_op", "id") == moved
    assert rows_of(last_states(history, key).orderBy("id"), "id", "room", "guest") == [(2, "r2", "c"), (3, "r3", "a")]
    assert days_of(history.where("commit_lsn < 5"), key, "id", "guest") == [
        (1, "a", 1, 3), (2, "b", 2, 4), (3, "a", 3, None), (2, "c", 4, None),
    ]  # fmt: skip
    without_old: list[Change] = [("UPDATE", None, None, (1, "r9", "a"), []), ("DELETE", None, None, None, [])]
    for change in without_old:
        with pytest.raises(PySparkException, match=f"'{key[0]}'.*REPLICA IDENTITY FULL"):
            last_states(changes(BOOKING, old_key, insert(1, "r1", "a"), change), key).collect()
