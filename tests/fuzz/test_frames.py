"""Streams of frames, mutated, arriving in pieces: the inbox gives out whole frames, or FrameError
is raised; nothing else."""

from __future__ import annotations

import random

import pytest

from gateway.postgres.copy_frames import FrameError, split
from gateway.postgres.receive_buffer import ReceiveBuffer
from tests.fuzz.campaign import LONG_INPUTS, SEED, campaign
from tests.golden.recording import recordings
from tests.postgres.writer import COPY_BOTH, keepalive, message, parameter_status, xlog_data

SHORT_INPUTS = 10_000
CAPACITY = 512


def corpus() -> list[bytes]:
    payloads = [message.payload for one in recordings() for message in one.messages if len(message.payload) < 200]
    chosen = random.Random(1)
    streams = []
    for number in range(200):
        frames = [xlog_data(number, chosen.choice(payloads)) for _ in range(chosen.randrange(4))]
        frames.insert(chosen.randrange(len(frames) + 1), keepalive(number, reply_requested=number % 2 == 1))
        frames.insert(chosen.randrange(len(frames) + 1), parameter_status("TimeZone", "UTC"))
        streams.append(COPY_BOTH + b"".join(frames) + (message("c", b"") if number % 3 == 0 else b""))
    return streams


def fuzz(input_count: int) -> int:
    cuts = random.Random(SEED)

    def is_stream(number: int, data: bytes) -> bool:
        receive_buffer = ReceiveBuffer(lambda kind, body: kind != ord("E"), lambda lsn, reply: None, CAPACITY)
        try:
            while data:
                space = receive_buffer.space()
                count = min(len(space), len(data), cuts.randrange(1, 200))
                space[:count] = data[:count]
                buffer_bytes = receive_buffer.complete_bytes + receive_buffer.partial_bytes + len(space)
                assert buffer_bytes <= 2 * CAPACITY + 2 * len(data) + 4000, "a length that is believed"
                receive_buffer.add(count)
                data = data[count:]
                taken, frames = receive_buffer.take()
                assert frames == list(split(taken))
        except FrameError:
            return False
        return receive_buffer.partial_bytes == 0

    return campaign(corpus(), is_stream, input_count)


def test_mutated_streams_are_refused_or_split_into_whole_frames() -> None:
    accepted = fuzz(SHORT_INPUTS)
    assert SHORT_INPUTS // 50 < accepted < SHORT_INPUTS * 3 // 4, "the mutations are too wild or too tame to be of use"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_millions_of_mutated_streams_are_refused_or_split_into_whole_frames() -> None:
    assert fuzz(LONG_INPUTS)
