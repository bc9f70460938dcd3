"""Deletion vectors as RoaringBitmap's specification writes them, read back. What Delta itself
writes: test_dump.py."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_consumer.errors import MirrorError
from spark_consumer.mirror.delta.deletion_vectors import read_bitmaps

FORMS = ("plain", "runs")
_MAGIC = 1681511377


def write_bitmaps(places: list[int], form: str) -> bytes:
    uppers = sorted({place >> 32 for place in places})
    parts = [struct.pack("<iq", _MAGIC, len(uppers))]
    for upper in uppers:
        lower = sorted(place & 0xFFFFFFFF for place in places if place >> 32 == upper)
        parts.append(struct.pack("<I", upper) + write_bitmap(lower, form))
    return b"".join(parts)


def write_bitmap(places: list[int], form: str) -> bytes:
    groups = {
        upper: [place & 0xFFFF for place in places if place >> 16 == upper] for upper in {p >> 16 for p in places}
    }
    ordered = sorted(groups.items())
    headers = b"".join(struct.pack("<HH", upper, len(group) - 1) for upper, group in ordered)
    offsets = bytes(4 * len(ordered))  # nobody needs them to read in order
    if form == "runs":
        flags = bytes([0xFF] * ((len(ordered) + 7) // 8))
        cookie = struct.pack("<I", 12347 | (len(ordered) - 1) << 16)
        head = cookie + flags + headers + (offsets if len(ordered) >= 4 else b"")
        return head + b"".join(write_runs(group) for _, group in ordered)
    head = struct.pack("<II", 12346, len(ordered)) + headers + offsets
    return head + b"".join(write_container(group) for _, group in ordered)


def write_runs(group: list[int]) -> bytes:
    starts = [place for place in group if place - 1 not in set(group)]
    ends = [place for place in group if place + 1 not in set(group)]
    pairs = b"".join(struct.pack("<HH", start, end - start) for start, end in zip(starts, ends, strict=True))
    return struct.pack("<H", len(starts)) + pairs


def write_container(group: list[int]) -> bytes:
    if len(group) <= 4096:
        return struct.pack(f"<{len(group)}H", *group)
    bits = np.zeros(65536, np.uint8)
    bits[group] = 1
    return np.packbits(bits, bitorder="little").tobytes()


PLACES = st.sets(st.integers(0, 2**20) | st.integers(0, 2**40) | st.integers(65_000, 66_000), min_size=1, max_size=60)


@given(PLACES, st.sampled_from(FORMS))
def test_places_are_read_as_they_were_written(places: set[int], form: str) -> None:
    assert read_bitmaps(write_bitmaps(sorted(places), form)).tolist() == sorted(places)


@pytest.mark.parametrize("count", [4096, 4097, 65536])
def test_a_container_of_many_places_is_one_of_bits(count: int) -> None:
    places = [3 * 65536 + place for place in range(65536 - count, 65536)]
    assert read_bitmaps(write_bitmaps(places, "plain")).tolist() == places


@pytest.mark.parametrize("damage", [0, 16])
def test_another_form_is_refused(damage: int) -> None:
    data = bytearray(write_bitmaps([1, 2], "plain"))
    data[damage] ^= 0xFF
    with pytest.raises(MirrorError, match="unknown form"):
        read_bitmaps(bytes(data))
