"""Where a mirror or changelog goes on with a new checkpoint: on a transaction topic in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from spark_consumer.errors import MarkerError, OptionError, RangeExpired
from spark_consumer.reader import positions
from spark_consumer.reader.marker_log import MarkerLog
from spark_consumer.reader.markers import CommittedTransaction
from spark_consumer.reader.positions import Position, check_continues, parse_position
from spark_consumer.reader.read_planning import first_complete
from tests.spark_consumer.reader.test_offsets import GAP, NOTICE, Decoder, topic_of


@pytest.mark.parametrize(
    ("low", "start"),
    [
        (0, "lsn:0/1"),  # nothing was ever removed
        (1, "earliest"),  # what the mirror has was removed
        (2, "earliest"),  # but for its last transaction
        (2, "latest, nothing new"),
        (2, "lsn:0/1E"),
        (2, "time:1970-01-01T00:00:00.000030Z"),
        (5, "marker:5"),  # a person has said so
    ],
)
def test_a_mirror_with_a_new_checkpoint_goes_on_where_it_stands(low: int, start: str) -> None:
    """It has 10, 20 and 30."""
    later = () if start.endswith("nothing new") else (0, 40, 50, 0)
    log = MarkerLog(replace(topic_of(10, 20, 30, *later), low=[low]), "cdc.transaction", Decoder({}, "cdc.transaction"))
    check_continues(parse_position("startingPosition", start.partition(",")[0]), 30, log)


@pytest.mark.parametrize("start", ["earliest", "latest", "lsn:0/1E", "time:1970-01-01T00:00:00.000030Z"])
@pytest.mark.parametrize(("low", "lsns"), [(3, (10, 20, 30, 40, 50)), (4, (10, 20, 30, 0, 40)), (3, (10, 20, 30))])
def test_a_mirror_does_not_go_on_behind_what_retention_may_have_removed(
    low: int, lsns: tuple[int, ...], start: str
) -> None:
    """Whether another one came between 30 and the first that is left, nothing tells."""
    log = MarkerLog(replace(topic_of(*lsns), low=[low]), "cdc.transaction", Decoder({}, "cdc.transaction"))
    with pytest.raises(
        RangeExpired, match=rf"begins at offset {low}, .*\n.* --starting-position marker:{low}, "
    ) as caught:
        check_continues(parse_position("startingPosition", start), 30, log)
    assert "all changes up to 0/1E" in str(caught.value)
    check_continues(Position("marker", low), 30, log)


@pytest.mark.parametrize("start", ["earliest", "latest", "lsn:0/1E"])
@pytest.mark.parametrize("lsns", [(), (0, 0), (40, 50), (0, NOTICE + 1), (NOTICE + 1, 0, 40)])
def test_a_mirror_does_not_go_on_in_a_topic_that_begins_after_it(lsns: tuple[int, ...], start: str) -> None:
    """Nothing was removed from the topic, and it lacks what the mirror has: the prefix is another
    one, or the topic was recreated."""
    log = MarkerLog(topic_of(*lsns), "cdc.transaction", Decoder({}, "cdc.transaction"))
    with pytest.raises(RangeExpired, match=r"another marker topic.*\n.* --starting-position marker:0, "):
        check_continues(parse_position("startingPosition", start), 30, log)
    check_continues(Position("marker", 0), 30, log)


@pytest.mark.parametrize("start", ["earliest", "latest", "lsn:0/1E", "marker:1"])
@pytest.mark.parametrize("lsns", [(10, 20), (10, 40, 50), (10, 29, 31), (10, GAP + 29, GAP + 31, 40), (NOTICE + 1, 30)])
def test_a_mirror_does_not_go_on_in_a_topic_without_its_last_transaction(lsns: tuple[int, ...], start: str) -> None:
    """It is that of another server or prefix: transactions up to the mirror's position would be
    skipped."""
    log = MarkerLog(topic_of(*lsns), "cdc.transaction", Decoder({}, "cdc.transaction"))
    taken_lsn = NOTICE + 2 if lsns[0] > NOTICE else 30
    with pytest.raises(MarkerError, match=r"another marker topic.*\nFirst check kafka\.bootstrap\.servers"):
        check_continues(parse_position("startingPosition", start), taken_lsn, log)


@pytest.mark.parametrize(
    "lsns", [(10, 30, 40), (10, GAP + 30, 31), (10, 20, GAP + 25, GAP + 30), (10, GAP + 30, NOTICE + 9)]
)
def test_a_mirror_goes_on_after_its_last_transaction_or_gap(lsns: tuple[int, ...]) -> None:
    log = MarkerLog(topic_of(*lsns), "cdc.transaction", Decoder({}, "cdc.transaction"))
    check_continues(Position("earliest"), 30, log)


@pytest.mark.parametrize("low", [0, 3, 4])
@pytest.mark.parametrize("start", ["earliest", "latest", "lsn:0/1E", "marker:4", "marker:6"])
def test_each_way_on_after_lost_records_is_taken(low: int, start: str) -> None:
    """Markers remain of which the records were removed: those of 40 and 50."""
    topic = replace(topic_of(10, 20, 30, 40, 50, 60), low=[low])
    log = MarkerLog(topic, "cdc.transaction", Decoder({}, "cdc.transaction"))

    def lost(transactions: Iterable[CommittedTransaction]) -> int | None:
        return first_complete(transactions, lambda _: True, lambda *_: 5)

    with pytest.raises(RangeExpired, match=r"(?s)all changes up to 0/1E.* --starting-position marker:5, then"):
        check_continues(parse_position("startingPosition", start), 30, log, lost=lost)
    check_continues(Position("marker", 5), 30, log, lost=lost)
    if low == 0:
        check_continues(Position("earliest"), 50, log, lost=lost)


@pytest.mark.parametrize(
    ("lsns", "table"), [((10, 41, 42, 43, 50, 60, 70), "public.a"), ((10, 20, 30, 40, 51, 52, 60), "public.b")]
)
def test_the_position_after_lost_records_is_taken_behind_many_markers(
    monkeypatch: pytest.MonkeyPatch, lsns: tuple[int, ...], table: str
) -> None:
    """A table has no records in the markers that are searched at first, and has lost those of
    offsets 4 and 5. The query finds that, and names the position."""
    monkeypatch.setattr(positions, "STEP", 2)
    log = MarkerLog(topic_of(*lsns), "cdc.transaction", Decoder({}, "cdc.transaction"))

    def lost(transactions: Iterable[CommittedTransaction]) -> int | None:
        return first_complete(transactions, lambda _: True, lambda topic, _: 6 if topic == f"cdc.{table}" else 0)

    check_continues(Position("earliest"), 10, log, lost=lost)
    check_continues(Position("marker", 6), 10, log, lost=lost)
    with pytest.raises(RangeExpired, match="--starting-position marker:6, then"):
        check_continues(Position("marker", 5), 10, log, lost=lost)
    for start in (4, 7):
        with pytest.raises((OptionError, RangeExpired)):
            check_continues(Position("marker", start), 10, log, lost=lost)


def test_a_mirror_that_has_only_marks_goes_on_with_a_new_checkpoint() -> None:
    for later in ((), (NOTICE + 2, NOTICE + 10)):
        log = MarkerLog(topic_of(NOTICE + 1, *later), "cdc.transaction", Decoder({}, "cdc.transaction"))
        check_continues(Position("earliest"), NOTICE + 1, log)


@pytest.mark.parametrize("start", ["latest", "lsn:0/28", "time:1970-01-01T00:00:00.000040Z", "marker:5"])
def test_a_new_checkpoint_does_not_begin_behind_changes_that_a_mirror_lacks(start: str) -> None:
    log = MarkerLog(topic_of(10, 20, 30, 0, 40, 50), "cdc.transaction", Decoder({}, "cdc.transaction"))
    with pytest.raises(OptionError, match=r"after the transaction at 0/28, which it would miss\nRestart without"):
        check_continues(parse_position("startingPosition", start), 30, log)
