"""The board: what is remembered while nothing is connected, and who is named."""

from __future__ import annotations

import math

from gateway.errors import Retry, SlotInUse
from gateway.observe.lag import Progress
from gateway.observe.metrics import EXCLUDED, OTHER_TOPICS, REGISTRY, TOPIC_LABELS, quarantined_label, show
from gateway.observe.status_board import STALLED_S, StatusBoard
from gateway.observe.status_types import Counts, SlotStatus, WalRetentionCause
from gateway.observe.table_status import QuarantinedTable


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def board(clock: Clock) -> StatusBoard:
    return StatusBoard(slot_name="s", prefix="cdc", version="1", clock=clock, monotonic=clock)


def test_a_server_that_does_not_answer_is_named_with_its_address_and_since_when() -> None:
    clock = Clock()
    status = board(clock)
    status.wait_for("")
    status.part_is_up("kafka", "k:9092")
    clock.now = 1010.0
    status.part_is_down("kafka", Retry("asking Kafka: refused", hint="is it up?"))
    clock.now = 1013.0
    status.part_is_down("kafka", Retry("asking Kafka: refused"))
    assert status.waiting_for() == "Kafka (k:9092), which has not answered for 3 s: asking Kafka: refused"
    found = status.snapshot()
    assert (found.state, found.waiting_since) == ("waiting", 1010.0)
    status.part_is_up("kafka")
    assert status.waiting_for() == "" and status.snapshot().state == "streaming"


def test_a_registry_that_is_down_is_known_but_stops_no_stream() -> None:
    status = board(Clock())
    status.wait_for("")
    status.part_is_down("registry", Retry("no answer"), "http://r")
    assert status.waiting_for() == "" and status.snapshot().parts[2].up is False


def test_kafka_that_acknowledges_nothing_is_named_although_it_answers() -> None:
    status = board(Clock())
    status.watch(Progress, lambda: Counts(stalled_s=STALLED_S + 1))
    status.wait_for("")
    assert "acknowledged nothing for 11 s" in status.waiting_for()


def test_since_when_it_waits_outlives_the_attempts() -> None:
    clock = Clock()
    status = board(clock)
    status.wait_for("")
    clock.now = 1001.0
    status.wait_for("PostgreSQL")
    clock.now = 1060.0
    status.wait_for("Kafka")
    assert status.snapshot().waiting_since == 1001.0


def test_what_was_delivered_once_stays_delivered() -> None:
    status = board(Clock())
    status.watch(lambda: Progress(delivered_lsn=500, last_commit_lsn=400, last_commit_time=7.0), Counts)
    status.leave()
    status.watch(lambda: Progress(delivered_lsn=300), Counts)
    found = status.snapshot()
    assert (found.delivered_lsn, found.last_commit_lsn, found.last_commit_time) == (500, 400, 7.0)


def test_a_standby_gateway_lags_as_far_as_the_reader_of_the_slot() -> None:
    clock = Clock()
    status = board(clock)
    status.part_is_up("postgresql")
    status.watch(lambda: Progress(received_lsn=500, delivered_lsn=400, undelivered_since=990.0), Counts)
    status.wait_for("")
    status.leave()
    status.failed(SlotInUse("slot s is in use by process 7"))
    status.wait_for("the restart of replication")
    for clock.now in (1001.0, 1002.0, 1012.0):
        status.wal.note(int(clock.now), clock.now, clock.now)
        status.slot = SlotStatus("s", 7, 1, min(int(clock.now), 1002), "reserved", None)
        found = status.snapshot()
        assert (found.state, found.lag_seconds) == ("standby", max(clock.now - 1002.0, 0.0))
    status.wait_for("Kafka")
    assert status.snapshot().state == "standby", "as long as the takeover has not failed"
    status.wait_for("")
    assert status.snapshot().state == "streaming"
    status.failed(Retry("Kafka is gone"))
    status.wait_for("the restart of replication")
    assert status.snapshot().state == "waiting"


def test_ten_thousand_topics_share_labels() -> None:
    status = board(Clock())
    show(status)
    for number in range(10_000):
        status.count(f"cdc.public.t{number}", 2, 100)
    for number in range(10_000):
        EXCLUDED.labels(quarantined_label(f"public.t{number}")).inc()
    status.quarantined = tuple(QuarantinedTable(f"public.t{number}", "a reason", 1) for number in range(10_000))
    status.blockers = tuple(WalRetentionCause("transaction", "", pid, since=1.0) for pid in range(1, 9))
    families = {family.name: family for family in REGISTRY.collect()}
    assert sum(len(family.samples) for family in families.values()) < 1000
    excluded = [
        sample.value for sample in families["walgate_excluded_events"].samples if sample.name.endswith("_total")
    ]
    assert sum(excluded) >= 10_000
    records = {sample.labels["topic"]: sample.value for sample in families["walgate_topic_records"].samples}
    assert len(records) == TOPIC_LABELS + 1 and sum(records.values()) == 20_000
    assert records[OTHER_TOPICS] == 2 * (10_000 - TOPIC_LABELS)
    assert sum(sample.value for sample in families["walgate_quarantined_tables"].samples) == 10_000
    show(StatusBoard())


def test_the_oldest_of_each_sort_that_holds_the_slot_has_its_name_in_the_metrics() -> None:
    clock = Clock()
    status = board(clock)
    show(status)
    status.blocked_by = (WalRetentionCause("transaction", "", 7, application="nightly", since=900.0, blocks=True),)
    status.blockers = (
        WalRetentionCause("transaction", "", 7, application="nightly", since=900.0),  # of which the start tells already
        WalRetentionCause("transaction", "", 9, since=990.0),
        WalRetentionCause("transaction", "", 8, since=980.0),
        WalRetentionCause("prepared", "of_nobody", since=None),
        WalRetentionCause("slot", "another", retained_bytes=1 << 30),
    )
    assert [holder.pid for holder in status.snapshot().blockers] == [7, 9, 8, 0, 0]
    (family,) = (family for family in REGISTRY.collect() if family.name == "walgate_blocker_seconds")
    found = {(sample.labels["blocks"], sample.labels["blocker"]): sample.value for sample in family.samples}
    assert math.isnan(found.pop(("advance", "prepared transaction of_nobody")))
    assert found == {("creation", "process 7 (nightly)"): 100.0, ("advance", "process 8"): 20.0}
    show(StatusBoard())


def test_the_age_of_the_oldest_blocker_is_unknown_if_no_age_is_known() -> None:
    status = board(Clock())
    show(status)

    def oldest() -> float | None:
        return REGISTRY.get_sample_value("walgate_oldest_blocker_seconds")

    assert oldest() == 0.0
    status.blockers = (WalRetentionCause("slot", "another", retained_bytes=1 << 30),)
    assert oldest() == 0.0
    status.blockers = (WalRetentionCause("transaction", "", 7, since=None),)
    assert math.isnan(oldest() or 0.0)
    status.blockers += (WalRetentionCause("transaction", "", 8, since=990.0, age_is_at_least=True),)
    assert oldest() == 10.0
    show(StatusBoard())
