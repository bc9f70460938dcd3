from __future__ import annotations

import io

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.varint import encode_long, encode_some_long

EDGES = [sign * (1 << bit) + step for bit in range(63) for sign in (1, -1) for step in (-1, 0, 1)] + [
    2**63 - 1,
    -(2**63),
]


def as_fastavro(schema: object, number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, number)  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize("number", EDGES)
def test_longs_at_every_edge_are_what_fastavro_writes(number: int) -> None:
    assert encode_long(number) == as_fastavro("long", number)


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_are_what_fastavro_writes(number: int) -> None:
    assert encode_long(number) == as_fastavro("long", number)
    assert encode_some_long(number) == as_fastavro(["null", "long"], number)
