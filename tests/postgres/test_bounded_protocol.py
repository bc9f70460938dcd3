"""asyncpg's protocol sees where each message begins, however the bytes are cut."""

from __future__ import annotations

import struct

import pytest

from gateway.postgres.asyncpg_internals import BoundedProtocol

SMALL = [b"", b"x", b"d\xff\xff\xff\xff", b"y" * 100]


def message(content: bytes) -> bytes:
    return b"d" + struct.pack("!i", len(content) + 4) + content


def refused(*pieces: bytes) -> int:
    protocol = BoundedProtocol.__new__(BoundedProtocol)
    protocol.largest_message = 104
    for piece in pieces:
        protocol._look_at_headers(piece)
    size: int = protocol.refused_bytes
    return size


@pytest.mark.parametrize("last", [b"z" * 100, b"z" * 101])
def test_a_message_that_is_too_large_is_found_by_its_header(last: bytes) -> None:
    data = b"".join(map(message, [*SMALL, last]))
    expected = 105 if len(last) > 100 else 0
    assert refused(data) == expected
    assert refused(*(data[at : at + 1] for at in range(len(data)))) == expected
    for at in range(len(data) + 1):
        assert refused(data[:at], data[at:]) == expected
    assert refused(data[: len(data) - len(last)]) == expected


def test_a_length_that_is_none_is_left_to_the_driver() -> None:
    assert refused(b"d\xff\xff\xff\xff", b"d\0\0\0\0", message(b"y")) == 0
