"""Mirrors on the gateway's board: what their own ports say, and how far they are behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.status_text import render
from gateway.observe.lag import Progress
from gateway.observe.metrics import REGISTRY, show
from gateway.observe.mirror_status import MOST_COMMITS, CommitTimes, MirrorStatus, read_mirror
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import Counts
from gateway.runtime.monitor import ask_mirror
from spark_consumer.jobs.status import Status, serve

COMMIT_S = 1.0


class Mirror:
    """The port of a mirror's process, and what it says there."""

    def __init__(self) -> None:
        self.said = Status(prefix="cdc")
        self.server = serve(self.said, "127.0.0.1:0")
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def wrote(self, commit_lsn: int, moment: float) -> None:
        self.said.query_waits_for = ""
        self.said.set("commit_lsn", commit_lsn)
        self.said.set("commit_time_seconds", moment)

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    made = Mirror()
    yield made
    made.end()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def delivered(board: StatusBoard, lsn: int, moment: float) -> None:
    board.watch(lambda: Progress(marked_lsn=lsn, marked_time=moment), Counts)
    board.progress()


async def test_what_a_mirror_says_is_shown_until_its_end_and_after(mirror: Mirror) -> None:
    clock = Clock()
    board = StatusBoard(prefix="cdc", clock=clock, monotonic=clock)
    board.wal.note(1, 1000.0, 1000.0)
    await ask_mirror(mirror.url, board)
    (found,) = board.snapshot().mirrors
    assert (found.up, found.state, found.waits_for, found.lag_seconds) == (True, "waiting", "its first query", None)

    mirror.wrote(0x10, 990.0)
    mirror.said.query_failed("Kafka did not give the offsets")
    mirror.said.query_waits_for = ""
    delivered(board, 0x10, 990.0)
    await ask_mirror(mirror.url, board)
    (found,) = board.snapshot().mirrors
    assert (found.commit_lsn, found.commit_time, found.lag_seconds) == (0x10, 990.0, 0.0)
    assert found.last_error == "Kafka did not give the offsets" and found.last_error_time is not None
    assert "written up to 0/10 (1970-01-01 00:16:30 UTC), 0.0 s behind Kafka" in printed(board)

    delivered(board, 0x20, 995.0)
    delivered(board, 0x30, 999.0)
    assert board.snapshot().mirrors[0].lag_seconds == 5.0
    mirror.end()
    clock.now = 1007.0
    await ask_mirror(mirror.url, board)
    clock.now = 1010.0
    await ask_mirror(mirror.url, board)
    (found,) = board.snapshot().mirrors
    assert (found.up, found.since, found.commit_lsn) == (False, 1007.0, 0x10) and "refused" in found.error
    assert found.lag_seconds == 15.0  # it goes on
    assert "HAS NOT ANSWERED for 3.0 s" in printed(board)
    assert metrics_of(board) == {"walgate_mirror_up": 0.0, "walgate_mirror_lag_seconds": 15.0}


def printed(board: StatusBoard) -> str:
    return render({**json.loads(json.dumps(board.snapshot().as_json())), "asked": "gateway"})


def metrics_of(board: StatusBoard) -> dict[str, float]:
    show(board)
    families = [family for family in REGISTRY.collect() if family.name.startswith("walgate_mirror")]
    show(StatusBoard())
    return {family.name: family.samples[0].value for family in families}


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"state": "streaming"},
        {"state": "running", "commit_lsn": "x"},
        {"state": "running", "commit_lsn": float("inf")},
        {"state": "running", "lag_seconds": float("nan")},
        {"state": "running", "last_error": "x"},
        "running",
    ],
)
def test_another_server_is_not_taken_for_a_mirror(told: object) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        read_mirror("http://m", told)


async def test_an_address_of_another_program_is_told(mirror: Mirror) -> None:
    board = StatusBoard()
    await ask_mirror(f"{mirror.url}/livez?", board)
    (found,) = board.snapshot().mirrors
    assert found.up is False and found.error


def test_a_mirror_of_another_prefix_is_told() -> None:
    board = StatusBoard(prefix="cdc")
    board.mirror(MirrorStatus("http://m", up=True, prefix="old", state="running"))
    assert "reads the prefix old, not cdc" in printed(board)


def test_what_is_worth_a_word_is_printed() -> None:
    board = StatusBoard(prefix="cdc")
    board.mirror(MirrorStatus("http://new"))
    board.mirror(
        MirrorStatus(
            "http://m", up=True, state="waiting", waits_for="Kafka", commit_lsn=9, merged_lsn=8, stale_tables=2
        )
    )
    text = printed(board)
    assert "http://new: not queried yet" in text and "http://m: WAITING for Kafka" in text
    assert (
        "written up to 0/9, merged up to 0/8, lag unknown" in text
        and "tables: 2 not up to date, 0 with an unfinished snapshot" in text
    )


@given(
    gaps=st.lists(st.floats(0.001, 30.0), min_size=1, max_size=60),
    every=st.integers(1, 5),
    reached=st.integers(0, 60),
    later_s=st.floats(0.0, 100.0),
)
def test_the_lag_is_short_by_what_came_between_two_notes_at_most(
    gaps: list[float], every: int, reached: int, later_s: float
) -> None:
    moments = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    commits = CommitTimes()
    noted = [number for number in range(len(moments)) if number % every == 0 or number == len(moments) - 1]
    for number in noted:
        commits.note(number + 1, moments[number])
    mirror = MirrorStatus("m", up=True, commit_lsn=min(reached, len(moments)))
    now = moments[-1] + later_s
    found = commits.lag_s(mirror, now)
    if mirror.commit_lsn == 0:
        assert found is None
        return
    missing = moments[mirror.commit_lsn :]
    if not missing:
        assert found == 0.0
        return
    told = next(moments[number] for number in noted if number >= mirror.commit_lsn)
    assert found is not None
    assert now - missing[0] - (told - missing[0]) == pytest.approx(found) and found <= now - missing[0] + 1e-6


def test_a_mirror_that_is_older_than_what_is_known_has_an_upper_bound() -> None:
    commits = CommitTimes()
    commits.note(100, 50.0)
    old = MirrorStatus("m", up=True, commit_lsn=10, commit_time=20.0)
    assert commits.lag_s(old, 60.0) == 40.0
    assert commits.lag_s(replace(old, commit_time=None), 60.0) == 10.0
    assert CommitTimes().lag_s(replace(old, lag_seconds=3.0), 60.0) == 3.0  # by its own words
    assert CommitTimes().lag_s(replace(old, up=False, lag_seconds=3.0), 60.0) is None


def test_the_memory_of_commits_is_bounded_and_exact_for_the_newest() -> None:
    commits = CommitTimes()
    for number in range(1, 5 * MOST_COMMITS):
        commits.note(number, number * COMMIT_S)
    now = 5 * MOST_COMMITS * COMMIT_S
    assert len(commits._lsns) <= MOST_COMMITS
    newest = MirrorStatus("m", up=True, commit_lsn=5 * MOST_COMMITS - 100)
    assert commits.lag_s(newest, now) == 99 * COMMIT_S
