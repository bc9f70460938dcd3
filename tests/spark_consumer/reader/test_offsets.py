"""How far a query goes, and whether the topic is still the one in which it counted: on a
transaction topic in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_consumer.errors import MarkerError, RangeExpired
from spark_consumer.reader import backlog
from spark_consumer.reader.broker import Broker
from spark_consumer.reader.marker_log import STEP, MarkerLog
from spark_consumer.reader.markers import CommittedTransaction, MarkerDecoder, Range
from spark_consumer.reader.positions import Position, resolve
from spark_consumer.reader.read_planning import first_complete
from spark_consumer.source import batch_admission, datasource, table_columns
from spark_consumer.source.datasource import BatchReader, StreamReader, _Planner
from spark_consumer.source.earlier_spark import EarlierStreamReader
from spark_consumer.source.options import parse_options
from spark_consumer.source.shapes import ChangeShape, ReadTask, TransactionShape, TransactionTask
from tests.spark_consumer.logs import transaction


@dataclass(frozen=True)
class Topic(Broker):
    """`lsns`: commit LSN of the marker at each offset; 0: of another kind."""

    lsns: list[int] = field(default_factory=list)
    low: list[int] = field(default_factory=lambda: [0])
    reads: list[tuple[int, int]] = field(default_factory=list)

    def offsets(self, topic: str, partition: int = 0, *, patience_s: float | None = None) -> tuple[int, int]:
        return self.low[0], len(self.lsns)

    def read(
        self, topic: str, partition: int, first_offset: int, last_offset: int, *, skip_tombstones: bool = False
    ) -> Iterator[tuple[list[int], list[bytes]]]:
        self.reads.append((first_offset, last_offset))
        if first_offset < self.low[0]:
            raise RangeExpired(f"offset {first_offset} is gone")
        offsets = list(range(first_offset, last_offset + 1))
        yield offsets, [self.lsns[offset].to_bytes(8, "big") for offset in offsets]


NOTICE = 1 << 40
GAP = 2 * NOTICE


class Decoder(MarkerDecoder):
    """An LSN above NOTICE is that of a notice, and one above GAP says where a gap ends; of the
    others, multiples of 10 change the table `public.a`."""

    def decode(self, offset: int, value: bytes) -> CommittedTransaction | None:
        lsn = int.from_bytes(value, "big")
        ranges = (Range(f"cdc.public.{'b' if lsn % 10 else 'a'}", 0, offset, offset, 1),)
        made = replace(transaction(1, 700, (), ranges, 1), marker_offset=offset, commit_lsn=lsn, commit_time_us=lsn)
        if lsn > GAP:
            return replace(made, kind="GAP", commit_lsn=10, end_lsn=lsn - GAP + 1, ranges=())
        if lsn > NOTICE:
            return replace(made, kind="SNAPSHOT_BEGIN", ranges=())
        return made if lsn else None


NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:1", "registry.url": "http://unused"}


def reader(topic: Topic, **more: str) -> StreamReader:
    """Of a query that begins, or goes on after a restart: of all transactions, or of the changes
    that `more` chooses."""
    options = parse_options({**NEEDED, **more}, streaming=True)
    options = replace(options, broker=topic)
    planner = _Planner(options, ChangeShape(options, None) if more else TransactionShape(options))
    planner._log = MarkerLog(topic, "cdc.transaction", Decoder({}, "cdc.transaction"))
    return StreamReader(planner)


def topic_of(*lsns: int) -> Topic:
    return Topic({}, lsns=list(lsns))


def test_a_query_goes_on_behind_its_last_transaction() -> None:
    topic = topic_of(10, 0, 20)
    stands = reader(topic).latestOffset({"position": 0, "commit_lsn": 0}, ReadAllAvailable())
    assert stands == {"position": 3, "commit_lsn": 20, "began": 0}
    topic.lsns.extend([0, 30])
    assert reader(topic).latestOffset(stands, ReadAllAvailable()) == {"position": 5, "commit_lsn": 30}


def test_a_topic_that_became_shorter_is_refused() -> None:
    running = reader(topic := topic_of(10, 20, 30))
    stands = running.latestOffset({"position": 0, "commit_lsn": 0}, ReadAllAvailable())
    topic.lsns[:] = [40]
    with pytest.raises(
        MarkerError, match=r"(?s)commit_lsn 0/1E at offset 3 of the marker topic.*topic ends at 1.*recreated"
    ):
        running.latestOffset(stands, ReadAllAvailable())


@pytest.mark.parametrize("at_its_place", [25, 40, 0])
def test_a_topic_with_another_marker_there_is_refused(at_its_place: int) -> None:
    """Also where the commit LSNs go on to rise."""
    with pytest.raises(MarkerError, match="recreated"):
        reader(topic_of(21, 22, at_its_place, 50)).latestOffset({"position": 3, "commit_lsn": 30}, ReadAllAvailable())


def test_a_planned_batch_is_not_read_from_another_topic() -> None:
    start, end = {"position": 1, "commit_lsn": 10}, {"position": 3, "commit_lsn": 30}
    assert len(reader(topic_of(10, 20, 30)).partitions(start, end)) == 1
    with pytest.raises(MarkerError, match="recreated"):
        reader(topic_of(35, 36, 37, 38)).partitions(start, end)


def test_a_marker_that_retention_took_is_not_asked_for() -> None:
    topic = topic_of(10, 20, 30)
    topic.low[0] = 2
    found = reader(topic).latestOffset({"position": 2, "commit_lsn": 20}, ReadAllAvailable())
    assert found == {"position": 3, "commit_lsn": 30}


def test_a_query_goes_on_after_retention_has_removed_everything() -> None:
    """The topic ends with what Kafka writes after a transaction, and with markers of other
    kinds."""
    topic = topic_of(10, 20, 0)
    stands = reader(topic).latestOffset({"position": 0, "commit_lsn": 0}, ReadAllAvailable())
    assert stands == {"position": 3, "commit_lsn": 20, "last": 1, "began": 0}
    assert len(reader(topic).partitions({"position": 0, "commit_lsn": 0}, stands)) == 1
    topic.low[0] = 3
    again = reader(topic)
    assert again.latestOffset(stands, ReadAllAvailable()) == stands
    topic.lsns.extend([0, 0, 30, 0])
    assert again.latestOffset(stands, ReadAllAvailable()) == {"position": 7, "commit_lsn": 30, "last": 5}


def test_an_offset_passes_markers_of_which_none_is_a_transaction_when_they_have_been_there_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, start = topic_of(10, 0, 0), {"position": 1, "commit_lsn": 10}
    running = reader(topic)
    assert running.latestOffset(start, ReadMaxRows(9)) == start
    monkeypatch.setattr(batch_admission, "_HOLD_WITHOUT_TRANSACTIONS_S", 0.0)
    passed = running.latestOffset(start, ReadMaxRows(9))
    assert passed == {"position": 3, "commit_lsn": 10, "last": 0}
    assert not running.partitions(start, passed)
    topic.lsns.append(20)
    assert reader(topic).latestOffset(passed, ReadAllAvailable()) == {"position": 4, "commit_lsn": 20}
    topic.lsns[0] = 11
    with pytest.raises(MarkerError, match="recreated"):
        reader(topic).latestOffset(passed, ReadAllAvailable())


def test_a_query_that_reads_what_there_is_passes_what_it_does_not_want() -> None:
    """It may run once a day, and retention takes the markers meanwhile."""
    topic, start = topic_of(10, 11, 12), {"position": 1, "commit_lsn": 10}
    choice, behind = {"tables": "public.a", "maxChangesPerTrigger": "none"}, {"position": 3, "commit_lsn": 12}
    available_now = reader(topic, **choice)
    available_now.prepareForTriggerAvailableNow()
    lasting = reader(topic, **choice)
    limit = lasting.getDefaultReadLimit()
    assert available_now.latestOffset(start, limit) == behind
    assert reader(topic, **choice).latestOffset(start, ReadAllAvailable()) == behind  # trigger(once=True)
    assert lasting.latestOffset(start, limit) == start


def test_on_spark_4_1_the_first_batch_passes_what_the_query_does_not_want() -> None:
    """There may be no other batch, with availableNow and once."""
    running = EarlierStreamReader(reader(topic := topic_of(11, 12), tables="public.a"))
    assert running.latestOffset()["position"] == 2
    topic.lsns.append(13)
    assert running.latestOffset()["position"] == 2


@pytest.mark.parametrize("wanted", [True, False])
def test_a_query_without_a_limit_takes_what_there_is(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    for name, most in (("STEP", 2), ("_MARKERS_PER_ANSWER", 4), ("_TRANSACTIONS_PER_TRIGGER", 3)):
        monkeypatch.setattr(batch_admission, name, most)
    lsns = [number * 10 + (not wanted) for number in range(1, 12)]
    running = reader(topic_of(*lsns, 120), tables="public.a", maxChangesPerTrigger="none")
    weight = Mock(wraps=running._admission._weight)
    monkeypatch.setattr(running._admission, "_weight", weight)
    for limit in (running.getDefaultReadLimit(), ReadAllAvailable()):
        assert running.latestOffset({"position": 1, "commit_lsn": lsns[0]}, limit)["position"] == 12
        assert weight.call_count <= 2 * 11, "each is not weighed again in each step"
        weight.reset_mock()


def test_a_query_does_not_stop_before_many_markers_without_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_admission, "STEP", 2)
    monkeypatch.setattr(batch_admission, "_MARKERS_PER_ANSWER", 4)
    topic = topic_of(10, 0, 0, 0, 0, 0, 20)
    stands = reader(topic).latestOffset({"position": 1, "commit_lsn": 10}, ReadMaxRows(9))
    assert stands == {"position": 5, "commit_lsn": 10, "last": 0}
    assert reader(topic).latestOffset(stands, ReadMaxRows(9)) == {"position": 7, "commit_lsn": 20}


def test_a_backlog_is_not_loaded_beyond_the_limit() -> None:
    topic = topic_of(*range(1, 4 * STEP))
    found = reader(topic).latestOffset({"position": 0, "commit_lsn": 0}, ReadMaxRows(STEP + 5))
    assert found == {"position": STEP + 5, "commit_lsn": STEP + 5, "began": 0}
    assert topic.reads == [(0, STEP - 1), (STEP, 2 * STEP - 1)]


def test_a_micro_batch_of_tiny_transactions_has_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_admission, "_TRANSACTIONS_PER_TRIGGER", 3)
    found = reader(topic_of(*range(1, 9))).latestOffset({"position": 0, "commit_lsn": 0}, ReadMaxRows(100))
    assert found == {"position": 3, "commit_lsn": 3, "began": 0}


def offsets_of(tasks: Sequence[InputPartition]) -> list[int]:
    """Of the records that are read."""
    return [
        place for task in tasks if isinstance(task, ReadTask) for read in task.reads for place in read.first_offsets
    ]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_each_wanted_transaction_is_in_one_batch_and_no_batch_is_empty(data: st.DataObject) -> None:
    """Whatever else is in the topic, whenever Spark asks, and where the query restarts with a batch
    that was planned."""
    steps = data.draw(st.lists(st.sampled_from([None, 0, 1, 2, NOTICE]), max_size=30))  # None: another marker
    lsns = [0 if sort is None else (number + 1) * 10 + sort for number, sort in enumerate(steps)]
    topic, choice = topic_of(), {"tables": "public.a"}
    limit = data.draw(st.sampled_from([None, 1, 3]))
    stands, batches = {"position": 0, "commit_lsn": 0}, []
    running = reader(topic, **choice)
    clock = [0.0]
    running._admission._clock = lambda: clock[0]
    while len(topic.lsns) < len(lsns):
        more = data.draw(st.integers(1, len(lsns) - len(topic.lsns)))
        topic.lsns.extend(lsns[len(topic.lsns) : len(topic.lsns) + more])
        while (reached := running.next_offset(stands, limit)) != stands:
            if data.draw(st.booleans()):
                running = reader(topic, **choice)
                running._admission._clock = lambda: clock[0]
            batches.append(offsets_of(running.partitions(stands, reached)))
            assert batches[-1] and (limit is None or len(batches[-1]) <= limit)
            running.commit(reached)
            stands = reached
    wanted = [offset for offset, sort in enumerate(steps) if sort == 0]
    assert [offset for batch in batches for offset in sorted(batch)] == wanted
    clock[0] += 61
    running.next_offset(stands, limit)
    clock[0] += 61
    behind = running.next_offset(stands, limit)
    assert not offsets_of(reader(topic, **choice).partitions(stands, behind))
    assert not any(lsns[behind["position"] :])


def test_what_a_query_does_not_want_does_not_stay_in_memory() -> None:
    topic = topic_of(*(lsn for lsn in range(1, 200) if lsn % 10))
    running = reader(topic, tables="public.a")
    start = {"position": 0, "commit_lsn": 0}
    assert running.next_offset(start, None) == start
    assert len(running._planner.log._transactions) == 1
    topic.lsns.append(200)
    assert running.next_offset(start, None) == {"position": len(topic.lsns), "commit_lsn": 200, "began": 0}
    assert [first for first, _ in topic.reads] == [0, len(topic.lsns) - 1]  # nothing twice


def test_the_limit_counts_what_the_query_gets() -> None:
    """Of ten transactions, each third changes the table."""
    topic = topic_of(1, 2, 10, 11, 12, 20, 21, 22, 30, 31)
    found = reader(topic, tables="public.a").latestOffset({"position": 0, "commit_lsn": 0}, ReadMaxRows(2))
    assert found["position"] == 8


def test_a_first_batch_that_was_killed_is_planned_again_where_it_began() -> None:
    """With `latest`, the initial offset is another one by then: what came between would be in no
    batch."""
    topic = topic_of(10, 20)
    running = reader(topic, startingPosition="latest", tables="public.a")
    began = running.initialOffset()
    topic.lsns.extend([30, 40])
    planned = running.next_offset(began, None)
    topic.lsns.append(50)
    again = reader(topic, startingPosition="latest", tables="public.a")
    assert offsets_of(again.partitions(again.initialOffset(), planned)) == [2, 3]
    assert again.next_offset(planned, None)["position"] == 5


def test_on_spark_4_1_a_limit_is_kept_over_a_restart() -> None:
    """In the order in which Spark 4.0 and 4.1 ask."""
    topic, choice = topic_of(*range(10, 80, 10)), {"tables": "public.a", "maxChangesPerTrigger": "2"}

    def started() -> EarlierStreamReader:
        return EarlierStreamReader(reader(topic, **choice))

    first = started()
    planned = first.latestOffset()
    assert offsets_of(first.partitions(first.initialOffset(), planned)) == [0, 1]
    second = started()  # batch 0 was planned and not committed
    assert second.partitions(planned, planned) == []
    assert offsets_of(second.partitions(second.initialOffset(), planned)) == [0, 1]
    reached = second.latestOffset()
    assert offsets_of(second.partitions(planned, reached)) == [2, 3]
    third = started()  # batch 1 was committed
    assert third.partitions(reached, reached) == []
    assert [third.latestOffset()["position"] for _ in range(3)] == [6, 7, 7]


def test_the_notices_of_one_transaction_are_in_one_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps a commit LSN as the place that was reached would leave out those of a later one."""
    monkeypatch.setattr(batch_admission, "_TRANSACTIONS_PER_TRIGGER", 2)
    first, second = (replace(transaction(1, 700, (), (), 1), commit_lsn=lsn) for lsn in (10, 30))
    notices = [replace(first, kind="SNAPSHOT_END", commit_lsn=20) for _ in range(3)]
    for most in (0, 100):
        assert batch_admission.admit([first, *notices, second], most, attrgetter("event_count")) == [first, *notices]


def test_a_batch_read_plans_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory does not grow with the transactions, but with the plan."""
    monkeypatch.setattr(datasource, "STEP", 4)
    planner = reader(topic := topic_of(*range(1, 11)))._planner
    tasks = BatchReader(planner).partitions()
    steps = [task.transactions for task in tasks if isinstance(task, TransactionTask)]
    assert [[one.commit_lsn for one in step] for step in steps] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert topic.reads == [(0, 3), (4, 7), (8, 9)]
    assert not planner.log._transactions
    topic.lsns[5] = 3
    with pytest.raises(MarkerError, match="does not come after"):
        BatchReader(reader(topic)._planner).partitions()


def test_the_end_of_the_topic_is_reported_with_its_commit_lsn() -> None:
    topic = topic_of(10, 20, 0)
    running = reader(topic)
    assert running.reportLatestOffset() == {"position": 3, "commit_lsn": 20}
    running.latestOffset({"position": 0, "commit_lsn": 0}, ReadAllAvailable())
    topic.reads.clear()
    assert running.reportLatestOffset() == {"position": 3, "commit_lsn": 20} and topic.reads == []


class SchemaDecoder(Decoder):
    """A transaction has used the schemas of its commit LSN's last digit."""

    def decode(self, offset: int, value: bytes) -> CommittedTransaction | None:
        made = super().decode(offset, value)
        return made and replace(made, schema_ids={1: (1,), 2: (2,), 3: (1, 2)}.get(made.commit_lsn % 10, (9,)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([0, 1, 2, 3, 5]), st.just("retention"), st.just("recreated")), max_size=30))
def test_the_schemas_in_use_are_those_of_a_search_that_remembers_nothing(steps: list[int | str]) -> None:
    topic = topic_of()
    options = replace(parse_options(NEEDED, streaming=None), broker=topic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_columns, "_searches", {})
        patch.setattr(table_columns, "MarkerDecoder", SchemaDecoder)
        patch.setattr(table_columns, "_MARKERS_BACK", 5)
        for step in steps:
            if step == "retention":
                topic.low[0] = len(topic.lsns) // 2
            elif step == "recreated":
                del topic.lsns[:], topic.low[:]
                topic.low.append(0)
            else:
                topic.lsns.append(int(step))
            found = table_columns._last_used(options, (1, 2))
            with pytest.MonkeyPatch.context() as fresh:
                fresh.setattr(table_columns, "_searches", {})
                assert table_columns._last_used(options, (1, 2)) == found


@pytest.mark.parametrize(("count", "changes"), [(0, 0), (5, 5), (6, 6), (30, 30)])
def test_what_waits_is_counted_or_judged_by_both_ends(
    monkeypatch: pytest.MonkeyPatch, count: int, changes: int
) -> None:
    monkeypatch.setattr(backlog, "SAMPLE", 3)
    topic = topic_of(7, *range(11, 11 + count))
    log = MarkerLog(topic, "cdc.transaction", Decoder({}, "cdc.transaction"))
    found = backlog.backlog(log, 1, 1 + count)
    assert found == backlog.Backlog(changes, *((10 + count, 11) if count else (None, None)))
    assert sum(last + 1 - first for first, last in topic.reads) == min(count, 6)


def test_a_time_is_found_without_loading_the_topic() -> None:
    topic = topic_of(*range(1, 4 * STEP))
    log = MarkerLog(topic, "cdc.transaction", Decoder({}, "cdc.transaction"))
    assert resolve(Position("time", 70_000), log) == 70_000
    assert max(last - first for first, last in topic.reads) < STEP
    assert not log._transactions


def test_the_first_transaction_that_is_complete_is_found() -> None:
    ranges = [[("a", 0)], [("a", 5), ("b", 0)], [("b", 3)], [("a", 9), ("b", 7)]]
    transactions = [
        transaction(number, 700, (), tuple(Range(topic, 0, first, first, 1) for topic, first in items))
        for number, items in enumerate(ranges)
    ]
    kept = {("a", 0): 5, ("b", 0): 4}

    def first_kept(topic: str, partition: int) -> int:
        return kept[topic, partition]

    assert first_complete(transactions, lambda _: True, first_kept) == 3
    assert first_complete(transactions, lambda topic: topic == "a", first_kept) == 1
    assert first_complete(transactions[3:], lambda _: True, first_kept) is None
