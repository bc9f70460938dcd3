"""What the signs of snapshots, exclusions and gaps make of a mirror's tables, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_consumer.mirror.report import notes_of
from spark_consumer.mirror.table_states import (
    FirstRows,
    StoredMark,
    TableStates,
    advance,
    first_cut,
    first_unreadable,
    unfinished,
    verified_chunks,
)


def mark(kind: str, lsn: int, table: str | None = "public.a", **facts: Any) -> StoredMark:
    return StoredMark(kind, table, lsn, 0, {"snapshot_id": "one", "purpose": "FILL", "reason": "it is poison", **facts})


def test_a_table_is_filling_from_the_beginning_of_its_snapshot_to_the_end() -> None:
    begun, _ = advance(TableStates(), [mark("SNAPSHOT_BEGIN", 10)])
    assert begun.filling == {"public.a"} and begun.windows["public.a"].begin_lsn == 10
    again, _ = advance(begun, [mark("SNAPSHOT_BEGIN", 20)])
    assert again.windows["public.a"].begin_lsn == 20
    # Other releases read this text, and this one reads theirs.
    assert again.text().startswith('{"open": {"public.a": {"snapshot_id": "one", "purpose": "FILL", "begin_lsn": 20, ')
    ended, windows = advance(again, [mark("SNAPSHOT_END", 30)])
    assert not ended.filling and not ended.windows and windows["public.a"].begin_lsn == 20


def test_a_table_whose_rows_come_within_a_snapshot_of_all_is_not_complete() -> None:
    whole, _ = advance(TableStates(), [mark("SNAPSHOT_BEGIN", 10, None), mark("SNAPSHOT_BEGIN", 11, "public.b")])
    done, _ = advance(whole, [mark("SNAPSHOT_END", 12, "public.b")])
    for name in ("public.a", "public.b"):
        done.note_first_rows(name, 1)
    assert done.filling == {"public.a"}
    last = mark("SNAPSHOT_END", 20, "public.c")
    ended, _ = advance(done, [last, mark("SNAPSHOT_END", 20, None)])
    assert not ended.filling and not ended.done


@pytest.mark.parametrize("ends", ["SNAPSHOT_END", "SNAPSHOT_BEGIN"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_table_whose_read_had_not_begun_stays_incomplete_after_a_cancellation(ends: str, at_once: bool) -> None:
    """It has rows, from the stream. Early gateways wrote no end of a snapshot that was cancelled."""
    begun = [
        mark("SNAPSHOT_BEGIN", 10, None),
        mark("SNAPSHOT_BEGIN", 10, "public.b"),
        mark("SNAPSHOT_END", 12, "public.b"),
    ]
    rows = {"public.a": FirstRows(14, 1)}
    cancelled = [mark(ends, 20, None, snapshot_id="one" if ends == "SNAPSHOT_END" else "two", purpose="VERIFY")]
    if at_once:
        states, marks = TableStates(), [*begun, *cancelled]
    else:
        (states, _), marks = advance(TableStates(), begun, rows), cancelled
        states, rows = TableStates.of(states.text()), {}
    made, _ = advance(states, marks, rows)
    assert made.filling == made.incomplete == {"public.a"}
    over = unfinished(states, marks, rows)
    notes = notes_of(marks, {}, over, made.incomplete)
    assert [note for note in notes if "public.a: its snapshot (FILL) is over before its rows were complete" in note]
    read = [
        mark("SNAPSHOT_BEGIN", 30, None),
        mark("SNAPSHOT_BEGIN", 30),
        mark("SNAPSHOT_END", 40),
        mark("SNAPSHOT_END", 40, None),
    ]
    made, _ = advance(TableStates.of(made.text()), read)
    assert not made.filling


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("oid", [7, 8])
def test_a_table_that_is_renamed_before_its_first_snapshot_ends_is_filled_by_its_new_name(
    at_once: bool, oid: int
) -> None:
    """Not if the new name is that of another relation."""
    begun = [mark("SNAPSHOT_BEGIN", 10, None), mark("SNAPSHOT_BEGIN", 10, relation_oid=7)]
    again = [mark("SNAPSHOT_BEGIN", 20, "public.b", purpose="REPLACE", relation_oid=oid)]
    states = TableStates()
    if not at_once:
        states = TableStates.of(advance(states, begun)[0].text())
    made, _ = advance(states, [*begun, *again] if at_once else again)
    name, renamed = ("public.b", {"public.a"}) if oid == 7 else ("public.a", set())
    assert (made.filling, made.incomplete, made.renamed) == ({name}, {name}, renamed)
    ends = [mark("SNAPSHOT_END", 30, "public.b", purpose="REPLACE"), mark("SNAPSHOT_END", 30, None)]
    assert list(unfinished(made, ends)) == ([] if oid == 7 else ["public.a"])
    made, _ = advance(made, ends)
    assert made.filling == {"public.a"} - renamed and not made.renamed


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("purpose", ["FILL", "REPLACE"])
def test_a_table_that_is_renamed_before_its_first_snapshot_begins_is_not_complete_by_its_former_name(
    at_once: bool, purpose: str
) -> None:
    """It has rows, from the stream."""
    states, begun, rows = TableStates(), [mark("SNAPSHOT_BEGIN", 10, None)], {"public.a": FirstRows(14, 7)}
    again = [mark("SNAPSHOT_BEGIN", 20, "public.b", purpose=purpose, relation_oid=7)]
    if not at_once:
        states, begun, rows = TableStates.of(advance(states, begun, rows)[0].text()), [], {}
    made, _ = advance(states, [*begun, *again], rows)
    assert (made.filling, made.incomplete, made.renamed) == ({"public.b"}, {"public.b"}, {"public.a"})


EMPTY = [
    mark("SNAPSHOT_BEGIN", 10, relation_oid=7),
    mark("SNAPSHOT_END", 20, relation_oid=7, row_count=0),
]


@pytest.mark.parametrize("name", ["public.a", "public.renamed"])
def test_a_table_that_was_read_when_it_was_empty_is_complete(name: str) -> None:
    """Also if its first row comes during a snapshot of another table that is cancelled."""
    read, _ = advance(TableStates(), EMPTY)
    rows = {name: FirstRows(35, 7)}
    verified = [mark("SNAPSHOT_BEGIN", 30, None), mark("SNAPSHOT_BEGIN", 30, "public.b", purpose="VERIFY")]
    made, _ = advance(TableStates.of(read.text()), verified, rows)
    assert not made.filling
    made, _ = advance(made, [mark("SNAPSHOT_END", 40, None)])
    assert not made.filling and not made.incomplete
    recreated, _ = advance(read, verified, {name: FirstRows(35, 8)})
    assert recreated.filling == {name}
    for purpose in ("FILL", "REPLACE"):
        begun = mark("SNAPSHOT_BEGIN", 31, name, purpose=purpose, relation_oid=7)
        again, _ = advance(read, [*verified, begun, mark("SNAPSHOT_END", 40, None)], rows)
        assert again.incomplete == again.filling == {name}


@pytest.mark.parametrize("ends", [EMPTY[1:], [EMPTY[0], mark("SNAPSHOT_END", 20, relation_oid=7, row_count=3)]])
def test_a_table_is_only_known_to_be_empty_if_its_whole_read_found_no_row(ends: list[StoredMark]) -> None:
    assert not advance(TableStates(), ends)[0].empty


def test_the_end_of_all_tells_whether_it_ends_with_a_table_that_the_mirror_leaves_out() -> None:
    begun = [mark("SNAPSHOT_BEGIN", 10, None), mark("SNAPSHOT_BEGIN", 10, "public.b")]
    for ends_with_table in (True, False):
        marks = [*begun, mark("SNAPSHOT_END", 20, None, ends_with_table=ends_with_table)]
        made, _ = advance(TableStates(), marks, {"public.a": FirstRows(15, 7)})
        assert made.filling == made.incomplete == {"public.b"} | (set() if ends_with_table else {"public.a"})


WHOLE = [mark("SNAPSHOT_BEGIN", 90, None, snapshot_id="two"), mark("SNAPSHOT_END", 99, None, snapshot_id="two")]


@pytest.mark.parametrize(
    "later",
    [
        [mark("SNAPSHOT_BEGIN", 20, purpose="REPLACE")],
        [mark("SNAPSHOT_BEGIN", 20, purpose="VERIFY"), mark("SNAPSHOT_END", 21, purpose="VERIFY")],
    ],
    ids=["began again", "verified"],
)
def test_a_table_whose_first_snapshot_was_cancelled_stays_incomplete(later: Sequence[StoredMark]) -> None:
    begun = [mark("SNAPSHOT_BEGIN", 10, None), mark("SNAPSHOT_BEGIN", 11)]
    cancelled = [*begun, *later, mark("SNAPSHOT_END", 30, None)]
    made, _ = advance(TableStates(), [*cancelled, *WHOLE])
    assert made.filling == {"public.a"}
    made, _ = advance(TableStates.of(made.text()), WHOLE)
    assert made.filling == made.incomplete == {"public.a"}
    replaced = [mark("SNAPSHOT_BEGIN", 110, purpose="REPLACE"), mark("SNAPSHOT_END", 120, purpose="REPLACE")]
    made, _ = advance(made, replaced)
    assert not made.filling and not made.incomplete


def test_a_cancelled_snapshot_of_an_incomplete_table_is_told_as_that() -> None:
    begun, _ = advance(TableStates(), [mark("SNAPSHOT_BEGIN", 11), mark("SNAPSHOT_BEGIN", 20, purpose="REPLACE")])
    ends = [mark("SNAPSHOT_END", 30, None)]
    made, ended = advance(begun, ends)
    (note,) = notes_of(ends, ended, unfinished(begun, ends), made.incomplete)
    assert "cannot be read until a snapshot of it is complete" in note


def test_an_older_state_tells_which_tables_are_incomplete() -> None:
    """Those whose rows only came within a FILL of all tables are complete when it ends."""
    window = {"snapshot_id": "one", "begin_lsn": 10, "key": None, "has_two_keys": False}
    stored = {
        "open": {"public.a": {**window, "purpose": "FILL"}, "public.b": {**window, "purpose": "VERIFY"}},
        "whole": {"one": "FILL"},
        "done": [],
        "filling": ["public.a", "public.b", "public.c", "public.d"],
        "frozen": {"public.c": "it is poison"},
        "gap": None,
        "repaired": [],
    }
    assert TableStates.of(json.dumps(stored)).incomplete == {"public.a", "public.c"}
    stored["whole"] = {}
    assert TableStates.of(json.dumps(stored)).incomplete == {"public.a", "public.b", "public.c", "public.d"}


TABLES = ("public.a", "public.b", None)
MARKS = st.builds(
    lambda kind, table, purpose, snapshot: mark(kind, 0, table, purpose=purpose, snapshot_id=snapshot),
    st.sampled_from(["SNAPSHOT_BEGIN", "SNAPSHOT_END", "EXCLUDED", "GAP"]),
    st.sampled_from(TABLES),
    st.sampled_from(["FILL", "REPLACE", "VERIFY"]),
    st.sampled_from(["one", "two"]),
)


@given(st.lists(MARKS, max_size=20))
def test_a_table_that_began_is_not_complete_before_a_snapshot_of_it_ends(marks: list[StoredMark]) -> None:
    marks = [StoredMark(each.kind, each.table, place + 1, 0, each.facts) for place, each in enumerate(marks)]
    made, _ = advance(TableStates(), marks, {"public.b": FirstRows(len(marks) // 2, 1)})
    for table in filter(None, TABLES):
        ends = [
            (each.kind, each.facts["purpose"])
            for each in marks
            if each.table == table and each.kind.startswith("SNAPSHOT") and each.facts["purpose"] != "VERIFY"
        ]
        begun = [place for place, each in enumerate(ends) if each == ("SNAPSHOT_BEGIN", "FILL")]
        ended = [place for place, (kind, _) in enumerate(ends) if kind == "SNAPSHOT_END"]
        assert table in made.filling or not begun or (ended and ended[-1] > begun[-1])
    assert made.incomplete <= made.filling
    assert TableStates.of(made.text()) == made


def test_an_excluded_table_stands_still_until_it_was_replaced() -> None:
    frozen, _ = advance(TableStates(), [mark("EXCLUDED", 10)])
    assert frozen.stale(["public.a", "public.b"]) == {"public.a": "it is poison"}
    begun, _ = advance(frozen, [mark("SNAPSHOT_BEGIN", 20, purpose="REPLACE")])
    assert begun.stale(["public.a"])
    ended, _ = advance(begun, [mark("SNAPSHOT_END", 30, purpose="REPLACE")])
    assert not ended.stale(["public.a"])


def test_the_next_relation_with_the_name_of_an_excluded_table_is_not_excluded() -> None:
    """The excluded one was renamed: its marks have the name that it has, and it may get its first
    name back."""
    excluded, renamed, back = (
        [mark("EXCLUDED", lsn, name, relation_oid=7)]
        for lsn, name in ((10, "public.a"), (60, "public.b"), (80, "public.a"))
    )
    frozen = TableStates.of(advance(TableStates(), excluded)[0].text())
    frozen.thaw_former("public.a", 7, 20)
    frozen.thaw_former("public.b", 8, 20)
    assert frozen.stale(["public.a"])
    unknown = TableStates(frozen={"public.a": "it is poison"})  # as an earlier release stored it
    unknown.thaw_former("public.a", 8, 20)
    assert unknown.stale(["public.a"])
    changed = frozen.copy()
    changed.thaw_former("public.a", 8, 20)
    changed.note_former("public.a", 7)  # as the merge does that thaws it
    assert changed.former == {"public.a": [7]}
    filled, _ = advance(frozen, [mark("SNAPSHOT_BEGIN", 20, relation_oid=8), mark("SNAPSHOT_END", 30, relation_oid=8)])
    for made in (changed, filled):
        again, _ = advance(made, renamed)
        assert not made.stale(["public.a"]) and again.stale(["public.a"]) == {"public.b": "it is poison"}
        assert first_cut(again, back, 5, 90) == 80
        for states, marks in ((made, [*renamed, *back]), (again, back)):
            ended, _ = advance(states, marks)
            ended.thaw_former("public.a", 8, 70)  # these changes were before the name went back
            assert ended.stale([]) == {"public.a": "it is poison", "public.b": "it is poison"}
            ended = TableStates.of(ended.text())
            ended.forget_renamed(["public.a"])
            assert ended.stale([]) == {"public.a": "it is poison"}
            ended.thaw_former("public.a", 8, 90)
            assert not ended.stale([])
    both, _ = advance(frozen, renamed)
    both.forget_renamed(["public.a"])
    assert both.stale([]).keys() == {"public.a", "public.b"}
    successor = [mark("EXCLUDED", 40, reason="it too", relation_oid=8), *renamed]
    for states in (frozen, changed):
        assert first_cut(states, successor, 5, 70) == 40
        assert advance(states, successor)[0].stale([])["public.a"] == "it too"
    assert first_cut(frozen, excluded, 5, 70) is None


def test_a_gap_makes_every_table_stale_until_it_was_replaced_and_a_verify_does_not_help() -> None:
    gap, _ = advance(TableStates(), [mark("GAP", 10, None, detail="the slot was lost")])
    verified, _ = advance(gap, [mark("SNAPSHOT_END", 20, "public.a", purpose="VERIFY")])
    assert verified.stale(["public.a", "public.b"]) == dict.fromkeys(["public.a", "public.b"], "the slot was lost")
    again = [mark("SNAPSHOT_BEGIN", 25, purpose="REPLACE"), mark("SNAPSHOT_END", 30, purpose="REPLACE")]
    replaced, _ = advance(verified, again)
    assert replaced.stale(["public.a", "public.b"]) == {"public.b": "the slot was lost"}
    assert verified.lacking_rows(["public.a", "public.b"]) == {"public.a", "public.b"}
    assert replaced.lacking_rows(["public.a", "public.b"]) == {
        "public.b"
    }  # it waits for its snapshot, if that is of all
    assert TableStates.of(replaced.text()) == replaced


def test_a_snapshot_that_had_begun_before_a_gap_does_not_repair_its_table() -> None:
    begun, _ = advance(TableStates(), [mark("SNAPSHOT_BEGIN", 5), mark("GAP", 10, None, detail="the slot was lost")])
    ended, _ = advance(TableStates.of(begun.text()), [mark("SNAPSHOT_END", 20)])
    assert ended.stale(["public.a"]) == {"public.a": "the slot was lost"} and not ended.filling
    again, _ = advance(
        ended, [mark("SNAPSHOT_BEGIN", 30, purpose="REPLACE"), mark("SNAPSHOT_END", 40, purpose="REPLACE")]
    )
    assert not again.stale(["public.a"])


@pytest.mark.parametrize(
    "ending", [mark("SNAPSHOT_END", 20, None), mark("SNAPSHOT_BEGIN", 20, None, snapshot_id="two")]
)
def test_a_snapshot_that_was_cancelled_is_over(ending: StoredMark) -> None:
    """By its own sign, or because the next one begins, where the gateway is one that did not
    tell."""
    begun = [
        mark("SNAPSHOT_BEGIN", 10, None),
        mark("SNAPSHOT_BEGIN", 11, "public.b", purpose="VERIFY"),
        mark("SNAPSHOT_BEGIN", 12),
    ]
    made, ended = advance(TableStates(), [*begun, ending])
    assert list(made.windows) == ["public.a"] and made.filling == {"public.a"} and not ended
    made, _ = advance(made, [mark("SNAPSHOT_END", 30, None, snapshot_id="two")])
    made.note_first_rows("public.c", 1)
    assert made.filling == {"public.a"} and not made.whole


def test_the_last_table_ends_with_its_snapshot_in_whatever_order_they_are_stored() -> None:
    """The gateway ends both in one transaction, and a table sorted by name has the end of all
    first."""
    begun = [mark("SNAPSHOT_BEGIN", 10, None), mark("SNAPSHOT_BEGIN", 10, purpose="REPLACE")]
    ends = [mark("SNAPSHOT_END", 20, None), mark("SNAPSHOT_END", 20, purpose="REPLACE")]
    gap = TableStates(gap="x", gap_lsn=5)
    for stored in ([*begun, *ends], [*ends, *begun]):
        marks = sorted(stored, key=lambda each: each.place)
        made, ended = advance(gap, marks)
        assert list(ended) == ["public.a"] and made.repaired == {"public.a"} and not unfinished(gap, marks)
    wrong = [*begun, *ends]
    made, ended = advance(gap, wrong)
    assert not ended and not made.repaired
    assert list(unfinished(gap, wrong)) == ["public.a"]
    first, second = notes_of(wrong, ended, unfinished(gap, wrong))
    assert "is over before its rows were complete" in first and "has not read its beginning" in second


def test_a_table_that_stood_still_still_does_where_the_beginning_of_its_snapshot_was_not_read() -> None:
    """Which rows are no longer in the source is not known then."""
    frozen = TableStates(frozen={"public.a": "it is poison"})
    made, ended = advance(frozen, [mark("SNAPSHOT_END", 20, purpose="REPLACE")])
    assert not ended and made.stale(["public.a"]) == {"public.a": "it is poison"}


def test_batches_are_cut_before_exclusions_and_where_a_table_begins_once_more() -> None:
    assert first_cut(TableStates(), [mark("EXCLUDED", 10)], 5, 20) == 10
    assert first_cut(TableStates(), [mark("EXCLUDED", 10)], 10, 20) is None
    assert first_cut(TableStates(frozen={"public.a": "it is poison"}), [mark("EXCLUDED", 10)], 5, 20) is None
    chunks = [mark("SNAPSHOT_CHUNK", 10, purpose="VERIFY"), mark("SNAPSHOT_CHUNK", 12)]
    assert first_cut(TableStates(), chunks, 5, 20) is None and verified_chunks(chunks) == chunks[:1]
    twice = [mark("SNAPSHOT_END", 10), mark("SNAPSHOT_BEGIN", 12)]
    assert first_cut(TableStates(), twice, 5, 20) == 12


def test_pictures_between_merges_end_where_a_snapshot_takes_rows_away() -> None:
    filled = [mark("SNAPSHOT_BEGIN", 10), mark("SNAPSHOT_END", 20)]
    assert first_unreadable(TableStates(), filled) is None
    assert first_unreadable(TableStates(frozen={"public.a": "it is poison"}), filled) == 20
    assert first_unreadable(TableStates(), [mark("EXCLUDED", 15), mark("SNAPSHOT_END", 20)]) == 20
    assert first_unreadable(TableStates(), [mark("SNAPSHOT_END", 20, purpose="REPLACE")]) == 20
    assert first_unreadable(TableStates(), [mark("SNAPSHOT_END", 20, purpose="VERIFY"), mark("GAP", 30, None)]) is None
    assert first_unreadable(TableStates(), [mark("SNAPSHOT_END", 20, None, purpose="REPLACE")]) is None


def test_the_command_in_a_note_about_unknown_surplus_rows_can_be_pasted() -> None:
    (note,) = notes_of([], {}, {}, unknown=['public."odd table"'])
    assert note.endswith("""run walgate verify --table 'public."odd table"' again""")
