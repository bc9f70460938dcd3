"""What a connector wrote beyond its offset, in however many partitions, is neither lost nor written
twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.debezium.written_checks import Change, Committed, Place, advanced, committed, is_before
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.transaction import Begin, Commit
from gateway.startup.connect_offset import DebeziumOffset
from schemas.lsn import Lsn
from tests.pgoutput.writer import write

RECORDS = {"I": ("c",), "U": ("u",), "D": ("d", "tombstone"), "K": ("d", "tombstone", "c"), "T": ("t",), "M": ("m",)}
"""Of each kind of change; K: an update of the key; T: for each table; M: a logical message."""


@dataclass(frozen=True)
class Event:
    place: Place
    operation: str
    partition: int
    number: int
    """Events of one COPY are alike."""
    commit_lsn: int


@st.composite
def slots(draw: st.DrawFn, kinds: str = "IUDKT") -> tuple[list[Committed], list[Event]]:
    """Transactions whose changes interleave in the WAL, and what a connector writes for them."""
    xids = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    lsns = iter(range(100, 1 << 20, 8))
    changes: dict[int, list[tuple[int, str]]] = {xid: [] for xid in xids}
    for xid in draw(st.lists(st.sampled_from(xids), min_size=1, max_size=20)):
        kind = draw(st.sampled_from(kinds))
        lsn = next(lsns)
        changes[xid] += [(lsn, kind)] * (draw(st.integers(1, 3)) if kind in "IT" else 1)
    transactions, events, last = [], [], 0
    for xid in xids:
        events += [
            Event((xid, lsn), operation, draw(st.integers(0, 2)), number, last)
            for number, (lsn, kind) in enumerate(changes[xid])
            for operation in RECORDS[kind]
        ]
        last = next(lsns)
        sent = tuple(Change(lsn, "U" if kind == "K" else kind) for lsn, kind in changes[xid])
        transactions.append(Committed(xid, last, sent))
    return transactions, events


def offset_at(event: Event | None) -> DebeziumOffset:
    if event is None:
        return DebeziumOffset(Lsn(0), Lsn(0))
    return DebeziumOffset(Lsn(event.place[1]), Lsn(event.commit_lsn), event.place[0])


def counted(events: list[Event], offset: DebeziumOffset) -> dict[Place, Counter[str]]:
    found: dict[Place, Counter[str]] = {}
    for event in events:
        if event.operation != "m" and not is_before(offset, event.commit_lsn, event.place[1]):
            found.setdefault(event.place, Counter())[event.operation] += 1
    return found


def within(through: DebeziumOffset, events: list[Event]) -> list[Event]:
    """What is not written again: all up to the offset's own event, or the commit that it is of."""
    if not through.written_xid:
        return [e for e in events if e.commit_lsn < through.commit_lsn]
    return [e for e in events if (e.commit_lsn, e.place[1]) <= (through.commit_lsn, through.lsn)]


@given(slots("IUDKTM"), st.data())
def test_what_was_written_to_the_last_whole_change_counts(
    slot: tuple[list[Committed], list[Event]], data: st.DataObject
) -> None:
    transactions, events = slot
    stored = data.draw(st.integers(0, len(events)))
    offset = offset_at(events[stored - 1] if stored else None)
    ends = {partition: data.draw(st.integers(stored, len(events))) for partition in range(3)}
    written = [event for at, event in enumerate(events) if at < ends[event.partition] and event.operation != "m"]
    through, count = advanced(offset, transactions, counted(written, offset), tombstones=True)
    missing = [
        event
        for at, event in enumerate(events)
        if at >= ends[event.partition] or (at >= stored - 1 and event.operation == "m")
    ]
    if stored and any(event.place == events[stored - 1].place for event in missing):
        assert (through, count) == (offset, 0), "some rows of a COPY: the gateway writes them all"
        return
    assert not [event for event in within(through, events) if event in missing], "a gap"
    assert count == len(within(through, written)) - len(within(offset, written))
    first = next((at for at, event in enumerate(events) if event in missing), len(events))
    whole = [event for event in events[:first] if not missing or event.place != events[first].place]
    assert within(through, whole) == whole, "written twice"


@given(slots(), st.data())
def test_after_whole_batches_nothing_is_written_twice(
    slot: tuple[list[Committed], list[Event]], data: st.DataObject
) -> None:
    transactions, events = slot
    stored = data.draw(st.integers(0, len(events)))
    offset = offset_at(events[stored - 1] if stored else None)
    through, _ = advanced(offset, transactions, counted(events, offset), tombstones=True)
    assert within(through, events) == events


@given(slots(), st.data())
def test_after_the_offset_of_a_commit_interleaved_changes_count(
    slot: tuple[list[Committed], list[Event]], data: st.DataObject
) -> None:
    transactions, events = slot
    end = Lsn(data.draw(st.sampled_from(transactions)).end_lsn if transactions else 0)
    offset = DebeziumOffset(end, end)  # a heartbeat stores it; later transactions may have changes before it
    through, count = advanced(offset, transactions, counted(events, offset), tombstones=True)
    assert within(through, events) == events, "written twice"
    assert count == len(events) - len(within(offset, events))


def test_truncates_and_messages_are_read_from_the_slot() -> None:
    begin = write(Begin(Lsn(490), 0, 7))
    commit = write(Commit(0, Lsn(490), Lsn(500), 0))
    truncate = write(Truncate(None, (1, 2), False, False))
    mine, other = (b"M\1" + bytes(8) + prefix + b"\0" for prefix in (b"mine", b"other"))
    alone = b"M\0" + bytes(8) + b"mine\0"
    rows = [
        (90, alone),
        (100, begin),
        (100, b"R"),
        (110, truncate),
        (120, mine),
        (130, other),
        (140, b"I"),
        (500, commit),
    ]
    message, row = Change(120, "M"), Change(140, "I")
    own = Committed(0, 90, (Change(90, "M"),))
    assert list(committed(rows, ("mine",), skips_truncates=False)) == [
        own,
        Committed(7, 500, (Change(110, "T"), Change(110, "T"), message, row)),
    ]
    assert list(committed(rows, (), skips_truncates=True)) == [
        own,
        Committed(7, 500, (message, Change(130, "M"), row)),
    ]


def test_a_message_of_no_transaction_is_not_passed() -> None:
    first = Committed(7, 100, (Change(50, "I"),))
    message, then = Committed(0, 150, (Change(150, "M"),)), Committed(8, 300, (Change(120, "I"),))
    written = {(7, 50): Counter("c"), (8, 120): Counter("c")}
    passed, between = DebeziumOffset(Lsn(150), Lsn(150)), DebeziumOffset(Lsn(200), Lsn(100))
    assert advanced(offset_at(None), [first, message, then], written, tombstones=True)[0].lsn == 51
    assert advanced(between, [first, message, then], written, tombstones=True) == (between, 0)
    assert advanced(passed, [first, message, then], written, tombstones=True)[0].lsn == 121
