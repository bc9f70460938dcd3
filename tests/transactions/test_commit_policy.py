from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.transactions.commit_policy import CommitPolicy, Filling

POLICY = CommitPolicy(memory_bytes=64 << 20)
READ_BYTES = 1 << 18

fillings = st.builds(
    Filling,
    at_boundary=st.booleans(),
    has_content=st.booleans(),
    kafka_is_free=st.booleans(),
    bytes=st.integers(0, 2 * POLICY.memory_bytes) | st.integers(0, 2 * POLICY.close_bytes),
    open_batches=st.integers(0, 20_000),
    owed_markers=st.integers(0, 2 * POLICY.max_owed_markers),
    age_s=st.floats(0, 2 * POLICY.hold_s),
    more_at_hand=st.booleans(),
    stopping=st.booleans(),
    one_by_one=st.booleans(),
)
closable = fillings.map(lambda filling: replace(filling, at_boundary=True, has_content=True, kafka_is_free=True))


@given(fillings)
def test_nothing_is_closed_that_must_stay_open(filling: Filling) -> None:
    """Half a transaction, nothing at all, or a second Kafka transaction beside the one that is
    being committed."""
    assume(not (filling.at_boundary and filling.has_content and filling.kafka_is_free))
    assert not POLICY.closes(filling)
    assert not POLICY.closes_within_read(filling)


@given(closable)
def test_where_the_stream_pauses_nothing_waits(filling: Filling) -> None:
    assert POLICY.closes(replace(filling, more_at_hand=False))


@given(closable)
def test_a_stop_and_a_transaction_of_its_own_do_not_wait(filling: Filling) -> None:
    assert POLICY.closes(replace(filling, stopping=True))
    assert POLICY.closes(replace(filling, one_by_one=True))
    assert POLICY.closes_within_read(replace(filling, one_by_one=True))


@given(closable.map(lambda filling: replace(filling, more_at_hand=True, stopping=False, one_by_one=False)))
def test_while_the_stream_has_more_only_what_is_small_and_young_is_held_back(filling: Filling) -> None:
    is_small = filling.bytes < min(filling.open_batches * POLICY.batch_worth_bytes, POLICY.memory_bytes)
    has_few_markers = filling.owed_markers < POLICY.max_owed_markers
    assert POLICY.closes(filling) != (is_small and has_few_markers and filling.age_s < POLICY.hold_s)


@given(closable.map(lambda filling: replace(filling, one_by_one=False)))
def test_within_a_read_only_what_is_large_is_closed(filling: Filling) -> None:
    is_large = filling.bytes >= POLICY.close_bytes
    is_worthwhile = filling.bytes >= min(filling.open_batches * POLICY.batch_worth_bytes, POLICY.memory_bytes)
    assert POLICY.closes_within_read(filling) == (is_large and is_worthwhile)


@given(fillings, st.integers(0, 1 << 20), st.integers(0, 1000), st.floats(0, 10))
def test_growing_never_keeps_it_open(filling: Filling, bytes_: int, markers: int, seconds: float) -> None:
    larger = replace(
        filling,
        bytes=filling.bytes + bytes_,
        owed_markers=filling.owed_markers + markers,
        age_s=filling.age_s + seconds,
    )
    assert POLICY.closes(larger) >= POLICY.closes(filling)
    assert POLICY.closes_within_read(larger) >= POLICY.closes_within_read(filling)


@given(
    st.integers(0, 10_000), st.lists(st.tuples(st.integers(1, READ_BYTES), st.floats(0, 0.5)), min_size=1, max_size=200)
)
def test_a_busy_stream_of_any_shape_is_committed_in_time(open_batches: int, reads: list[tuple[int, float]]) -> None:
    """Kafka free, always more at hand, each read ends at a boundary: no more than memory, and no
    longer than the hold."""
    filling = Filling(True, True, True, 0, open_batches, 0, 0.0, more_at_hand=True)
    for size, seconds in reads:
        filling = replace(
            filling,
            bytes=filling.bytes + size,
            owed_markers=filling.owed_markers + 1,
            age_s=filling.age_s + seconds,
        )
        assert filling.bytes < POLICY.memory_bytes + READ_BYTES
        assert filling.age_s < POLICY.hold_s + 0.5
        if POLICY.closes(filling):
            filling = replace(filling, bytes=0, owed_markers=0, age_s=0.0)


@given(st.integers(0, 1 << 28), st.integers(0, 20_000))
def test_batches_leave_before_they_fill_the_memory(unflushed_bytes: int, open_batches: int) -> None:
    flushes = POLICY.flushes(unflushed_bytes, open_batches)
    assert flushes or unflushed_bytes < max(POLICY.memory_bytes, POLICY.flush_bytes)
    assert not flushes or unflushed_bytes >= POLICY.flush_bytes
    assert POLICY.flushes(unflushed_bytes, 0) == (unflushed_bytes >= POLICY.flush_bytes)


@given(st.integers(0, 1 << 28), st.integers(0, 1 << 16), st.booleans())
def test_reading_waits_for_memory_and_for_markers_that_cannot_leave(bytes_: int, markers: int, is_free: bool) -> None:
    assert POLICY.has_room(bytes_) == (bytes_ <= POLICY.memory_bytes)
    waits = POLICY.waits_for_kafka(markers, kafka_is_free=is_free)
    assert waits == (markers > POLICY.max_owed_markers and not is_free)


@given(st.integers(-(1 << 20), 1 << 28), st.floats(0, 30), st.booleans())
def test_an_idle_position_follows_when_it_is_due_or_asked_for(passed_bytes: int, age_s: float, asked: bool) -> None:
    advances = POLICY.advances(passed_bytes, age_s, reply_requested=asked)
    is_due = age_s >= POLICY.idle_interval_s or passed_bytes >= POLICY.idle_bytes
    assert advances == (passed_bytes > 0 and (asked or is_due))
