from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.startup.facts import Facts, SlotFacts, Stored, SystemIdentity
from gateway.startup.server_notices import LeftOut, Reported, WalRemoved
from gateway.startup.start import (
    BeginEpoch,
    CreateSlot,
    Fence,
    Identify,
    LoadFacts,
    LookAtPositions,
    PrepareKafka,
    ProveFence,
    ReadPositions,
    Record,
    Step,
    TimelineHistory,
    WithdrawIntent,
    WriteIntent,
    start,
)
from gateway.startup.timeline_checks import LeftBehind, NotPrimary
from gateway.transactions.position import Position
from schemas.lsn import Lsn
from tests.startup.facts import ACTIVE, EXPECTED, FACTS, FRESH, STORED, marked, with_server, with_slot, without_slot
from tests.startup.script import IDENTITY, Answer, carried_out

NOTHING_STORED = Stored({}, marker_topic_used=False)
INTENT_STORED = Stored({FRESH.key: FRESH}, marker_topic_used=False)
SLOT_CREATED: dict[type, Answer] = {CreateSlot: lambda _: Lsn(1900)}


def started(
    facts: Facts,
    stored: Stored,
    *,
    adopt_slot: bool = False,
    fresh: Position = FRESH,
    reported: Reported | None = None,
    answers: dict[type, Answer] | None = None,
    identity: SystemIdentity = IDENTITY,
    done: list[Step] | None = None,
) -> tuple[Position, list[Step]]:
    steps = start(EXPECTED, lambda _: fresh, adopt_slot=adopt_slot, reported=reported)
    return carried_out(steps, facts, stored, answers, identity=identity, done=done)


def kinds(steps: list[Step]) -> list[type]:
    return [type(step) for step in steps]


def test_a_known_slot_goes_on_from_its_position_in_a_new_epoch() -> None:
    position, steps = started(FACTS, STORED, fresh=replace(FRESH, publications=("a", "b")))
    assert kinds(steps) == [
        LoadFacts,
        PrepareKafka,
        LookAtPositions,
        LoadFacts,
        Fence,
        LoadFacts,
        ReadPositions,
        LoadFacts,
        Identify,
        BeginEpoch,
    ]
    assert (position.resume_lsn, position.epoch, position.publications) == (1500, 5, ("a", "b"))
    assert steps[-1] == BeginEpoch(position)


def test_a_first_start_writes_its_intent_and_creates_the_slot() -> None:
    position, steps = started(without_slot(), NOTHING_STORED, answers=SLOT_CREATED)
    assert kinds(steps)[-5:] == [WriteIntent, LookAtPositions, CreateSlot, Identify, BeginEpoch]
    assert (position.resume_lsn, position.epoch, position.state) == (1900, 1, "ACTIVE")


def test_a_crash_between_intent_and_slot_creates_the_slot_now() -> None:
    _, steps = started(without_slot(), INTENT_STORED, answers=SLOT_CREATED)
    assert kinds(steps)[-3:] == [CreateSlot, Identify, BeginEpoch]


def test_a_crash_between_slot_and_epoch_goes_on_from_the_slot() -> None:
    position, steps = started(FACTS, INTENT_STORED)
    assert position.resume_lsn == 1000
    assert kinds(steps)[-3:] == [LoadFacts, Identify, BeginEpoch]


def test_a_slot_that_another_process_is_creating_is_waited_for() -> None:
    with pytest.raises(Retry, match="is being created"):
        started(with_slot(confirmed_flush_lsn=None), INTENT_STORED)


def test_a_slot_without_a_position_is_adopted_only_on_demand() -> None:
    with pytest.raises(StopForOperator, match="it is not known which changes have been consumed through it"):
        started(FACTS, NOTHING_STORED)
    position, _ = started(FACTS, NOTHING_STORED, adopt_slot=True)
    assert position.resume_lsn == 1000


@pytest.mark.parametrize("other", [replace(ACTIVE, slot="other"), replace(ACTIVE, system_identifier="8")])
def test_a_prefix_of_another_slot_is_refused(other: Position) -> None:
    with pytest.raises(StopForOperator, match="belongs to slot"):
        started(without_slot(), Stored({other.key: other}, marker_topic_used=True))


OTHER_INTENT = replace(FRESH, slot="other")


def test_a_prefix_that_another_slot_took_at_the_same_moment_is_refused_and_the_intent_withdrawn() -> None:
    done: list[Step] = []
    both = Stored({each.key: each for each in (FRESH, OTHER_INTENT)}, marker_topic_used=False)
    with pytest.raises(StopForOperator, match="belongs to slot other") as caught:
        started(without_slot(), NOTHING_STORED, answers={LookAtPositions: lambda _: both}, done=done)
    assert "first time at the same moment" in caught.value.hint
    assert kinds(done)[-4:] == [WriteIntent, LookAtPositions, ProveFence, WithdrawIntent]


@pytest.mark.parametrize(
    ("facts", "prefix", "last"),
    [(without_slot(), "cdc", WithdrawIntent), (FACTS, "cdc", ProveFence), (without_slot(), "former", ProveFence)],
)
def test_an_earlier_intent_is_withdrawn_unless_a_slot_was_created_for_it(facts: Facts, prefix: str, last: type) -> None:
    done: list[Step] = []
    own = replace(FRESH, prefix=prefix)
    with pytest.raises(StopForOperator, match="belongs to slot other"):
        started(facts, Stored({own.key: own, ACTIVE.key + b"other": replace(ACTIVE, slot="other")}, False), done=done)
    assert kinds(done)[-1] is last


def test_an_upgraded_server_is_told_how_to_take_over() -> None:
    former = replace(ACTIVE, system_identifier="17")
    stored = Stored({former.key: former}, marker_topic_used=True)
    with pytest.raises(StopForOperator, match="belongs to slot") as caught:
        started(with_slot(confirmed_flush_lsn=Lsn(1700)), stored)
    assert "walgate adopt --from-system 17" in caught.value.hint
    with pytest.raises(StopForOperator, match="belongs to slot") as caught:
        started(without_slot(), stored)
    assert "adopt" not in caught.value.hint


def test_a_database_that_was_renamed_keeps_its_position() -> None:
    former = replace(ACTIVE, database="former")
    stored = Stored({former.key: former}, marker_topic_used=True)
    position, steps = started(FACTS, stored)
    assert (position.database, position.resume_lsn, position.epoch) == ("shop", ACTIVE.resume_lsn, ACTIVE.epoch + 1)
    assert steps[-1] == BeginEpoch(position, former.key)


@pytest.mark.parametrize(
    ("facts", "former"),
    [
        (without_slot(), replace(ACTIVE, database="former")),
        (with_slot(confirmed_flush_lsn=Lsn(1501)), replace(ACTIVE, database="former")),
        (FACTS, replace(ACTIVE, database="former", slot="other")),
        (FACTS, replace(ACTIVE, database="former", system_identifier="72")),
    ],
)
def test_nothing_but_the_slot_itself_shows_that_a_database_was_renamed(facts: Facts, former: Position) -> None:
    with pytest.raises(StopForOperator, match="belongs to slot"):
        started(facts, Stored({former.key: former}, marker_topic_used=True))


def test_a_slot_keeps_its_prefix() -> None:
    """The gateway that has the slot is not fenced: this server may be a copy of its server."""
    done: list[Step] = []
    with pytest.raises(StopForOperator, match="are written with the topic prefix 'cdc'") as caught:
        started(FACTS, STORED, fresh=replace(FRESH, prefix="other"), done=done)
    assert "copy of another one, choose another source.slot" in caught.value.hint and Fence not in kinds(done)
    with pytest.raises(StopForOperator, match="are written with the topic prefix 'cdc'"):
        started(
            FACTS,
            STORED,
            fresh=replace(FRESH, prefix="other"),
            answers={LookAtPositions: lambda _: NOTHING_STORED},
            done=done,
        )
    assert kinds(done)[-1] is ProveFence, "what was written since the look is judged"


@pytest.mark.parametrize("facts", [FACTS, without_slot()])
def test_a_prefix_with_markers_of_a_lost_position_is_refused(facts: Facts) -> None:
    with pytest.raises(StopForOperator, match="has been used before"):
        started(facts, Stored({}, marker_topic_used=True), adopt_slot=True)


@pytest.mark.parametrize(
    ("facts", "stored", "said"),
    [
        (without_slot(), STORED, "no longer exists; changes up to 0/5DC were delivered"),
        (with_slot(confirmed_flush_lsn=Lsn(1501)), STORED, "another process advanced the slot by 1 bytes of WAL"),
        (with_slot(wal_status="lost"), STORED, "has been invalidated"),
        (with_slot(invalidation_reason="wal_removed"), STORED, "has been invalidated: wal_removed"),
        (with_slot(wal_status="lost", conflicting=True), STORED, "conflicted"),
        (with_server(flush_lsn=Lsn(1499)), STORED, "the server is in an earlier state"),
        (FACTS, replace(STORED, marker_topic_used=False), "the topic was deleted and recreated"),
        (
            FACTS,
            marked(1400, newest=1399),
            "at 0/577, but .* up to the commit at 0/578: Kafka has lost the newest markers",
        ),
        (FACTS, marked(1400, newest=0), "Kafka has lost the newest markers"),
        (
            with_slot(confirmed_flush_lsn=Lsn(1501)),
            marked(0, newest=1401),
            "lost the newest records of walgate.position",
        ),
        (with_slot(confirmed_flush_lsn=Lsn(1501)), marked(0, newest=1400), "another process advanced the slot"),
    ],
)
def test_a_gap_is_named_only_by_a_gateway_that_still_owns_the_fence(facts: Facts, stored: Stored, said: str) -> None:
    done: list[Step] = []
    with pytest.raises(DataGap, match=said):
        started(facts, stored, done=done)
    assert kinds(done)[-1] is ProveFence

    def taken_over(_: Step) -> None:
        raise Retry("fenced")

    with pytest.raises(Retry, match="fenced"):
        started(facts, stored, answers={ProveFence: taken_over})


def test_a_server_that_was_set_back_stops_every_start_even_when_its_wal_has_passed() -> None:
    done: list[Step] = []
    with pytest.raises(DataGap, match="is after the end of the WAL, 0/5DB"):
        started(with_server(flush_lsn=Lsn(1499)), STORED, done=done)
    known = replace(ACTIVE, set_back_lsn=Lsn(1499))
    assert Record(known) in done
    stored = Stored({known.key: known}, marker_topic_used=True)
    for facts in (FACTS, with_slot(confirmed_flush_lsn=Lsn(1499))):
        with pytest.raises(DataGap, match="was after the end of the WAL, 0/5DB"):
            started(facts, stored, done=(done := []))
        assert kinds(done)[-1] is ProveFence and Record not in kinds(done)
    position, _ = started(with_slot(confirmed_flush_lsn=Lsn(1500)), stored)  # source.dsn was wrong
    assert (position.resume_lsn, position.set_back_lsn) == (1500, 0)


def test_a_server_that_was_set_back_is_recorded_under_the_new_name_of_its_database() -> None:
    former, done = replace(ACTIVE, database="former"), list[Step]()
    with pytest.raises(DataGap, match="is after the end of the WAL"):
        started(with_server(flush_lsn=Lsn(1499)), Stored({former.key: former}, marker_topic_used=True), done=done)
    assert Record(replace(ACTIVE, set_back_lsn=Lsn(1499)), forgets=former.key) in done


@pytest.mark.parametrize(
    "stored",
    [
        marked(1300, newest=1300),  # a later commit has no marker
        marked(1300, newest=None),  # retention has removed the markers of all commits
        marked(0, newest=0),  # nothing has committed yet, or an earlier release wrote the position
        marked(1300, newest=1600),  # with at_least_once, the position comes after its markers
    ],
)
def test_markers_that_are_not_lost_keep_no_gateway_from_its_start(stored: Stored) -> None:
    assert started(FACTS, stored)[0].resume_lsn == ACTIVE.resume_lsn


def test_where_to_go_on_without_the_newest_positions_doubles_nothing() -> None:
    for confirmed, command in ((1601, "walgate accept-gap"), (1600, "use a new source.slot")):
        with pytest.raises(DataGap) as lost:
            started(with_slot(confirmed_flush_lsn=Lsn(confirmed)), marked(1300, newest=1600))
        assert command in lost.value.hint and ("walgate accept-gap" in lost.value.hint) == (confirmed > 1600)
    with pytest.raises(DataGap, match="another process advanced the slot"):  # markers come before the position
        started(with_slot(confirmed_flush_lsn=Lsn(1600)), replace(marked(1300, newest=1600), at_least_once=True))


@pytest.mark.parametrize("look", [1, 2, 4])
@pytest.mark.parametrize("gone", [with_slot(confirmed_flush_lsn=Lsn(1900)), with_slot(wal_status="lost")])
def test_nothing_is_judged_while_another_process_holds_the_slot(look: int, gone: Facts) -> None:
    assert gone.slot is not None
    held = replace(gone, slot=replace(gone.slot, active_pid=99))
    looks = iter([held if number == look else gone for number in range(1, 5)])
    done: list[Step] = []
    with pytest.raises(Retry, match="in use by process 99"):
        started(FACTS, STORED, answers={LoadFacts: lambda _: next(looks)}, done=done)
    assert (Fence in kinds(done)) == (look == 4), "a stand-by that waits fences no gateway"


def test_a_server_that_a_failover_left_behind_is_waited_for() -> None:
    stored = Stored({ACTIVE.key: replace(ACTIVE, timeline=2)}, marker_topic_used=True)
    with pytest.raises(RetrySlowly, match="is an old primary"):
        started(without_slot(), stored)


PROMOTED_BEFORE = "1\t0/500\tno recovery target specified\n"


def replaying(timeline: int, system: str = "71") -> SystemIdentity:
    return SystemIdentity(system, timeline, Lsn(2000), "shop")


@pytest.mark.parametrize("stored", [NOTHING_STORED, STORED])
@pytest.mark.parametrize("slot", [None, FACTS.slot])
def test_a_standby_is_not_read_and_nothing_is_left_on_it(stored: Stored, slot: SlotFacts | None) -> None:
    """It may be promoted, or another host of the DSN be the primary; no slot is created, and
    nothing is said of one that is not there."""
    done: list[Step] = []
    with pytest.raises(NotPrimary, match="the gateway reads from the primary only"):
        started(replace(with_server(in_recovery=True), slot=slot), stored, done=done)
    assert kinds(done) == [LoadFacts]


@pytest.mark.parametrize(
    ("facts", "timeline", "identity", "history", "kind"),
    [
        (FACTS, 1, replaying(2), "", Retry),
        (FACTS, 1, replaying(1, "72"), "", Retry),
        (with_server(timeline=2), 1, replaying(2), PROMOTED_BEFORE, DataGap),
        (FACTS, 2, replaying(1), "", LeftBehind),
    ],
    ids=["another primary", "another system", "a promotion with a loss", "a primary left behind"],
)
def test_another_sender_is_refused(
    facts: Facts, timeline: int, identity: SystemIdentity, history: str, kind: type[WalgateError]
) -> None:
    stored = Stored({ACTIVE.key: replace(ACTIVE, timeline=timeline)}, marker_topic_used=True)
    with pytest.raises(kind) as caught:
        started(facts, stored, answers={TimelineHistory: lambda _: history}, identity=identity)
    assert type(caught.value) is kind


def test_an_idle_position_goes_back_to_the_fork_before_it_is_judged() -> None:
    """The WAL of the promoted server ends before the resume LSN."""
    idle = replace(ACTIVE, resume_lsn=Lsn(2500), content_lsn=Lsn(1500))
    stored = Stored({ACTIVE.key: idle}, marker_topic_used=True)
    answers: dict[type, Answer] = {TimelineHistory: lambda _: f"1\t{Lsn(1600)}\tno recovery target specified\n"}
    position, done = started(with_server(timeline=2), stored, answers=answers, identity=replaying(2))
    assert (position.resume_lsn, position.timeline) == (1600, 2)
    assert kinds(done).count(Identify) == 1
    stored = Stored({ACTIVE.key: replace(idle, content_lsn=Lsn(1601))}, marker_topic_used=True)
    with pytest.raises(DataGap, match="after the end of the WAL"):
        started(with_server(timeline=2), stored, answers=answers, identity=replaying(2))


def test_a_promoted_server_that_lacks_what_a_connector_delivered_is_a_gap() -> None:
    """The connector stopped within a transaction that commits after the resume LSN."""
    answers: dict[type, Answer] = {TimelineHistory: lambda _: f"1\t{Lsn(1600)}\tno recovery target specified\n"}
    for content_lsn, is_gap in ((1700, True), (1600, False)):
        adopted = replace(ACTIVE, content_lsn=Lsn(content_lsn), written_xid=77, written_lsn=Lsn(1550))
        stored = Stored({ACTIVE.key: adopted}, marker_topic_used=True)
        with pytest.raises(DataGap, match="Kafka contains changes up to") if is_gap else nullcontext():
            started(with_server(timeline=2), stored, answers=answers, identity=replaying(2))


@pytest.mark.parametrize(("publications", "now"), [(FACTS.publications, "recreated"), ({}, "still do not exist: p")])
def test_left_out_changes_are_a_gap_once_something_was_delivered(publications: Any, now: str) -> None:
    facts = replace(FACTS, publications=publications)
    with pytest.raises(DataGap, match=f"cannot send changes.*{now}"):
        started(facts, STORED, reported=LeftOut("skipped", ends_stream=False))


def test_what_was_committed_before_changes_were_left_out_is_delivered_before_the_gap_is_judged() -> None:
    renamed = replace(FACTS, publications={})
    left_out = LeftOut("skipped", ends_stream=False, whole_until=ACTIVE.resume_lsn + 1)
    started(renamed, STORED, reported=left_out)
    with pytest.raises(DataGap, match="cannot send changes") as caught:
        started(renamed, STORED, reported=replace(left_out, whole_until=ACTIVE.resume_lsn))
    assert "If the publication was renamed, set source.publications to its new name" in caught.value.hint


def test_an_adopted_slot_that_is_older_than_its_publication_has_lost_nothing() -> None:
    nothing = Stored({ACTIVE.key: replace(ACTIVE, last_commit_lsn=Lsn(0))}, marker_topic_used=True)
    started(FACTS, nothing, adopt_slot=True, reported=LeftOut("skipped", ends_stream=False))
    with pytest.raises(StopForOperator, match="was created before its publication") as caught:
        started(FACTS, nothing, adopt_slot=True, reported=LeftOut("does not exist", ends_stream=True))
    assert not isinstance(caught.value, DataGap)
    with pytest.raises(DataGap, match="cannot send changes"):
        started(FACTS, nothing, reported=LeftOut("skipped", ends_stream=False))


@pytest.mark.parametrize(
    ("times", "resume_lsn", "is_certain"), [(1, 1500, False), (2, 1500, False), (3, 1500, True), (3, 1400, False)]
)
def test_removed_wal_is_a_gap_when_it_is_missed_again_and_again(times: int, resume_lsn: int, is_certain: bool) -> None:
    reported = WalRemoved("requested WAL segment has already been removed", resume_lsn, times)
    if is_certain:
        with pytest.raises(DataGap, match="has removed WAL"):
            started(FACTS, STORED, reported=reported)
    else:
        started(FACTS, STORED, reported=reported)
