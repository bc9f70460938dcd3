from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.kafka.position import Position
from gateway.lsn import Lsn
from gateway.operate.errors import DataGap, StopForOperator
from gateway.service.start import decide_start

FRESH = Position("7", 1, "shop", "walgate", "cdc", ("walgate",), "1.0")
ACTIVE = replace(FRESH, state="ACTIVE", epoch=4, resume_lsn=Lsn(500))


def test_a_first_start_writes_its_intent_and_makes_the_slot() -> None:
    start = decide_start({}, FRESH, None, 0, adopt_slot=False)
    assert (start.write_intent, start.create_slot) == (True, True)


def test_a_slot_without_a_position_is_adopted_only_when_told_to() -> None:
    with pytest.raises(StopForOperator, match="adopt_slot"):
        decide_start({}, FRESH, Lsn(300), 0, adopt_slot=False)
    start = decide_start({}, FRESH, Lsn(300), 0, adopt_slot=True)
    assert (start.position.resume_lsn, start.create_slot) == (300, False)


def test_a_crash_between_intent_and_slot_makes_the_slot_now() -> None:
    start = decide_start({FRESH.key: FRESH}, FRESH, None, 0, adopt_slot=False)
    assert (start.write_intent, start.create_slot) == (False, True)


def test_a_crash_between_slot_and_epoch_goes_on_from_the_slot() -> None:
    start = decide_start({FRESH.key: FRESH}, FRESH, Lsn(300), 0, adopt_slot=False)
    assert (start.position.resume_lsn, start.create_slot) == (300, False)


def test_a_known_slot_goes_on_from_its_position() -> None:
    start = decide_start({FRESH.key: ACTIVE}, replace(FRESH, publications=("a", "b")), Lsn(300), 9, adopt_slot=True)
    assert (start.position.resume_lsn, start.position.epoch) == (500, 4)
    assert start.position.publications == ("a", "b")


def test_a_slot_that_is_gone_is_a_gap_and_never_made_again() -> None:
    with pytest.raises(DataGap, match="0/1F4"):
        decide_start({FRESH.key: ACTIVE}, FRESH, None, 9, adopt_slot=True)


@pytest.mark.parametrize("other", [replace(ACTIVE, slot="other"), replace(ACTIVE, system_identifier="8")])
def test_a_prefix_of_another_slot_is_refused(other: Position) -> None:
    with pytest.raises(StopForOperator, match="belongs to slot"):
        decide_start({other.key: other}, FRESH, None, 9, adopt_slot=False)


def test_a_slot_keeps_its_prefix() -> None:
    with pytest.raises(StopForOperator, match="writes to the prefix 'cdc'"):
        decide_start({FRESH.key: ACTIVE}, replace(FRESH, prefix="other"), Lsn(300), 9, adopt_slot=False)


def test_a_prefix_with_markers_of_a_lost_position_is_refused() -> None:
    for slot_flush_lsn in (None, Lsn(300)):
        with pytest.raises(StopForOperator, match="was used before"):
            decide_start({}, FRESH, slot_flush_lsn, 9, adopt_slot=True)


def test_a_marker_topic_that_was_deleted_is_a_gap() -> None:
    with pytest.raises(DataGap, match="deleted and made again"):
        decide_start({FRESH.key: ACTIVE}, FRESH, Lsn(300), 0, adopt_slot=True)
