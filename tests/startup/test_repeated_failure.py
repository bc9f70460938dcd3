"""The same error at the same LSN: how it is counted, how long it is waited for, and when it is a
stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.errors import RetrySlowly
from gateway.observe.status_board import StatusBoard
from gateway.startup.facts import Expected, PublicationFacts, PublishedColumn
from gateway.startup.findings import OperatorWarning
from gateway.startup.publication_checks import check_publications
from gateway.startup.repeated_failure import (
    DecodingFailed,
    ServerCrashed,
    counted_again,
    from_record,
    judge_repeated_failure,
    to_record,
    wait_s,
)
from gateway.startup.server_notices import LeftOut
from gateway.transactions.position import FailedPlace, Position, advance
from schemas.lsn import Lsn
from tests.startup.facts import FACTS, ORDERS, PUBLICATION

FAILED = DecodingFailed("ERROR 22012", "22012", Lsn(120))
CRASHED = ServerCrashed("the server closed the connection")


def _counted(times: int, failure: DecodingFailed | ServerCrashed) -> DecodingFailed | ServerCrashed:
    found: DecodingFailed | ServerCrashed | None = None
    for number in range(times):
        found = counted_again(found, failure, 100, f"time {number}", has_passed=False)
    assert found is not None
    return found


def test_the_same_error_at_the_same_lsn_is_counted_since_it_came_first() -> None:
    third = _counted(3, FAILED)
    assert (third.times, third.since, third.resume_lsn) == (3, "time 0", 100)


@pytest.mark.parametrize(
    ("failure", "resume_lsn", "has_passed"),
    [
        (replace(FAILED, sqlstate="22P02"), 100, False),
        (CRASHED, 100, False),
        (FAILED, 101, False),
        (FAILED, 100, True),
    ],
)
def test_another_error_another_lsn_and_a_place_that_was_passed_begin_anew(
    failure: DecodingFailed | ServerCrashed, resume_lsn: int, has_passed: bool
) -> None:
    again = counted_again(_counted(3, FAILED), failure, resume_lsn, "now", has_passed=has_passed)
    assert (again.times, again.since) == (1, "now")


def test_what_was_reported_before_may_be_something_else() -> None:
    assert counted_again(LeftOut("skipped", ends_stream=False), FAILED, 100, "now", has_passed=False).times == 1


POSITION = Position("71", 1, "shop", "s", "cdc", ("p",), "1.0", resume_lsn=Lsn(100))


@pytest.mark.parametrize("failure", [FAILED, CRASHED])
def test_a_new_process_goes_on_with_the_count_of_the_one_before(failure: DecodingFailed | ServerCrashed) -> None:
    position = replace(POSITION, failed_place=to_record(_counted(3, failure), POSITION))
    assert to_record(None, position) == position.failed_place
    again = counted_again(from_record(position), failure, 100, "now", has_passed=False)
    assert (again.times, again.since) == (4, "time 0")
    stop = judge_repeated_failure(again, resume_lsn=100, slot="s")
    assert stop is not None and "4 times since time 0" in stop.message


def test_the_latest_count_of_several_processes_is_recorded() -> None:
    others = replace(POSITION, failed_place=FailedPlace("22012", Lsn(100), 3, "time 0"))
    assert to_record(_counted(2, FAILED), others) == others.failed_place
    assert to_record(replace(_counted(1, FAILED), since="time 1"), others) == FailedPlace(
        "22012", Lsn(100), 1, "time 1"
    )
    assert to_record(replace(_counted(1, FAILED), resume_lsn=101), others) == others.failed_place
    assert to_record(LeftOut("skipped", ends_stream=False), others) is None


def test_a_repeated_failure_that_was_passed_is_forgotten() -> None:
    position = replace(POSITION, failed_place=to_record(_counted(3, FAILED), POSITION))
    assert advance(position, 100, 90, ()).failed_place == position.failed_place
    passed = advance(position, 101, 100, ())
    assert passed.failed_place is None and from_record(passed) is None
    assert from_record(replace(position, resume_lsn=Lsn(101))) is None  # as after accept-gap


def test_a_crash_of_the_server_is_waited_for_in_minutes() -> None:
    assert [wait_s(_counted(times, CRASHED)) for times in range(1, 7)] == [2.0, 60.0, 120.0, 0.2, 480.0, 600.0]
    assert [wait_s(_counted(times, FAILED)) for times in range(1, 7)] == [2.0, 4.0, 8.0, 0.2, 32.0, 60.0]
    assert [wait_s(replace(failure, times=5000)) for failure in (CRASHED, FAILED)] == [600.0, 60.0]
    internal = replace(FAILED, sqlstate="XX000")
    assert [wait_s(_counted(times, internal)) for times in (1, 5, 6, 7, 8)] == [2.0, 32.0, 60.0, 60.0, 0.2]


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (FAILED, "row filters as they were"),
        (replace(FAILED, sqlstate="0A000", is_of_publications=True), "disagreed about the columns"),
        (replace(FAILED, sqlstate="42P01"), "newer minor release"),
        (CRASHED, "FINALIZE"),
    ],
)
def test_the_fourth_time_is_a_stop_with_the_lsn_and_the_ways_on(
    failure: DecodingFailed | ServerCrashed, hint: str
) -> None:
    assert judge_repeated_failure(_counted(3, failure), resume_lsn=100, slot="s") is None
    assert judge_repeated_failure(_counted(4, failure), resume_lsn=101, slot="s") is None
    stop = judge_repeated_failure(_counted(4, failure), resume_lsn=100, slot="s")
    assert stop is not None and "0/64" in stop.message and "4 times since time 0" in stop.message
    assert hint in stop.hint and "accept-gap --until-now" in stop.hint


def test_publications_that_differ_in_generated_columns_are_told_so() -> None:
    twice = PublishedColumn("twice", 23, -1, "integer")
    plain = replace(ORDERS, has_column_list=False)
    stored = replace(plain, columns=(*ORDERS.columns, twice))
    first = replace(PUBLICATION, relations=(plain,))
    second = replace(PUBLICATION, name="q", relations=(stored,))
    (error,) = _findings(first, second)
    assert isinstance(error, RetrySlowly) and "publish_generated_columns" in error.message
    assert "DROP TABLE" not in error.hint
    (error,) = _findings(first, replace(second, relations=(replace(stored, has_column_list=True),)))
    assert isinstance(error, RetrySlowly) and "column lists" in error.message


def test_a_partition_that_is_being_detached_is_warned_about() -> None:
    pending = replace(PUBLICATION, relations=(ORDERS,), detaching=(("shop.root", "shop.p2"),))
    (warning,) = _findings(pending)
    assert isinstance(warning, OperatorWarning)
    assert "ALTER TABLE shop.root DETACH PARTITION shop.p2 FINALIZE" in warning.hint


def _findings(*publications: PublicationFacts) -> list[object]:
    facts = replace(FACTS, publications={publication.name: publication for publication in publications})
    return list(check_publications(facts, Expected("s", tuple(publication.name for publication in publications))))


def test_status_and_metric_show_how_often_and_since_when() -> None:
    board = StatusBoard()
    board.failed(RetrySlowly("cannot"), times=3, since="noon", resume_lsn=100)
    error = board.snapshot().last_error
    assert error is not None and (error.times, error.since, error.resume_lsn) == (3, "noon", 100)
