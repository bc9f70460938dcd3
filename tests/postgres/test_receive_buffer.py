from __future__ import annotations

import contextlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postgres.copy_frames import DRAINED, KEEPALIVE, Frame, FrameError, drained_size, split
from gateway.postgres.receive_buffer import HEAD_BYTES, ReceiveBuffer
from tests.postgres.writer import COPY_BOTH, error, keepalive, message, parameter_status, xlog_data


class Heard:
    """An inbox and what it told. `ends_at`: the kind of message that ends the stream."""

    def __init__(
        self, capacity: int = 256, ends_at: str = "E", largest_row: int = 1 << 30, largest_message: int = 1 << 30
    ) -> None:
        self.control: list[tuple[str, bytes]] = []
        self.keepalives: list[tuple[int, bool]] = []
        self.ends_at = ends_at
        self.receive_buffer = ReceiveBuffer(
            self._on_control,
            lambda lsn, reply: self.keepalives.append((lsn, reply)),
            capacity,
            largest_row,
            largest_message,
        )
        self.taken = b""
        self.frames: list[Frame] = []
        self.most_bytes = 0

    def _on_control(self, kind: int, body: bytes) -> bool:
        self.control.append((chr(kind), body))
        return chr(kind) != self.ends_at

    def feed(self, data: bytes) -> None:
        """As a transport does that asks before each receive, with a reader who takes when the
        buffer is full."""
        while data:
            if self.receive_buffer.is_full:
                self.take()
            space = self.receive_buffer.space()
            assert len(space) > 0
            count = min(len(space), len(data))
            space[:count] = data[:count]
            self.most_bytes = max(
                self.most_bytes, self.receive_buffer.complete_bytes + self.receive_buffer.partial_bytes + len(space)
            )
            self.receive_buffer.add(count)
            data = data[count:]

    def take(self) -> bytes:
        data, frames = self.receive_buffer.take()
        shift = len(self.taken)
        for kind, lsn, third, end in frames:
            self.frames.append((kind, lsn, third if kind == KEEPALIVE else third + shift, end + shift))
        if all(kind != DRAINED for kind, *_ in frames):
            assert frames == list(split(data))
        self.taken += data
        return data


ROWS = [xlog_data(n, b"I" + bytes([n]) * n) for n in range(1, 6)]
STREAM = (
    COPY_BOTH
    + ROWS[0]
    + keepalive(7)
    + ROWS[1]
    + parameter_status("a", "b")
    + ROWS[2]
    + keepalive(9, reply_requested=True)
)
FRAMES = ROWS[0] + keepalive(7) + ROWS[1] + ROWS[2] + keepalive(9, reply_requested=True)


def test_whole_stream_gives_its_frames_without_the_other_messages() -> None:
    heard = Heard()
    heard.feed(STREAM)
    assert heard.take() == FRAMES
    assert heard.control == [("W", b"\0\0\0"), ("S", b"a\0b\0")]
    assert heard.keepalives == [(7, False), (9, True)]


def test_stream_cut_at_each_byte_gives_the_same() -> None:
    for cut in range(1, len(STREAM)):
        heard = Heard()
        heard.feed(STREAM[:cut])
        early = heard.take()
        heard.feed(STREAM[cut:])
        assert early + heard.take() == FRAMES
        assert heard.keepalives == [(7, False), (9, True)]
        assert len(heard.control) == 2


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.integers(16, 300), st.data())
def test_any_cutting_and_any_taking_gives_the_same(cuts: list[int], capacity: int, data: st.DataObject) -> None:
    heard = Heard(capacity)
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        heard.feed(STREAM[start:end])
        if data.draw(st.booleans()):
            heard.take()
    heard.take()
    assert heard.taken == FRAMES
    assert heard.receive_buffer.partial_bytes == 0


def test_message_larger_than_the_buffer_makes_it_grow_and_shrink() -> None:
    heard = Heard(capacity=256)
    heard.feed(COPY_BOTH)
    large = xlog_data(1, bytes(10_000))
    heard.feed(large)
    assert len(large) <= heard.most_bytes <= 2 * len(large)
    assert heard.take() == large
    assert len(heard.receive_buffer.space()) == 256


def test_large_message_behind_rows_does_not_hold_them_back() -> None:
    heard = Heard(capacity=256)
    large = xlog_data(9, bytes(1_000))
    heard.feed(COPY_BOTH + ROWS[0] + large[:100])
    assert heard.take() == ROWS[0]
    heard.feed(large[100:] + ROWS[1])
    heard.take()
    assert heard.taken == ROWS[0] + large + ROWS[1]


def test_buffer_does_not_grow_for_many_small_frames() -> None:
    heard = Heard(capacity=256)
    heard.feed(COPY_BOTH + b"".join(ROWS) * 50)
    heard.take()
    assert heard.taken == b"".join(ROWS) * 50
    assert heard.most_bytes == 256


def test_nothing_behind_the_end_is_given_out() -> None:
    heard = Heard()
    heard.feed(COPY_BOTH + ROWS[0] + error("XX000") + ROWS[1] + b"rubbish")
    assert heard.take() == ROWS[0]
    heard.feed(ROWS[2])
    assert heard.take() == b""
    assert [kind for kind, _ in heard.control] == ["W", "E"]


def test_frame_before_copy_both_is_an_error() -> None:
    with pytest.raises(FrameError, match="CopyBothResponse first"):
        Heard().feed(ROWS[0])


@pytest.mark.parametrize(
    "wrong",
    [
        b"d" + struct.pack("!i", 3) + b"w" + bytes(30),
        b"d" + struct.pack("!i", -5) + b"w" + bytes(30),
        b"d" + struct.pack("!i", 2**31 - 1) + b"w" + bytes(30),
        b"d" + struct.pack("!i", 29) + b"w" + bytes(24),
        b"d" + struct.pack("!i", 23) + b"k" + bytes(18),
        message("d", b"k" + bytes(16) + b"\7"),
        message("d", b"r" + bytes(33)),
        b"E" + struct.pack("!i", 3),
        b"E" + struct.pack("!i", 2**31 - 1) + bytes(9),
    ],
)
def test_illegal_lengths_and_contents_are_errors_at_once(wrong: bytes) -> None:
    heard = Heard()
    heard.feed(COPY_BOTH + ROWS[0])
    with pytest.raises(FrameError):
        heard.feed(wrong)
    assert heard.take() == ROWS[0]


@given(st.binary(max_size=200), st.integers(1, 40))
def test_arbitrary_bytes_raise_nothing_but_frame_errors(data: bytes, step: int) -> None:
    heard = Heard()
    heard.feed(COPY_BOTH)
    with contextlib.suppress(FrameError):
        for start in range(0, len(data), step):
            heard.feed(data[start : start + step])
    heard.take()


def test_five_byte_message_is_seen_without_a_sixth() -> None:
    heard = Heard()
    heard.feed(COPY_BOTH + ROWS[0] + message("c"))
    assert [kind for kind, _ in heard.control] == ["W", "c"]


LARGEST = {ord("I"): 40_000, ord("U"): 40_000, ord("D"): 40_000, ord("M"): 10_000, ord("R"): 1 << 30}
SIZES = st.sampled_from([1, 100, HEAD_BYTES, *(limit + more for limit in (9971, 39_971) for more in (0, 1, 70_000))])


@given(st.data())
def test_rows_and_messages_above_their_limits_are_drained_where_they_stand(data: st.DataObject) -> None:
    """However the bytes come and whenever the reader takes: the order stays, and what is small is
    whole."""
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(b"IUDMR"), SIZES), max_size=6))
    payloads = [bytes([kind]) + bytes(number for _ in range(size - 1)) for number, (kind, size) in enumerate(chosen)]
    frames = [xlog_data(number, payload) + keepalive(number) for number, payload in enumerate(payloads)]
    heard = Heard(data.draw(st.integers(16, 5000)), largest_row=40_000, largest_message=10_000)
    sent = COPY_BOTH + b"".join(frames) + parameter_status("a", "b")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    for start, end in pairwise([0, *cuts, len(sent)]):
        heard.feed(sent[start:end])
        if data.draw(st.booleans()):
            heard.take()
    heard.take()
    found = [frame for frame in heard.frames if frame[0] != KEEPALIVE]
    assert len(found) == len(payloads)
    for (kind, lsn, start, end), (number, payload) in zip(found, enumerate(payloads), strict=True):
        assert lsn == number
        if len(payload) + 29 > LARGEST[payload[0]]:
            assert (kind, drained_size(heard.taken, start)) == (DRAINED, len(payload))
            assert heard.taken[start:end] == payload[:HEAD_BYTES]
        else:
            assert heard.taken[start:end] == payload
    assert heard.keepalives == [(number, False) for number in range(len(payloads))]
    assert heard.receive_buffer.partial_bytes == 0


def test_a_frame_that_is_drained_takes_no_memory() -> None:
    heard = Heard(capacity=1 << 14, largest_message=1 << 15)
    heard.feed(COPY_BOTH + xlog_data(1, b"M" + bytes(10_000_000)) + ROWS[0])
    assert heard.most_bytes == 1 << 14
    heard.take()
    assert [kind for kind, *_ in heard.frames] == [DRAINED, ord("w")]


@pytest.mark.parametrize("content", [b"D", bytes([DRAINED])])
def test_the_server_can_not_send_what_stands_for_a_drained_frame(content: bytes) -> None:
    heard = Heard()
    heard.feed(COPY_BOTH)
    with pytest.raises(FrameError, match="'w' or 'k'"):
        heard.feed(message("d", content + bytes(24) + b"I" * 100))


@pytest.mark.parametrize("wrong", [b"d" + struct.pack("!i", 9) + b"w", b"d" + struct.pack("!i", 22) + b"r"])
def test_a_frame_too_short_to_hold_its_lsn_is_an_error_at_once(wrong: bytes) -> None:
    heard = Heard()
    heard.feed(COPY_BOTH)
    with pytest.raises(FrameError):
        heard.feed(wrong)
