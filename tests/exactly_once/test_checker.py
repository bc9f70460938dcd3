"""The checker against topics made by hand: silent where all is well, and one broken promise is
exactly one finding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.exactly_once.checker import check, check_attempts
from tests.exactly_once.defects import Defect
from tests.exactly_once.handmade import PARTITIONS, PREFIX, Handmade, everything
from tests.exactly_once.history import Statement
from tests.support.delivered import Record

Break = Callable[[Handmade], None]
CASES: list[tuple[Defect, Break]] = []


def breaks(defect: Defect) -> Callable[[Break], Break]:
    def note(case: Break) -> Break:
        CASES.append((defect, case))
        return case

    return note


def marker(made: Handmade, kind: str, xid: int) -> Record:
    return next(one for one in made.delivered.markers if one.value["kind"] == kind and one.value["xid"] == xid)


def row(made: Handmade, xid: int, ordinal: int, operation: str | None = None) -> Record:
    return next(
        one
        for one in made.delivered.events
        if (one.value["xid"], one.value["ordinal"]) == (xid, ordinal) and operation in (None, one.value["op"])
    )


def manifest(made: Handmade, kind: str, xid: int) -> dict[str, Any]:
    """Of that marker alone: a PREPARE and its COMMIT share one in the handmade topics."""
    found = marker(made, kind, xid)
    found.value["manifest"] = copy.deepcopy(found.value["manifest"])
    own: dict[str, Any] = found.value["manifest"]
    return own


def drop_markers(made: Handmade, xid: int) -> None:
    made.delivered.markers = [one for one in made.delivered.markers if one.value["xid"] != xid]


def move(made: Handmade, record: Record, **fields: Any) -> None:
    made.delivered.events[made.delivered.events.index(record)] = replace(record, **fields)
    made.delivered.events.sort(key=lambda one: (one.topic, one.partition, one.offset))


def repeat(made: Handmade, record: Record) -> None:
    """A copy right behind it. It has the same offset, so that the rest stays where it is."""
    made.delivered.events.insert(made.delivered.events.index(record), record)


def test_topics_without_a_fault_have_no_finding() -> None:
    made = everything()
    assert check(made.delivered, made.truth, prefix=PREFIX) == []
    assert check_attempts(made.delivered, made.truth) == []


@breaks(Defect.LOST)
def a_transaction_is_missing_with_all_its_records(made: Handmade) -> None:
    drop_markers(made, 504)
    made.delivered.events = [one for one in made.delivered.events if one.value["xid"] != 504]


@breaks(Defect.LOST)
def a_row_was_never_sent_though_the_manifest_adds_up(made: Handmade) -> None:
    logged = made.truth.transactions[0]
    made.truth.transactions[0] = replace(
        logged, statements=(*logged.statements, Statement(9, "INSERT", "work.plain", (99,)))
    )


@breaks(Defect.LOST)
def a_subtransaction_is_dropped_that_was_not_rolled_back(made: Handmade) -> None:
    logged = made.truth.transactions[1]
    made.truth.transactions[1] = replace(logged, statements=(Statement(0, "INSERT", "work.plain", (20, 21)),))


@breaks(Defect.DOUBLED)
def a_row_is_there_twice(made: Handmade) -> None:
    repeat(made, row(made, 504, 1))


@breaks(Defect.DOUBLED)
def a_transaction_is_committed_twice(made: Handmade) -> None:
    for kind in ("BEGIN", "COMMIT"):
        found = marker(made, kind, 508)
        made.delivered.markers.append(replace(found, offset=found.offset + 1000))


@breaks(Defect.DOUBLED)
def a_truncate_is_twice_in_one_partition(made: Handmade) -> None:
    repeat(made, row(made, 506, 0))


@breaks(Defect.LOST)
def a_message_outside_transactions_is_missing(made: Handmade) -> None:
    made.delivered.events.remove(made.delivered.events[0])


@breaks(Defect.DOUBLED)
def a_message_outside_transactions_is_there_twice(made: Handmade) -> None:
    repeat(made, made.delivered.events[0])


@breaks(Defect.GHOST)
def a_message_outside_transactions_was_never_written(made: Handmade) -> None:
    made.truth.message_lsns.clear()


@breaks(Defect.TORN)
def one_row_of_a_transaction_is_missing(made: Handmade) -> None:
    made.delivered.events.remove(row(made, 504, 1))


@breaks(Defect.TORN)
def a_truncate_does_not_reach_every_partition(made: Handmade) -> None:
    made.delivered.events.remove(row(made, 506, 0))


@breaks(Defect.TORN)
def a_moved_row_keeps_its_dead_key(made: Handmade) -> None:
    made.delivered.events.remove(row(made, 507, 0, "DELETE"))


@breaks(Defect.TORN)
def the_rows_of_a_transaction_are_there_without_its_marker(made: Handmade) -> None:
    drop_markers(made, 504)
    made.truth.transactions = [one for one in made.truth.transactions if one.xid != 504]


@breaks(Defect.GHOST)
def a_transaction_is_there_that_never_committed(made: Handmade) -> None:
    made.truth.transactions = [one for one in made.truth.transactions if one.xid != 504]


@breaks(Defect.GHOST)
def a_row_is_there_that_was_rolled_back_with_its_savepoint(made: Handmade) -> None:
    manifest(made, "STREAM_COMMIT", 502)["aborted_subxids"] = []


@breaks(Defect.ORDER)
def two_statements_of_a_transaction_changed_places(made: Handmade) -> None:
    logged = made.truth.transactions[0]
    made.truth.transactions[0] = replace(logged, statements=tuple(reversed(logged.statements)))


@breaks(Defect.ORDER)
def two_records_of_a_partition_changed_places(made: Handmade) -> None:
    """Ordinal 0 and 2 of a transaction have the same key and so the same partition."""
    first, last = row(made, 504, 0), row(made, 504, 2)
    first.value["ordinal"], last.value["ordinal"] = 2, 0
    first.value["change_lsn"], last.value["change_lsn"] = last.value["change_lsn"], first.value["change_lsn"]


@breaks(Defect.LSN)
def a_row_has_another_commit_lsn_than_its_marker(made: Handmade) -> None:
    row(made, 504, 2).value["commit_lsn"] += 1


@breaks(Defect.LSN)
def a_streamed_row_says_that_it_is_committed(made: Handmade) -> None:
    found = marker(made, "STREAM_COMMIT", 502).value
    row(made, 502, 0).value.update(commit_lsn=found["marker_lsn"], commit_time=found["time"])


@breaks(Defect.LSN)
def a_marker_has_another_end_lsn_than_postgresql(made: Handmade) -> None:
    marker(made, "COMMIT", 504).value["end_lsn"] += 1


@breaks(Defect.LSN)
def a_commit_time_is_off_by_a_microsecond(made: Handmade) -> None:
    logged = made.truth.transactions[2]
    assert logged.committed is not None
    later = replace(logged.committed, commit_time=logged.committed.commit_time + timedelta(microseconds=1))
    made.truth.transactions[2] = replace(logged, committed=later)


@breaks(Defect.LSN)
def a_change_lsn_goes_back_within_a_transaction(made: Handmade) -> None:
    row(made, 504, 2).value["change_lsn"] = 1


@breaks(Defect.MANIFEST)
def a_manifest_is_missing(made: Handmade) -> None:
    marker(made, "COMMIT", 504).value["manifest"] = None


@breaks(Defect.MANIFEST)
def a_range_counts_too_few_records(made: Handmade) -> None:
    manifest(made, "COMMIT", 504)["ranges"][0]["record_count"] -= 1


@breaks(Defect.MANIFEST)
def a_range_is_missing(made: Handmade) -> None:
    manifest(made, "COMMIT", 504)["ranges"].pop()


@breaks(Defect.MANIFEST)
def two_ranges_overlap(made: Handmade) -> None:
    ranges = manifest(made, "COMMIT", 504)["ranges"]
    ranges.append({**ranges[0], "record_count": 0})


@breaks(Defect.MANIFEST)
def an_event_count_is_too_high(made: Handmade) -> None:
    manifest(made, "COMMIT", 504)["event_count"] += 1


@breaks(Defect.MANIFEST)
def a_schema_id_is_not_named(made: Handmade) -> None:
    manifest(made, "COMMIT", 504)["schema_ids"] = [8]


@breaks(Defect.MANIFEST)
def a_commit_prepared_repeats_another_manifest(made: Handmade) -> None:
    manifest(made, "PREPARE", 505)["schema_ids"] = [7, 8]


@breaks(Defect.MARKERS)
def a_commit_has_no_begin(made: Handmade) -> None:
    made.delivered.markers.remove(marker(made, "BEGIN", 504))


@breaks(Defect.MARKERS)
def a_begin_told_another_commit_lsn(made: Handmade) -> None:
    marker(made, "BEGIN", 504).value["marker_lsn"] += 1


@breaks(Defect.MARKERS)
def a_stream_commit_had_no_segment_in_its_epoch(made: Handmade) -> None:
    made.delivered.markers = [
        one for one in made.delivered.markers if one.value["xid"] != 502 or one.value["kind"] == "STREAM_COMMIT"
    ]


@breaks(Defect.MARKERS)
def a_segment_has_no_end(made: Handmade) -> None:
    made.delivered.markers.remove(marker(made, "STREAM_STOP", 502))
    stop = marker(made, "STREAM_STOP", 502)
    made.delivered.markers.insert(made.delivered.markers.index(stop) + 1, stop)
    made.delivered.markers.remove(stop)


@breaks(Defect.MARKERS)
def a_commit_prepared_had_no_prepare(made: Handmade) -> None:
    made.delivered.markers = [
        one for one in made.delivered.markers if one.value["kind"] not in ("BEGIN_PREPARE", "PREPARE")
    ]


@breaks(Defect.RISING)
def a_commit_lsn_falls_behind_the_one_before(made: Handmade) -> None:
    """The last transaction moves in front of the one before, with all its LSNs true."""
    markers = made.delivered.markers
    last = [one for one in markers if one.value["xid"] == 508]
    rest = [one for one in markers if one.value["xid"] != 508]
    before = rest.index(marker(made, "BEGIN", 507))
    made.delivered.markers = rest[:before] + last + rest[before:]
    made.delivered.positions.pop()
    made.delivered.positions[-1].value.update(resume_lsn=2**40, last_commit_lsn=2**40)


@breaks(Defect.EPOCH)
def an_epoch_was_not_announced(made: Handmade) -> None:
    for one in made.delivered.markers + made.delivered.events:
        if one.value["xid"] == 508:
            one.value["epoch"] = 3
    begin = marker(made, "BEGIN", 508)
    made.delivered.markers.remove(begin)
    commit = marker(made, "COMMIT", 508)
    commit.value["manifest"]["epoch"] = 3
    commit.value["epoch"] = 3
    begin.value["epoch"] = 2
    made.delivered.markers.insert(made.delivered.markers.index(commit), begin)


@breaks(Defect.EPOCH)
def an_older_gateway_writes_after_a_newer_one(made: Handmade) -> None:
    last = made.delivered.events[-1]
    ghost = dict(last.value, epoch=1, commit_lsn=None, commit_time=None, xid=999)
    made.delivered.events.append(replace(last, offset=last.offset + 1, value=ghost))


@breaks(Defect.VOID)
def in_progress_rows_of_an_earlier_epoch_count(made: Handmade) -> None:
    """As a gateway would write that goes on in the middle of a streamed transaction after a
    restart."""
    manifest(made, "STREAM_COMMIT", 502)["epoch"] = 0
    for ordinal in (0, 1):
        row(made, 502, ordinal).value["epoch"] = 0


@breaks(Defect.KEY)
def a_record_lies_in_another_partition_than_its_key_says(made: Handmade) -> None:
    record = row(made, 508, 1)
    move(made, record, partition=1 - record.partition, offset=1000)
    records = [one for one in made.delivered.events if one.value["xid"] == 508]
    marker(made, "COMMIT", 508).value["manifest"] = made.manifest(records)


@breaks(Defect.VALUE)
def a_value_is_not_the_one_that_was_written(made: Handmade) -> None:
    row(made, 504, 1).value["after"]["payload"] = "3/30/x"


@breaks(Defect.POSITION)
def a_position_goes_back(made: Handmade) -> None:
    made.delivered.positions[1].value["resume_lsn"] = 1


@breaks(Defect.POSITION)
def the_newest_position_is_behind_the_newest_commit(made: Handmade) -> None:
    made.delivered.positions.pop()
    made.delivered.positions[-1].value["resume_lsn"] = 2**40


@breaks(Defect.POSITION)
def a_prepared_transaction_is_forgotten(made: Handmade) -> None:
    made.delivered.markers.remove(marker(made, "COMMIT_PREPARED", 505))
    made.truth.transactions = [one for one in made.truth.transactions if one.xid != 505]


@pytest.mark.parametrize(("defect", "case"), CASES, ids=[f"{case.__name__}" for _, case in CASES])
def test_one_broken_promise_is_exactly_one_finding(defect: Defect, case: Break) -> None:
    made = everything()
    case(made)
    findings = check(made.delivered, made.truth, prefix=PREFIX)
    assert [finding.defect for finding in findings] == [defect], "\n".join(map(str, findings))


def test_every_defect_of_a_committed_reader_has_a_case() -> None:
    assert {defect for defect, _ in CASES} == set(Defect) - {Defect.UNSTABLE}


def test_a_repeated_attempt_that_differs_is_found() -> None:
    made = everything()
    record = row(made, 504, 1)
    made.delivered.events.append(replace(record, offset=2000, value=dict(record.value, epoch=9)))
    assert check_attempts(made.delivered, made.truth) == []
    made.delivered.events.append(replace(record, offset=2001, value=dict(record.value, change_lsn=5)))
    assert [one.defect for one in check_attempts(made.delivered, made.truth)] == [Defect.UNSTABLE]


def test_an_attempt_at_a_transaction_that_never_committed_is_found() -> None:
    made = everything()
    made.truth.transactions = [one for one in made.truth.transactions if one.xid != 506]
    assert {one.defect for one in check_attempts(made.delivered, made.truth)} == {Defect.GHOST}
    assert len(check_attempts(made.delivered, made.truth)) == PARTITIONS
