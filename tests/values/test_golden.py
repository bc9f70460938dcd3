"""Values as a real server wrote them in both forms (golden.json, by capture.py): no server needed
to read them again.

From text and from binary the same Avro bytes come, or both are special; and the text is written
from the binary form as the server wrote it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from decimal import Context, Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pgoutput.letters import KIND_BINARY, KIND_TEXT
from gateway.values.built_in_types import built_in_types
from gateway.values.column_codec import Codec, codec, has_binary_decoder
from gateway.values.column_readers import Encode, Reader
from gateway.values.special_values import NotRenderable, UnrepresentableValue
from schemas.avro_types import column_type, key_type
from tests.events.rows import numeric_binary, numeric_typmod

GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden.json").read_text("utf-8"))["values"]
TYPES = {
    facts.oid: replace(
        facts, outputs=tuple(f"{int(row['binary'], 16)} {row['text']}" for row in GOLDEN if row["oid"] == facts.oid)
    )
    if facts.name.startswith("reg")
    else facts
    for facts in built_in_types()
}
"""A regclass and its kind know the names that were captured."""
REFUSED = (NotRenderable, ValueError, IndexError, OverflowError, struct.error)


@cache
def codecs(oid: int, typmod: int) -> tuple[Codec, Codec]:
    """(of the row, of the key)."""
    column = column_type(TYPES[oid], typmod)
    return codec(column), codec(key_type(column))


def of_type(name: str) -> list[tuple[bytes, bytes, Codec, Codec]]:
    return [
        (row["text"].encode(), bytes.fromhex(row["binary"]), *codecs(row["oid"], row["typmod"]))
        for row in GOLDEN
        if row["type"] == name
    ]


def encoded(encode: Encode | None, value: bytes) -> bytes | None:
    """None: special."""
    assert encode is not None
    try:
        return encode(value)
    except UnrepresentableValue:
        return None


DECODABLE = sorted({row["type"] for row in GOLDEN if has_binary_decoder(TYPES[row["oid"]])})


@pytest.mark.parametrize("name", DECODABLE)
def test_both_forms_give_the_same_bytes(name: str) -> None:
    for text, binary, row, key in of_type(name):
        assert encoded(row.from_text, text) == encoded(row.from_binary, binary)
        assert row.render is not None
        assert row.render(binary) == text
        assert encoded(key.from_text, text) == encoded(key.from_binary, binary) is not None


@pytest.mark.parametrize("name", DECODABLE)
def test_readers_do_what_the_encoders_do(name: str) -> None:
    for text, binary, row, _ in of_type(name):
        assert read(row.read_text, KIND_TEXT, text) == encoded(row.from_text, text)
        assert read(row.read_binary, KIND_BINARY, binary) == encoded(row.from_binary, binary)


@given(st.data())
def test_the_reader_of_decimals_does_what_the_encoder_does(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1) | st.integers(-200, 200))
    each, _ = codecs(1700, numeric_typmod(precision, scale))
    binary = numeric_binary(Decimal(unscaled).scaleb(-scale, Context(40)))
    expected = None if abs(unscaled) >= 10**precision else unscaled
    part = read(each.read_binary, KIND_BINARY, binary)
    assert part == encoded(each.from_binary, binary)
    assert (None if part is None else int.from_bytes(part[2:], "big", signed=True)) == expected


def read(reader: Reader, kind: int, value: bytes) -> bytes | None:
    """What a reader makes of a column amid others; it must go on exactly behind it."""
    parts: list[bytes] = []
    column = bytes((kind,)) + struct.pack("!i", len(value)) + value
    try:
        end = reader(b"nn" + column + b"n", 2, parts)
    except UnrepresentableValue:
        return None
    assert end == 2 + len(column)
    count = len(parts)
    assert reader(b"nn", 1, parts) == 2
    assert b"".join(parts[count:]) == b"\0"
    assert len(parts) == 2 * count
    return b"".join(parts[:count])


@pytest.mark.parametrize("name", DECODABLE)
def test_pieces_of_binary_values_raise_nothing_unexpected(name: str) -> None:
    for _, binary, row, _ in of_type(name):
        assert row.from_binary is not None
        for piece in [*(binary[:length] for length in range(min(len(binary), 60))), binary + b"\0", binary[1:], b""]:
            try:
                assert row.from_binary(piece)[0] == 2
            except (UnrepresentableValue, *REFUSED):
                pass


FIXED_WIDTH = ["int2", "int4", "int8", "oid", "float4", "float8", "date", "time", "timestamp", "timestamptz", "timetz",
               "interval", "pg_lsn", "tid", "xid8", "point", "circle", "int4[]", "int4range"]  # fmt: skip


@pytest.mark.parametrize("name", FIXED_WIDTH)
def test_a_binary_value_of_another_length_is_refused(name: str) -> None:
    for _, binary, row, _ in of_type(name):
        for other in (binary + b"\0", binary[:-1]):
            assert row.from_binary is not None
            with pytest.raises((UnrepresentableValue, *REFUSED)):
                row.from_binary(other)


def test_every_type_that_was_captured_has_a_binary_decoder() -> None:
    assert sorted({row["type"] for row in GOLDEN}) == DECODABLE


def test_a_name_that_the_server_did_not_make_is_not_guessed() -> None:
    for _, _, row, _ in of_type("regclass"):
        assert row.render is not None
        with pytest.raises(NotRenderable):
            row.render(struct.pack("!I", 16384))
