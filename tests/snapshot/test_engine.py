"""What may happen between two steps of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.operate.settings import Settings
from gateway.snapshot.engine import Snapshot
from gateway.snapshot.judge import Judge
from gateway.snapshot.keys import KeyList
from gateway.snapshot.plan import Leaf, Plan
from gateway.snapshot.reading import Reading
from gateway.snapshot.state import RESELECT, States, TableState
from gateway.snapshot.table import Table
from gateway.snapshot.visibility import parse_visibility

NOT_ASKED: Any = None
"""PostgreSQL and the stream have no part in it."""


@pytest.fixture
def snapshot() -> Snapshot:
    settings = Settings.model_validate(
        {
            "source": {"dsn": "postgresql://x", "slot": "s", "publications": ["p"]},
            "kafka": {"bootstrap_servers": "x", "prefix": "x", "dialect": "debezium"},
            "registry": {"url": "http://x"},
            "debezium": {"reselect_unavailable_values": True},
        }
    )
    return Snapshot(
        settings, NOT_ASKED, NOT_ASKED, NOT_ASKED, NOT_ASKED, States(),
        position_key=b"", frame=b"", is_first=True, text_only=False,
    )  # fmt: skip


@pytest.fixture
def judge() -> Judge:
    return Judge(parse_visibility("10:10:"), 5)


async def test_what_is_to_be_set_up_again_is_not_read(snapshot: Snapshot, judge: Judge) -> None:
    """Another reader found that the table has changed, while this one opened its session."""
    reading = Reading(TableState(1, "a", "b", "", RESELECT))
    table = reading.reselect(judge, 1 << 20, KeyList({0: [b"1"]}))
    chunk = table.take()
    assert chunk is not None and table.take() is None
    await snapshot._read(NOT_ASKED, reading, chunk)
    again = table.take()
    assert again is not None and again.keys == (b"1",)


def test_a_chunk_that_counts_no_more_holds_no_snapshot(judge: Judge) -> None:
    table = Table(judge, [], 1 << 20)
    table.resume(Plan(()), KeyList({0: [b"1"]}), ())
    chunk = table.take()
    assert chunk is not None
    table.begin_again()
    judge.expect(chunk)
    table.give_back(chunk)
    judge.committed(10)
    judge.observe(parse_visibility("11:11:"))
    assert not judge.unseen


def test_a_table_that_was_just_published_is_read_whole(snapshot: Snapshot) -> None:
    """Though an UPDATE without a value comes before it is found."""
    assert not snapshot._left_out(1)


def test_a_table_knows_whether_values_are_owed_that_it_has_no_keys_for(judge: Judge) -> None:
    table = Table(judge, [Leaf(1, 1, 1)], 1 << 20, reselects=True)
    reading = Reading(TableState(1, "a", "b", ""), table)
    assert (reading.notes_keys, reading.may_owe_more) == (False, False)
    table.begin()
    table.note_unchanged(b"1", b"1")
    assert (reading.notes_keys, reading.may_owe_more) == (True, False)
    assert [*reading.take_owed()] == [b"1"]
    assert not table.again
    table.begin_again()
    assert (reading.notes_keys, reading.may_owe_more) == (False, True)
