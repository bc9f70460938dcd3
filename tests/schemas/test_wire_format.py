from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import SchemaError
from schemas.wire_format import FRAME_BYTES, frame, read_schema_id


@given(st.integers(0, 2**31 - 1), st.binary(max_size=5))
def test_a_frame_gives_its_schema_id_back(schema_id: int, avro: bytes) -> None:
    assert len(frame(schema_id)) == FRAME_BYTES
    assert read_schema_id(frame(schema_id) + avro) == schema_id


def test_a_frame_is_the_magic_byte_and_a_big_endian_id() -> None:
    assert frame(258) == b"\0\0\0\1\2"


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\1", b"\xff" * 9])
def test_what_is_no_frame_is_refused(payload: bytes) -> None:
    with pytest.raises(SchemaError):
        read_schema_id(payload)
