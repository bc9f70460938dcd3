"""When merges run: the thread waits for conditions, and so does this."""

from __future__ import annotations

import threading
import time

import pytest

from spark_consumer.errors import MirrorError
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.merge import merge_thread as merging_module
from spark_consumer.mirror.merge.background_merges import BACKLOG_CHANGES, MANY_CHANGES
from spark_consumer.mirror.merge.merge_thread import PAUSES_S, MergeThread

LONG_S = 10_000.0


def test_what_waits_is_merged_when_it_is_due_and_at_once_where_somebody_says_so() -> None:
    merged = threading.Semaphore(0)

    def merge() -> None:
        merged.release()

    for every_s, at_once in ((0.0, False), (LONG_S, True)):
        merging = MergeThread(merge, every_s)
        merging.start()
        for _ in range(2):
            merging.want(at_once=at_once)
            assert merged.acquire(timeout=60)
        merging.end()
        merging.check()


def test_a_merge_that_is_not_due_does_not_run_and_the_end_does_not_wait_for_it() -> None:
    merging = MergeThread(lambda: pytest.fail("not yet"), LONG_S)
    merging.start()
    merging.want()
    merging.end()
    merging.check()


@pytest.mark.parametrize("every_s", [None, 0.0])
def test_where_nobody_has_said_how_often_merges_take_a_fifth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, every_s: float | None
) -> None:
    monkeypatch.setattr(merging_module, "MERGE_EVERY_S", 0.0)
    times: list[float] = []
    merged = threading.Semaphore(0)
    monkeypatch.setattr(merging_module, "MERGE_AT_LEAST_EVERY_S", 2.0)

    def merge() -> None:
        times.append(time.monotonic())
        threading.Event().wait(0.2)  # it takes that long
        merged.release()

    merging = MergeThread(merge, every_s)
    merging.start()
    for _ in range(2):
        merging.want()
        assert merged.acquire(timeout=60)
    merging.end()
    merging.check()
    is_spaced = times[1] - times[0] >= 0.2 / merging_module.MERGES_SHARE
    assert is_spaced == (every_s is None)


def test_a_merge_that_is_postponed_comes_when_that_time_is_over_or_at_once() -> None:
    merged = threading.Event()

    def merge() -> None:
        merged.set()

    merging = MergeThread(merge, 0.0)
    merging.start()
    merging.postpone()
    assert merged.wait(60)
    merging.end()
    merged.clear()
    merging = MergeThread(merge, LONG_S)
    merging.start()
    merging._due = 0.0  # long over
    merging.postpone()
    assert not merged.wait(0.1)
    merging.want(at_once=True)
    assert merged.wait(60)
    merging.end()
    merging.check()


@pytest.mark.parametrize(
    ("problem", "attempts"), [(OSError("storage is down"), 1 + len(PAUSES_S)), (MirrorError("no"), 1)]
)
def test_a_merge_that_fails_is_made_again_unless_walgate_itself_refuses_it_and_its_last_error_is_raised(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, attempts: int
) -> None:
    monkeypatch.setattr(merging_module, "PAUSES_S", (0.0,) * len(PAUSES_S))
    made: list[None] = []
    told: list[Exception] = []

    def merge() -> None:
        made.append(None)
        raise problem

    merging = MergeThread(merge, 0, lambda failed, _: told.append(failed))
    merging.start()
    merging.want()
    assert merging._thread is not None
    merging._thread.join(60)
    with pytest.raises(type(problem)):
        merging.check()
    assert len(made) == attempts and told == [problem] * (attempts - 1)


def test_each_attempt_that_succeeds_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it had anything to merge or not."""
    monkeypatch.setattr(merging_module, "PAUSES_S", (0.0,) * len(PAUSES_S))
    told: list[str] = []
    problems = [True, True, False, False, *[True] * len(PAUSES_S), False]

    def merge() -> None:
        if problems.pop(0):
            raise OSError("storage is down")

    merging = MergeThread(merge, 0, lambda *_: told.append("retrying"), lambda: told.append("merged"))
    merging.start()
    for _ in range(3):
        merging.merge_now()
    merging.end()
    assert told == ["retrying", "retrying", "merged", "merged", *["retrying"] * len(PAUSES_S), "merged"]


def test_the_end_does_not_wait_for_the_next_attempt_of_a_merge() -> None:
    told = threading.Event()

    def merge() -> None:
        raise OSError("storage is down")

    merging = MergeThread(merge, 0, lambda *_: told.set())
    merging.start()
    merging.want()
    assert told.wait(60)
    merging.end()
    merging.check()


def test_a_backlog_is_merged_once_it_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    mirror = AppendingMirror("/mirror", {})
    monkeypatch.setattr(mirror._merges.thread, "want", lambda at_once: told.append("at once" if at_once else "in time"))
    monkeypatch.setattr(mirror._merges.thread, "postpone", lambda: told.append("later"))

    def batch(changes: int, ends_snapshot: bool = False) -> str:
        mirror._merges.note_batch(0, changes, ends_snapshot=ends_snapshot)
        return told.pop()

    assert [batch(count) for count in (BACKLOG_CHANGES, 1)] == ["later", "at once"]
    assert mirror._merges.has_backlog
    mirror._merges.has_first = False
    assert [batch(1), batch(1)] == [
        "at once",
        "in time",
    ]  # the first version of a mirror comes soon, and is asked for once
    assert [batch(count) for count in (1, BACKLOG_CHANGES, BACKLOG_CHANGES, 1, 1)] == [
        *("in time", "later", "later", "at once", "in time"),
    ]
    assert batch(BACKLOG_CHANGES, ends_snapshot=True) == "at once"
    mirror._merges.waiting = MANY_CHANGES
    assert batch(BACKLOG_CHANGES) == "at once"
