"""What `walgate check` says of a position: no more than a start would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.cli.check import _Check
from gateway.config.settings import Settings
from gateway.startup.facts import Facts, Stored
from gateway.startup.findings import report_of
from tests.startup.facts import ACTIVE, FACTS, FRESH, STORED, with_slot

UNUSED = Stored({}, marker_topic_used=False)
OF_ANOTHER = replace(ACTIVE, slot="other")
BELONGS = "belongs to slot other"
LOST = with_slot(wal_status="lost", invalidation_reason="wal_removed")
PHYSICAL = with_slot(slot_type="physical", plugin=None, database=None)


@pytest.mark.parametrize(
    ("stored", "facts", "said"),
    [
        (STORED, with_slot(), []),
        (UNUSED, replace(FACTS, slot=None), []),
        (UNUSED, with_slot(), ["slot s exists, but no resume LSN"]),
        (replace(UNUSED, marker_topic_used=True), replace(FACTS, slot=None), ["has been used before"]),
        (Stored({OF_ANOTHER.key: OF_ANOTHER}, marker_topic_used=True), FACTS, [BELONGS]),
        (
            Stored({ACTIVE.key: replace(ACTIVE, prefix="old")}, marker_topic_used=False),
            FACTS,
            ["are written with the topic prefix 'old'"],
        ),
        (UNUSED, PHYSICAL, []),  # is reported with PostgreSQL
        (UNUSED, with_slot(database="other"), []),
        (UNUSED, LOST, ["has been invalidated: wal_removed"]),
        (STORED, LOST, ["has been invalidated: wal_removed"]),
    ],
)
def test_a_check_names_what_a_start_would_stop_for(stored: Stored, facts: Facts, said: list[str]) -> None:
    settings = Settings.model_validate({"source": {"dsn": "postgresql://u@h/d", "slot": "s", "publications": ["p"]}})
    check = _Check(settings)
    found = report_of(
        check._judge(replace(facts, moment=1), replace(stored, moment=2), replace(facts, moment=3), FRESH)
    ).errors
    assert len(found) == len(said), found
    assert all(words in error.message for words, error in zip(said, found, strict=True)), found
    would_be_first = any("would be the first start" in result.message for result in check._report.results)
    assert would_be_first == (stored.positions == {} and facts.slot is None and not said)
