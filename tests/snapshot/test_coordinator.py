"""What may happen between two steps of the coordinator."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.observe.metrics import REGISTRY, show
from gateway.observe.status_board import StatusBoard
from gateway.observe.table_status import LISTED_TABLES
from gateway.snapshot.chunk_reader import ReadChunk
from gateway.snapshot.coordinator import MOST_AT_ONCE, TICK_S, SnapshotCoordinator
from gateway.snapshot.pending_chunks import SnapshotBoundary
from gateway.snapshot.reader_tasks import AHEAD_BYTES, AHEAD_CHUNKS, is_far_ahead
from gateway.snapshot.rules import table_progress
from gateway.snapshot.rules.keys_to_read_again import KeysToReadAgain
from gateway.snapshot.rules.ranges_to_read import CtidPlan, Leaf, TidRange
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import Chunk, TableProgress
from gateway.snapshot.rules.visibility import parse_visibility
from gateway.snapshot.sql import EMIT
from gateway.snapshot.stored_state import RESELECT, TableState
from gateway.snapshot.table_errors import TOO_LARGE, Obstacle, TableTooLarge
from gateway.snapshot.table_task import CHANGED, HOPELESS_ATTEMPTS, TableTask
from gateway.transactions.transaction import CHUNK_PREFIX
from tests.snapshot.conftest import NOT_ASKED, Transactions, task_of


@pytest.fixture
def judge() -> StalenessJudge:
    return StalenessJudge(parse_visibility("10:10:"), 5)


async def test_what_is_to_be_set_up_again_is_not_read(snapshot: SnapshotCoordinator, judge: StalenessJudge) -> None:
    """Another reader found that the table has changed, while this one opened its session."""
    task = TableTask(TableState(1, "a", "b", "", RESELECT))
    table = task.reselect(judge, 1 << 20, KeysToReadAgain({0: [b"1"]}))
    chunk = table.next_chunk()
    assert chunk is not None and table.next_chunk() is None
    await snapshot._readers.read(NOT_ASKED, task, chunk)
    again = table.next_chunk()
    assert again is not None and again.keys == (b"1",)


def test_a_chunk_that_its_reader_gave_back_does_not_count_when_the_stream_brings_it(judge: StalenessJudge) -> None:
    """The session ended before the server's answer to COMMIT, which had come into effect."""
    table = table_being_read(judge)
    chunk = table.next_chunk()
    assert chunk is not None and table.snapshot_taken(chunk, parse_visibility("10:10:")) and table.admits(chunk)
    table.give_back(chunk)
    assert not table.admits(chunk)
    again = table.next_chunk()
    assert again is not None and table.snapshot_taken(again, parse_visibility("10:10:"))
    assert not table.admits(chunk) and table.admits(again)
    table.published(again, 1, 0)


def test_a_chunk_that_counts_no_more_holds_no_snapshot(judge: StalenessJudge) -> None:
    table = TableProgress(judge, [], 1 << 20)
    table.resume(CtidPlan(()), KeysToReadAgain({0: [b"1"]}), ())
    chunk = table.next_chunk()
    assert chunk is not None
    table.begin_again()
    judge.snapshot_requested(chunk)
    table.give_back(chunk)
    judge.committed(10)
    judge.observe(parse_visibility("11:11:"))
    assert not judge.unseen


def test_a_table_that_was_just_published_is_read_whole(snapshot: SnapshotCoordinator) -> None:
    """Though an UPDATE without a value comes before it is found."""
    assert not snapshot._reselecting.left_out(1)


def test_a_table_knows_whether_values_are_owed_that_it_has_no_keys_for(judge: StalenessJudge) -> None:
    table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20, reselects=True)
    task = task_of(1, "b", table)
    assert (task.records_keys, task.may_miss_values) == (False, False)
    table.begin()
    table.record_unchanged_toast(b"1", b"1")
    assert (task.records_keys, task.may_miss_values) == (True, False)
    assert [*task.pop_keys_to_reselect()] == [b"1"]
    assert not table.keys_to_read_again
    table.begin_again()
    assert (task.records_keys, task.may_miss_values) == (False, True)


def test_a_table_that_begins_again_and_again_is_named_in_a_warning(judge: StalenessJudge) -> None:
    table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20)
    task = task_of(1, "b", table)
    with capture_logs() as logs:
        for _ in range(4):
            table.begin()
            task.begin_again(CHANGED)
    assert {entry["event"] for entry in logs} == {"table_restarted"}
    assert [entry["log_level"] for entry in logs] == ["info", "info", "warning", "warning"]
    assert logs[-1]["restarts"] == 4 and "REINDEX CONCURRENTLY" in logs[-1]["hint"]


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_table_that_the_stream_makes_begin_again_is_logged_and_waits_while_reading_is_paused(
    is_prepared: bool, snapshot: SnapshotCoordinator, judge: StalenessJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_progress, "MAX_KEYS_TO_READ_AGAIN", 2)
    table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20)
    task, new = task_of(1, "b", table), task_of(2, "new")
    snapshot._tasks._by_oid |= {1: task, 2: new}
    snapshot._tasks._active[1] = task
    found: list[list[TableTask]] = []

    async def plans_of(tasks: list[TableTask], _: float) -> list[Any]:
        found.append(tasks)
        return []

    monkeypatch.setattr(snapshot, "_plans_of", plans_of)
    table.begin([7])
    snapshot._tasks.snapshot.pause()
    if is_prepared:
        table.committed_without_keys(7)
    else:
        for key in (b"1", b"2", b"3"):
            table.record_unchanged_toast(key, key)
    with capture_logs() as logs:
        for _ in range(2):
            await snapshot._begin_tables()
        snapshot._tasks.snapshot.go_on()
        await snapshot._begin_tables()
    (entry,) = [entry for entry in logs if entry["event"] == "table_restarted"]
    assert entry["table"] == "a.b" and entry["hint"]
    assert ("prepared" in entry["reason"], "walgate snapshot resume" in entry["hint"]) == (is_prepared, not is_prepared)
    assert found == [[new], [new], [task, new]]


class StreamsAtOnce(Transactions):
    """Its stream brings a message before the answer to the statement that emitted it; no server can
    be made to do so."""

    def __init__(self, snapshot: SnapshotCoordinator) -> None:
        self._snapshot = snapshot

    async def fetchval(self, query: str, message_id: str) -> str:
        assert query == EMIT
        assert self._snapshot._on_message(CHUNK_PREFIX, message_id.encode(), 7, True) is None
        return "7"


async def test_a_mark_that_is_streamed_before_its_xid_is_known_is_sent_once_more(snapshot: SnapshotCoordinator) -> None:
    task = TableTask(TableState(1, "a", "b", ""))
    mark = SnapshotBoundary("begin", [task])
    snapshot._sql = StreamsAtOnce(snapshot)
    await snapshot._emit_boundary(mark)
    assert mark.done.is_set() and not task.awaits_boundary and not snapshot._pending._by_message_id


def test_a_message_that_is_not_streamed_needs_the_xid(snapshot: SnapshotCoordinator) -> None:
    """It was committed, so its xid was known: it is somebody else's."""
    snapshot._pending.expect("1", SnapshotBoundary("begin", []))
    assert snapshot._on_message(CHUNK_PREFIX, b"1", 7, False) is None and snapshot._pending._by_message_id


def waiting_chunk(judge: StalenessJudge, byte_count: int = 1) -> ReadChunk:
    table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20)
    table.begin()
    chunk = table.next_chunk()
    assert chunk is not None
    return ReadChunk(chunk, NOT_ASKED, [], byte_count)


def test_tables_begin_and_end_together_while_there_is_something_to_read(
    snapshot: SnapshotCoordinator, judge: StalenessJudge
) -> None:
    now = time.monotonic()
    assert snapshot._is_due(1, now)
    snapshot._pending.expect("1", waiting_chunk(judge))
    assert not snapshot._is_due(MOST_AT_ONCE // 2 - 1, now)
    assert snapshot._is_due(MOST_AT_ONCE // 2, now) and snapshot._is_due(1, now - TICK_S)
    snapshot._pending.forget("1")
    snapshot._readers.finds_nothing = False
    assert not snapshot._is_due(1, now)


def test_readers_look_again_when_a_chunk_has_come_back(snapshot: SnapshotCoordinator, judge: StalenessJudge) -> None:
    """None of them waits for it."""
    waiting = waiting_chunk(judge)
    snapshot._pending.more.clear()
    snapshot._pending.discard(waiting)
    assert waiting.done.is_set() and snapshot._pending.more.is_set()
    assert waiting.chunk.progress.next_chunk() is not None


def test_a_reader_is_ahead_by_a_few_small_chunks_or_by_one(judge: StalenessJudge) -> None:
    assert not is_far_ahead([waiting_chunk(judge)] * AHEAD_CHUNKS)
    assert is_far_ahead([waiting_chunk(judge)] * (AHEAD_CHUNKS + 1))
    assert not is_far_ahead([waiting_chunk(judge, AHEAD_BYTES)])
    assert is_far_ahead([waiting_chunk(judge, AHEAD_BYTES + 1)])


def test_keys_of_a_table_that_is_compared_wait_for_its_chunks(judge: StalenessJudge) -> None:
    """Each chunk of keys costs a mirror a comparison."""
    for gathers in (False, True):
        table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20, in_few_chunks=gathers)
        table.begin()
        chunk = table.next_chunk()
        assert chunk is not None and table.next_chunk() is None
        table.record_unchanged_toast(b"1", b"1")
        taken = table.next_chunk()
        assert (taken is None) == gathers
        table.snapshot_taken(chunk, parse_visibility("10:10:"))
        table.published(chunk, 1, 0)
        rest = taken or table.next_chunk()
        assert rest is not None and rest.keys == (b"1",)


def plan_of(relation_oid: int) -> Any:
    return SimpleNamespace(surveyed=SimpleNamespace(relation=SimpleNamespace(relation_oid=relation_oid), row_filter=""))


def table_being_read(judge: StalenessJudge) -> TableProgress:
    table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20)
    table.begin()
    return table


async def test_rows_that_wait_count_no_more_once_their_relation_is_announced_anew(
    snapshot: SnapshotCoordinator, judge: StalenessJudge
) -> None:
    """Rows in Debezium's dialect are encoded where they are published, by the encoder that is
    announced then."""
    plan = plan_of(1)
    table = table_being_read(judge)
    for now in (None, plan_of(1)):
        task = snapshot._tasks._by_oid[1] = task_of(1, "b", table, now)
        chunk = table.next_chunk()
        assert chunk is not None and table.snapshot_taken(chunk, parse_visibility("10:10:"))
        await snapshot.at_commit(ReadChunk(chunk, plan, [(b"12345k", b"v")]), 1, 2, 3)
        assert task.progress is table and table.row_count == 0
    assert table.next_chunk() is not None


def test_rows_are_held_until_they_are_handed_over_and_no_longer(
    snapshot: SnapshotCoordinator, judge: StalenessJudge
) -> None:
    """`snapshot.rows_per_s` counts them after that, where the stream is faster than the answer to
    COMMIT."""
    waiting = ReadChunk(waiting_chunk(judge).chunk, NOT_ASKED, [(b"12345k", b"v")])
    snapshot._pending.done(waiting)
    assert not waiting.rows and waiting.row_count == 1


def test_tables_that_cannot_be_read_are_counted(snapshot: SnapshotCoordinator) -> None:
    """Also those that the status does not list; after a few attempts, and only if somebody has to
    act."""
    for oid in range(1, 3 * LISTED_TABLES):
        task = snapshot._tasks._by_oid[oid] = task_of(oid, f"t{oid}")
        for _ in range(HOPELESS_ATTEMPTS if oid % 3 else HOPELESS_ATTEMPTS - 1):
            task.chunk_failed(NOT_ASKED, Obstacle("XX000", "", "", passes=oid % 3 == 1), None, 0.0)
    board = StatusBoard()
    board.snapshot_status = snapshot.status
    show(board)
    assert REGISTRY.get_sample_value("walgate_snapshot_unreadable_tables") == LISTED_TABLES
    show(StatusBoard())


def test_tables_that_cannot_be_read_are_told_apart_by_whether_they_are_tried_again(
    snapshot: SnapshotCoordinator,
) -> None:
    tasks = snapshot._tasks
    for oid, purpose in enumerate(("FILL", "VERIFY", "REPLACE"), 1):
        task = tasks._by_oid[oid] = TableTask(TableState(oid, "a", purpose.lower(), "s", purpose))
        for _ in range(HOPELESS_ATTEMPTS):
            task.chunk_failed(NOT_ASKED, Obstacle("42501", "", "", passes=False), None, 0.0)
    tasks.snapshot.begin(3)
    with capture_logs() as logs:
        snapshot._unreadable.set_hopeless_aside()
    assert {oid for oid, task in tasks.by_oid.items() if task.is_set_aside} == tasks.by_oid.keys() == {1, 3}
    told = {entry["event"]: (entry["tables"], entry["hint"]) for entry in logs}
    assert told.keys() == {"tables_not_read", "tables_not_verified"}
    assert told["tables_not_read"][0] == ["a.fill", "a.replace"] and "without a command" in told["tables_not_read"][1]
    assert told["tables_not_verified"] == (["a.verify"], "correct the cause, then run the command again")


def test_a_table_that_did_not_fit_is_readable_once_it_is_read_in_ranges(judge: StalenessJudge) -> None:
    table = table_being_read(judge)
    task = task_of(1, "b", table)
    whole = Chunk(table, 1, all_ranges=(TidRange(0, 0, None),))
    for _ in range(HOPELESS_ATTEMPTS):
        task.chunk_failed(whole, Obstacle(TOO_LARGE, "", "", passes=False), None, 0.0)
    task.chunk_read(Chunk(table, 2, keys=(b"1",)))
    assert task.is_hopeless
    task.chunk_read(Chunk(table, 2, range=TidRange(0, 0, 7)))
    assert not task.is_hopeless


async def test_a_chunk_that_fails_after_its_table_was_set_up_anew_does_not_take_the_new_read_plan(
    snapshot: SnapshotCoordinator, judge: StalenessJudge
) -> None:
    table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20, is_read_at_once=True)
    task = task_of(1, "t", table, SimpleNamespace(surveyed=None, unreachable=()))
    snapshot._recorder.judge = judge
    table.begin(suspects=[7])
    chunk = table.next_chunk()
    assert chunk is not None
    table.committed_without_keys(7)  # it was open when the table began, so the table begins again
    plan = task.plan
    await snapshot._readers._block(task, TableTooLarge("too large", hint="h"), None, chunk)
    assert plan is not None and task.plan is plan and not task.is_blocked(time.monotonic())


def test_segments_of_keys_that_were_all_read_are_removed_at_the_end(judge: StalenessJudge) -> None:
    """With debezium.reselect_unavailable_values, too, where the remaining keys are read after it."""
    table = TableProgress(judge, [Leaf(1, 1, 1)], 1 << 20, reselects=True)
    task = task_of(1, "t", table, SimpleNamespace())
    table.begin()
    chunk = table.next_chunk()
    assert chunk is not None
    for number in range(600):  # UPDATEs that leave values out: two segments
        table.record_unchanged_toast(b"%d" % number, b"%d" % number)
    table.snapshot_taken(chunk, parse_visibility("11:11:"))
    table.published(chunk, 1, 0)
    stored = task.take_states(b"", b"position", set())
    assert len(stored) > 1
    while (chunk := table.next_chunk()) is not None:
        table.snapshot_taken(chunk, parse_visibility("12:12:"))
        table.published(chunk, 1, 0)
    table.nothing_left()
    assert not task.pop_keys_to_reselect()
    table.end()
    ended = task.take_states(b"", b"position", set())
    assert stored.keys() == ended.keys()
    assert {value for key, value in ended.items() if b"." in key} == {None}


@pytest.mark.parametrize("purpose", ["FILL", "REPLACE", "VERIFY", RESELECT, None])
def test_rows_in_doubt_are_read_again_whatever_is_done_with_the_table(
    purpose: str | None, snapshot: SnapshotCoordinator
) -> None:
    """A VERIFY, which has begun perhaps hours ago, only reports them."""
    tasks = snapshot._tasks
    if purpose is None:
        tasks._settled.add(1)
    else:
        tasks._by_oid[1] = TableTask(TableState(1, "a", "b", "s", purpose))
    snapshot.rows_in_doubt(1, "a", "b")
    assert tasks.by_oid[1].state.purpose == "REPLACE"


async def test_tables_that_cannot_be_read_keep_no_other_from_being_read(
    snapshot: SnapshotCoordinator, judge: StalenessJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for oid in range(1, MOST_AT_ONCE + 1):
        task = task_of(oid, f"t{oid}", table_being_read(judge), plan_of(oid))
        task.chunk_failed(NOT_ASKED, Obstacle("XX000", "", "", passes=False), None, 0.0)
        snapshot._tasks._by_oid[oid] = snapshot._tasks._active[oid] = task
    snapshot._tasks._by_oid[1000] = task_of(1000, "other")
    set_up: list[int] = []

    async def with_plans(tasks: list[TableTask], _: float) -> list[Any]:
        set_up.extend(task.oid for task in tasks)
        return []

    monkeypatch.setattr(snapshot, "_plans_of", with_plans)
    await snapshot._begin_tables()
    assert set_up == [1000]
    set_up.clear()
    for task in snapshot._tasks.active.values():
        snapshot._tasks.readable_again(task)
    snapshot._begun_at = -1e9
    await snapshot._begin_tables()
    assert set_up == []


@pytest.mark.parametrize("kind", ["begin", "end"])
async def test_a_mark_of_what_was_cancelled_meanwhile_means_nothing(snapshot: SnapshotCoordinator, kind: str) -> None:
    snapshot._tasks.snapshot.begin(1)
    task = snapshot._tasks._by_oid[1] = task_of(1, "b")
    boundary = SnapshotBoundary(kind, [task], is_last=kind == "end")
    snapshot._pending.expect("1", boundary)
    assert task.awaits_boundary
    snapshot._reselecting.cancel_tables()
    await snapshot.at_commit(boundary, 1, 2, 3)
    assert boundary.done.is_set() and not task.awaits_boundary


def test_the_end_of_a_snapshot_that_was_sent_in_vain_is_sent_once_more(snapshot: SnapshotCoordinator) -> None:
    boundary = SnapshotBoundary("end", [], is_last=True)
    snapshot._pending.expect("1", boundary)
    assert snapshot._pending.is_ending
    snapshot._pending.discard(boundary)
    assert not snapshot._pending.is_ending


class LooksSlowly:
    """What wakes the conductor comes while it waits for the server."""

    def __init__(self, snapshot: SnapshotCoordinator) -> None:
        self._snapshot = snapshot
        self.count = 0

    async def fetchval(self, _: str) -> str:
        self.count += 1
        if self.count < 5:
            self._snapshot._pending.wake.set()
        return "10:10:"


async def test_who_wakes_the_conductor_during_its_round_means_the_next_one(
    snapshot: SnapshotCoordinator, judge: StalenessJudge
) -> None:
    server: Any = LooksSlowly(snapshot)
    snapshot._recorder._sql, snapshot._recorder.judge, snapshot._checked_at = server, judge, time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(TICK_S / 2):
            await snapshot._control()
    assert server.count == 5
