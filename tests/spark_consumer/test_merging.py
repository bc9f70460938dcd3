"""When merges run: the thread waits for conditions, and so does this."""

from __future__ import annotations

import threading

import pytest

from spark_consumer.mirror.merging import Merging

LONG_S = 10_000.0


def test_what_waits_is_merged_when_it_is_due_and_at_once_where_somebody_says_so() -> None:
    merged = threading.Semaphore(0)

    def merge() -> bool:
        merged.release()
        return True

    for every_s, at_once in ((0.0, False), (LONG_S, True)):
        merging = Merging(merge, every_s)
        merging.start()
        for _ in range(2):
            merging.want(at_once=at_once)
            assert merged.acquire(timeout=60)
        merging.end()
        merging.check()


def test_a_merge_that_is_not_due_does_not_run_and_the_end_does_not_wait_for_it() -> None:
    merging = Merging(lambda: pytest.fail("not yet"), LONG_S)
    merging.start()
    merging.want()
    merging.end()
    merging.check()


def test_the_error_of_a_merge_is_raised_where_batches_are_appended() -> None:
    def merge() -> bool:
        raise ZeroDivisionError

    merging = Merging(merge, 0)
    merging.start()
    merging.want()
    assert merging._thread is not None
    merging._thread.join(60)
    with pytest.raises(ZeroDivisionError):
        merging.check()


def test_nothing_is_merged_any_more_where_another_does_it() -> None:
    merging = Merging(lambda: False, 0)
    merging.start()
    merging.want()
    assert merging._thread is not None
    merging._thread.join(60)
    assert not merging._thread.is_alive()
    merging.check()
