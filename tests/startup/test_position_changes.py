"""The steps of the repairs, with prepared answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.errors import DataGap, Retry, RetrySlowly, StopForOperator
from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker
from gateway.startup.connect_offset import DebeziumOffset
from gateway.startup.facts import Facts, Stored
from gateway.startup.position_changes import accept_gap, adopt, adopt_from_debezium, readmit, skip
from gateway.startup.start import CreateSlot, DropSlot, Fence, FenceFormer, FindWritten, LoadFacts, Record, Step, Steps
from gateway.startup.timeline_checks import LeftBehind
from gateway.transactions.position import Gap, Position, advance
from gateway.transactions.transaction import Prepared, Quarantined
from schemas.lsn import Lsn
from tests.startup.facts import ACTIVE, EXPECTED, FACTS, FRESH, STORED, marked, with_server, with_slot, without_slot
from tests.startup.script import Answer, carried_out

CREATED: dict[type, Answer] = {CreateSlot: lambda _: Lsn(1900), FindWritten: lambda step: step.offset}
BAD = Quarantined(7, "public", "bad", "cdc.public.bad", "a reason", 1200)


def stored(position: Position = ACTIVE) -> Stored:
    return replace(STORED, positions={position.key: position})


def done(steps: Steps, facts: Facts = FACTS, known: Stored = STORED) -> tuple[Position, list[Step]]:
    return carried_out(steps, facts, known, CREATED)


def fresh(_: Facts) -> Position:
    return FRESH


def test_skip_records_the_commit_lsn_and_nothing_else() -> None:
    position, steps = done(skip(fresh, Lsn(1600)))
    assert position == replace(ACTIVE, skip_lsn=Lsn(1600)) and steps[-1] == Record(position)


@pytest.mark.parametrize(("lsn", "said"), [(1499, "already been delivered"), (9_999_999, "nothing has been committed")])
def test_skip_refuses_what_is_behind_the_position_or_not_written_yet(lsn: int, said: str) -> None:
    with pytest.raises(StopForOperator, match=said):
        done(skip(fresh, Lsn(lsn)))


def test_readmit_takes_out_one_table_and_says_so_in_a_marker() -> None:
    other = replace(BAD, relation_oid=8, name="other")
    position, steps = done(readmit(fresh, "public.bad"), known=stored(replace(ACTIVE, quarantined=(BAD, other))))
    assert (position.quarantined, position.epoch) == ((other,), ACTIVE.epoch + 1)
    assert steps[-1] == Record(position, (Marker("EPOCH", 0, ACTIVE.resume_lsn, detail="readmitted public.bad"),))
    with pytest.raises(StopForOperator, match="is not in quarantine"):
        done(readmit(fresh, "public.bad"))


def test_readmit_takes_a_name_as_the_hints_print_it() -> None:
    odd = replace(BAD, namespace="odd.schema", name='my "table"')
    similar = replace(BAD, namespace="odd", name='schema.my "table"')
    assert odd.full_name == '"odd.schema"."my ""table"""'
    (word,) = shlex.split(shlex.quote(odd.full_name))
    position, _ = done(readmit(fresh, word), known=stored(replace(ACTIVE, quarantined=(odd, similar))))
    assert position.quarantined == (similar,)


def test_a_gap_is_accepted_only_where_there_is_one() -> None:
    for facts in (FACTS, with_slot(wal_status="unreserved")):
        with pytest.raises(StopForOperator, match="can still be read through slot"):
            done(accept_gap(fresh, EXPECTED), facts)


def test_a_slot_that_is_gone_is_created_and_one_that_is_lost_is_dropped_before() -> None:
    prepared = Prepared("gid", 5, 1400, None, Manifest(1))
    for facts, drops in ((without_slot(), False), (with_slot(wal_status="lost"), True)):
        position, steps = done(accept_gap(fresh, EXPECTED), facts, stored(replace(ACTIVE, prepared=(prepared,))))
        assert (position.resume_lsn, position.epoch, position.prepared) == (1900, ACTIVE.epoch + 1, ())
        assert (DropSlot() in steps, CreateSlot() in steps) == (drops, True)
        record = steps[-1]
        assert isinstance(record, Record)
        (gap,) = record.markers
        assert (gap.kind, gap.marker_lsn, gap.end_lsn) == ("GAP", ACTIVE.resume_lsn, 1900) and gap.detail


@pytest.mark.parametrize(
    ("repair", "facts"),
    [
        (lambda: accept_gap(fresh, EXPECTED), with_slot(wal_status="lost")),
        (lambda: accept_gap(fresh, EXPECTED, until_now=True), FACTS),
        (lambda: skip(fresh, Lsn(1600)), FACTS),
        (lambda: readmit(fresh, "public.bad"), FACTS),
    ],
)
def test_a_database_that_was_renamed_is_repaired_under_its_new_name(repair: Callable[[], Steps], facts: Facts) -> None:
    """Its position has the new name before the slot is dropped: afterwards nothing would show that
    the database was renamed."""
    known = replace(ACTIVE, quarantined=(BAD,))
    former = replace(known, database="former")
    position, steps = done(repair(), facts, stored(former))
    renamed, *rest = [step for step in steps if isinstance(step, (Record, DropSlot))]
    assert renamed == Record(known, forgets=former.key)
    again, as_ever = done(repair(), facts, stored(known))
    assert (position, rest) == (again, [step for step in as_ever if isinstance(step, (Record, DropSlot))])


def test_a_slot_that_was_moved_goes_on_where_it_is() -> None:
    position, steps = done(accept_gap(fresh, EXPECTED), with_slot(confirmed_flush_lsn=Lsn(1700)))
    assert position.resume_lsn == 1700 and CreateSlot() not in steps


def test_a_release_is_recorded_where_the_slot_was_moved_on_and_nowhere_else() -> None:
    def recorded(facts: Facts) -> tuple[Position, list[Record]]:
        position, steps = done(accept_gap(fresh, EXPECTED, released="a budget"), facts)
        return position, [step for step in steps if isinstance(step, Record)]

    position, (record,) = recorded(with_slot(confirmed_flush_lsn=Lsn(1700)))
    assert position.gap == Gap(ACTIVE.resume_lsn, Lsn(1700), "a budget")
    assert [(one.kind, one.end_lsn, one.detail) for one in record.markers] == [("GAP", 1700, "a budget")]
    for facts in (FACTS, without_slot(), with_slot(wal_status="lost")):
        assert recorded(facts) == (ACTIVE, [])


@pytest.mark.parametrize(("until_now", "end"), [(False, 1500), (True, 1900)])
def test_markers_that_are_lost_are_a_gap_behind_which_nothing_is_read_twice(until_now: bool, end: int) -> None:
    """The slot is confirmed up to 1000 only: what follows was delivered."""
    position, steps = done(accept_gap(fresh, EXPECTED, until_now=until_now), known=marked(1400, newest=1200))
    assert (position.marked_lsn, position.resume_lsn) == (1200, end) and position.gap is not None
    assert (position.gap.first_lsn, position.gap.end_lsn) == (1200, end)
    record = steps[-1]
    assert isinstance(record, Record) and (record.markers[0].marker_lsn, record.markers[0].end_lsn) == (1200, end)
    assert (DropSlot() in steps) == until_now


def test_a_release_leaves_lost_markers_to_the_start() -> None:
    facts = with_slot(confirmed_flush_lsn=Lsn(1700))
    position, _ = done(accept_gap(fresh, EXPECTED, released="a budget"), facts, marked(1400, newest=1200))
    assert position.gap == Gap(ACTIVE.resume_lsn, Lsn(1700), "a budget") and position.marked_lsn == 1400


def test_a_repair_needs_the_gateways_own_position() -> None:
    for known, said in (
        (Stored({}, marker_topic_used=False), "no resume LSN is stored for slot s"),
        (stored(FRESH), "no resume LSN is stored"),  # only an intent
        (stored(replace(ACTIVE, prefix="other")), "are written with the topic prefix 'other'"),
    ):
        with pytest.raises(StopForOperator, match=said):
            done(skip(fresh, Lsn(1600)), known=known)
    steps: list[Step] = []
    with pytest.raises(StopForOperator, match="are written with the topic prefix 'other'"):
        carried_out(accept_gap(fresh, EXPECTED), without_slot(), stored(replace(ACTIVE, prefix="other")), done=steps)
    assert Fence() not in steps, "the gateway that has the slot runs on"


def test_everything_before_now_is_given_up_only_on_demand() -> None:
    position, steps = done(accept_gap(fresh, EXPECTED, until_now=True))
    assert position.resume_lsn == 1900
    assert steps.index(DropSlot()) < steps.index(CreateSlot()) < steps.index(steps[-1])


def test_a_server_that_was_restored_to_an_earlier_timeline_is_read_on_when_its_wal_has_passed() -> None:
    known = stored(replace(ACTIVE, timeline=3))
    alone = replace(EXPECTED, is_only_host=True)
    position, _ = done(accept_gap(fresh, alone, until_now=True), FACTS, known)
    assert (position.timeline, position.resume_lsn) == (FACTS.server.timeline, 1900)
    with pytest.raises(StopForOperator, match="would repeat"):
        done(accept_gap(fresh, alone, until_now=True), with_server(flush_lsn=Lsn(1200)), known)


def test_a_server_that_was_set_back_is_read_on_only_when_everything_is_given_up() -> None:
    steps: list[Step] = []
    with pytest.raises(StopForOperator, match="would repeat"):
        carried_out(accept_gap(fresh, EXPECTED, until_now=True), with_server(flush_lsn=Lsn(1200)), STORED, done=steps)
    known = replace(ACTIVE, set_back_lsn=Lsn(1200))
    assert steps[-1] == Record(known)
    for released in (None, "a budget"):
        with pytest.raises(DataGap, match="was after the end of the WAL"):
            done(accept_gap(fresh, EXPECTED, released=released), FACTS, stored(known))
    position, _ = done(accept_gap(fresh, EXPECTED, until_now=True), FACTS, stored(known))
    assert (position.resume_lsn, position.set_back_lsn) == (1900, 0)
    assert position.gap is not None and "earlier state" in position.gap.reason


def test_positions_that_are_lost_are_a_gap_unless_the_slot_sends_something_twice() -> None:
    facts = with_slot(confirmed_flush_lsn=Lsn(1601))
    position, _ = done(accept_gap(fresh, EXPECTED), facts, marked(1300, newest=1600))
    assert position.resume_lsn == 1601
    assert position.gap is not None and "lost the newest records of walgate.position" in position.gap.reason
    facts = with_slot(confirmed_flush_lsn=Lsn(1600))
    with pytest.raises(StopForOperator, match="a second time"):
        done(accept_gap(fresh, EXPECTED), facts, marked(1300, newest=1600))
    at_least_once = replace(marked(1300, newest=1600), at_least_once=True)
    for known, until_now in ((marked(1300, newest=1600), True), (at_least_once, False)):
        assert done(accept_gap(fresh, EXPECTED, until_now=until_now), facts, known)[0].gap is not None


@pytest.mark.parametrize(
    "facts", [without_slot(), with_server(in_recovery=True), with_server(timeline=ACTIVE.timeline + 1)]
)
def test_no_standby_no_new_primary_and_no_server_without_the_slot_is_recorded_as_set_back(facts: Facts) -> None:
    behind = replace(facts, server=replace(facts.server, flush_lsn=Lsn(1200)))
    steps: list[Step] = []
    with pytest.raises((StopForOperator, RetrySlowly)):
        carried_out(accept_gap(fresh, EXPECTED, until_now=True), behind, STORED, done=steps)
    assert not [step for step in steps if isinstance(step, Record)]


@pytest.mark.parametrize(("until_now", "is_only_host"), [(False, True), (True, False)])
def test_an_old_primary_is_not_read_on_by_mistake(until_now: bool, is_only_host: bool) -> None:
    """Another host of the DSN may be the current primary."""
    expected = replace(EXPECTED, is_only_host=is_only_host)
    with pytest.raises(LeftBehind) as refused:
        done(accept_gap(fresh, expected, until_now=until_now), without_slot(), stored(replace(ACTIVE, timeline=3)))
    assert "accept-gap --until-now" in refused.value.hint and "the only host" in refused.value.hint


def test_what_a_marker_cannot_repair_is_refused() -> None:
    for facts, known, said in (
        (without_slot(), replace(STORED, marker_topic_used=False), "was deleted and recreated"),
        (with_slot(plugin="wal2json"), STORED, "wal2json"),
        (with_server(flush_lsn=Lsn(1200)), STORED, "would repeat"),
    ):
        with pytest.raises(StopForOperator, match=said):
            done(accept_gap(fresh, EXPECTED, until_now=True), facts, known)
    with pytest.raises(RetrySlowly, match="is a standby"):
        done(accept_gap(fresh, EXPECTED, until_now=True), with_server(in_recovery=True))
    with pytest.raises(Retry, match="in use by process") as refused:
        done(accept_gap(fresh, EXPECTED, until_now=True), with_slot(active_pid=77))
    assert refused.value.hint.startswith("stop the gateway")


def test_an_upgraded_server_takes_over_the_position_and_the_old_key_ends() -> None:
    former = replace(ACTIVE, system_identifier="17")
    facts = with_slot(confirmed_flush_lsn=Lsn(1700))
    position, steps = done(adopt(fresh, EXPECTED, "17"), facts, stored(former))
    assert (position.key, position.resume_lsn, position.epoch) == (FRESH.key, 1700, former.epoch + 1)
    record = steps[-1]
    assert isinstance(record, Record) and record.forgets == former.key
    assert FenceFormer("17") in steps


def test_another_server_is_not_adopted() -> None:
    former = replace(ACTIVE, system_identifier="17")
    for facts, known, said in (
        (without_slot(), stored(former), "has no slot"),
        (with_slot(confirmed_flush_lsn=Lsn(1400)), stored(former), "is not an upgrade of the one"),
        (with_server(version_num=160000), stored(former), "only in 17 and later"),
        (FACTS, stored(replace(former, prefix="other")), "prefix 'other'"),
        (FACTS, Stored({former.key: former, ACTIVE.key: ACTIVE}, marker_topic_used=True), "already has a resume LSN"),
        (FACTS, STORED, "no resume LSN is stored"),
    ):
        with pytest.raises(StopForOperator, match=said):
            done(adopt(fresh, EXPECTED, "17"), facts, known)


NONE_STORED = Stored({}, marker_topic_used=False)
OFFSET = DebeziumOffset(Lsn(1700), Lsn(1600), 77)


def test_a_connectors_slot_goes_on_within_the_transaction_in_which_it_stopped() -> None:
    position, steps = done(adopt_from_debezium(fresh, EXPECTED, OFFSET), known=NONE_STORED)
    assert (position.state, position.epoch, position.key) == ("ACTIVE", 0, FRESH.key)
    assert (position.resume_lsn, position.last_commit_lsn) == (1600, 1599)
    assert (position.written_xid, position.written_lsn) == (77, 1700)
    assert steps[-1] == Record(position)


def test_what_a_connector_wrote_counts_as_delivered_until_replication_has_passed_it() -> None:
    """Transaction 77 committed somewhere after LSN 1700, but before the adoption."""
    position, _ = done(adopt_from_debezium(fresh, EXPECTED, OFFSET), known=NONE_STORED)
    assert position.content_lsn == FACTS.server.flush_lsn == 2000
    for has_content in (False, True):
        assert advance(position, 1900, 1890, (), has_content=has_content).content_lsn == 2000
    assert advance(position, 2100, 2090, ()).content_lsn == 2100


def test_after_a_snapshot_the_slot_goes_on_where_it_was_made() -> None:
    """The offset is where the server was when the tables were read: what committed in between is in
    the slot alone."""
    position, _ = done(
        adopt_from_debezium(fresh, EXPECTED, replace(OFFSET, written_xid=0, of_snapshot=True)), known=NONE_STORED
    )
    assert (position.resume_lsn, position.written_xid, position.written_lsn) == (1000, 0, 0)


def test_a_connector_whose_place_is_not_the_slots_is_not_adopted() -> None:
    other = replace(ACTIVE, slot="other")
    for facts, known, offset, said in (
        (without_slot(), NONE_STORED, OFFSET, "the slot does not exist"),
        (with_slot(confirmed_flush_lsn=Lsn(1701)), NONE_STORED, OFFSET, "outdated, or another process"),
        (with_server(flush_lsn=Lsn(1650)), NONE_STORED, OFFSET, "belongs to another server"),
        (FACTS, NONE_STORED, replace(OFFSET, of_snapshot=True, in_snapshot=True), "has not finished its snapshot"),
        (FACTS, STORED, OFFSET, "already has a resume LSN"),
        (FACTS, stored(other), OFFSET, "belongs to slot other"),
    ):
        with pytest.raises(StopForOperator, match=said):
            done(adopt_from_debezium(fresh, EXPECTED, offset), facts, known)
    with pytest.raises(Retry, match="in use by process"):
        done(adopt_from_debezium(fresh, EXPECTED, OFFSET), with_slot(active_pid=77), NONE_STORED)


@pytest.mark.parametrize(
    ("facts", "offset", "hint"),
    [
        (without_slot(), OFFSET, "set source.slot to the connector's slot.name"),
        (FACTS, replace(OFFSET, of_snapshot=True, in_snapshot=True), "start the connector again"),
        (with_server(flush_lsn=Lsn(1650)), OFFSET, "check source.dsn"),
    ],
)
def test_an_offset_that_cannot_be_the_slots_is_refused_before_kafka_is_touched(
    facts: Facts, offset: DebeziumOffset, hint: str
) -> None:
    """Its hint does not tell the operator to set source.adopt_slot, which would lose rows."""
    steps = adopt_from_debezium(fresh, EXPECTED, offset)
    assert next(steps) == LoadFacts()
    with pytest.raises(StopForOperator) as refused:
        steps.send(facts)
    assert hint in refused.value.hint and "adopt_slot" not in refused.value.hint
