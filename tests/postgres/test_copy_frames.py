from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postgres.copy_frames import KEEPALIVE, XLOG_DATA, FrameError, split, standby_status
from tests.postgres.writer import keepalive, message, xlog_data

lsns = st.integers(0, 2**64 - 1)
rows = st.tuples(lsns, st.binary(min_size=1, max_size=40))
pulses = st.tuples(lsns, st.booleans())
written = st.lists(st.one_of(rows, pulses), max_size=12)


def write(frame: tuple[int, bytes | bool]) -> bytes:
    lsn, content = frame
    return keepalive(lsn, reply_requested=content) if isinstance(content, bool) else xlog_data(lsn, content)


def read(data: bytes) -> list[tuple[int, bytes | bool]]:
    """What was written, from what `split` says."""
    return [
        (lsn, data[third:end]) if kind == XLOG_DATA else (lsn, bool(third)) for kind, lsn, third, end in split(data)
    ]


@given(written)
def test_frames_come_back_as_they_were_written(frames: list[tuple[int, bytes | bool]]) -> None:
    assert read(b"".join(map(write, frames))) == frames


@given(written)
def test_each_frame_ends_where_the_next_begins(frames: list[tuple[int, bytes | bool]]) -> None:
    sizes = [len(write(frame)) for frame in frames]
    assert [end for *_, end in split(b"".join(map(write, frames)))] == [sum(sizes[: n + 1]) for n in range(len(sizes))]


@given(st.lists(st.one_of(rows, pulses), min_size=1, max_size=4), st.data())
def test_every_cut_inside_a_frame_is_an_error_after_the_whole_frames(
    frames: list[tuple[int, bytes | bool]], data: st.DataObject
) -> None:
    whole = b"".join(map(write, frames[:-1]))
    last = write(frames[-1])
    cut = data.draw(st.integers(1, len(last) - 1))
    cut_off = split(whole + last[:cut])
    assert len([next(cut_off) for _ in frames[:-1]]) == len(frames) - 1
    with pytest.raises(FrameError):
        next(cut_off)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_frame_errors(data: bytes) -> None:
    end = 0
    with contextlib.suppress(FrameError):
        for *_, end in split(data):
            assert 0 < end <= len(data)
        assert end == len(data)


@given(rows, st.binary(min_size=1, max_size=20).filter(lambda rubbish: rubbish[0] != ord("d")))
def test_rubbish_behind_a_frame_is_an_error(row: tuple[int, bytes], rubbish: bytes) -> None:
    with pytest.raises(FrameError, match="CopyData 'd'"):
        list(split(write(row) + rubbish))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (message("d", b"w" + bytes(24)), "XLogData at byte 1: expected a length of at least 30, got 29"),
        (message("d", b"k" + bytes(16)), "keepalive at byte 1: expected the length 22, got 21"),
        (message("d", b"k" + bytes(18)), "keepalive at byte 1: expected the length 22, got 23"),
        (message("d", b"k" + bytes(16) + b"\2"), "keepalive at byte 22: expected 0 or 1, got 2"),
        (message("d", b"r" + bytes(33)), "CopyData at byte 5: expected 'w' or 'k', got byte 0x72"),
        (b"d" + struct.pack("!i", -1) + b"w" + bytes(30), "expected a length of at least 30, got -1"),
        (b"d" + struct.pack("!i", 2**31 - 1) + b"w" + bytes(30), "expected 2147483648 bytes, got 36"),
        (b"d\0\0", "CopyData at byte 0: expected at least 6 bytes, got 3"),
        (b"E" + bytes(20), "expected CopyData 'd', got byte 0x45"),
    ],
)
def test_an_illegal_frame_is_named_with_what_was_expected(data: bytes, said: str) -> None:
    for before in (b"", keepalive(6)):
        with pytest.raises(FrameError) as caught:
            list(split(before + data))
        assert said in str(caught.value)


def test_nothing_is_no_frame() -> None:
    assert list(split(b"")) == []


def test_frames_have_the_kinds_of_the_manual() -> None:
    data = xlog_data(5, b"B") + keepalive(6)
    assert [frame[0] for frame in split(data)] == [XLOG_DATA, KEEPALIVE] == [ord("w"), ord("k")]


@given(lsns, lsns, st.integers(0, 2**32), st.booleans())
def test_standby_status_has_the_layout_of_the_manual(written: int, flushed: int, now: int, reply: bool) -> None:
    status = standby_status(written, flushed, now, reply_requested=reply)
    assert status[:1] == b"d" and struct.unpack("!i", status[1:5]) == (len(status) - 1,)
    kind, write, flush, apply, time_us, ask = struct.unpack("!cQQQqB", status[5:])
    assert (kind, write, flush, apply, ask) == (b"r", written, flushed, flushed, reply)
    assert time_us == (now - 946_684_800) * 1_000_000
