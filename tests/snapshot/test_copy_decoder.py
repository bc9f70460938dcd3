"""COPY's binary format, in pieces of any size, becomes what the stream's encoder makes of the same
values."""

from __future__ import annotations

import io
import struct
import time
from typing import Any

import fastavro
import pytest

from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.snapshot.copy_decoder import CopyDecoder, UnreadableCopy
from schemas.change_schema import change_schema
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.varint import encode_long

INT4 = TypeFacts(23, "pg_catalog", "int4", Kind.BASE)
TEXT = TypeFacts(25, "pg_catalog", "text", Kind.BASE)
INTERVAL = TypeFacts(1186, "pg_catalog", "interval", Kind.BASE)
DATE = TypeFacts(1082, "pg_catalog", "date", Kind.BASE)
RELATION = RelationDescription(
    1,
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (
        ColumnDescription("id", INT4, -1, True),
        ColumnDescription("word", TEXT, -1, False),
        ColumnDescription("took", INTERVAL, -1, False),
        ColumnDescription("day", DATE, -1, False),
    ),
)
IS_BINARY = (True, True, False, False)
INFINITY = b"infinity"
ROWS: list[list[bytes | None]] = [
    [struct.pack("!i", 1), b"one", b"PT1S", b"2026-11-22"],
    [struct.pack("!i", 2), None, None, None],
    [struct.pack("!i", 3), "größer".encode(), b"P1D", INFINITY],
]
EXPECTED = [
    {"id": 1, "word": "one", "took": "PT1S", "day": "2026-11-22"},
    {"id": 2, "word": None, "took": None, "day": None},
    {"id": 3, "word": "größer", "took": "P1D", "day": None},
]


def copy_of(rows: list[list[bytes | None]], extension: bytes = b"") -> bytes:
    parts = [b"PGCOPY\n\xff\r\n\0", struct.pack("!ii", 0, len(extension)), extension]
    for row in rows:
        parts.append(struct.pack("!h", len(row)))
        parts += [struct.pack("!i", -1) if v is None else struct.pack("!i", len(v)) + v for v in row]
    return b"".join(parts) + struct.pack("!h", -1)


def copied(*pieces: bytes) -> CopyDecoder:
    rows = CopyDecoder(RowEncoder(RELATION, 7, 8), IS_BINARY)
    for piece in pieces:
        rows.feed(piece)
    return rows


def decoded(rows: CopyDecoder) -> list[dict[str, Any]]:
    """As the state machine writes them."""
    encoder = RowEncoder(RELATION, 7, 8)
    context = TransactionContext(5, -1, 1, 100, 200, None)
    schema = fastavro.parse_schema(change_schema(RELATION, "cdc"))
    found = []
    for ordinal, (_, tail) in enumerate(rows.rows):
        head = encoder.read_head + context.identity + encode_long(50) + encode_long(ordinal) + context.commit
        source = io.BytesIO((head + tail)[5:])
        record: Any = fastavro.schemaless_reader(source, schema, None)
        assert source.read() == b""
        found.append(record)
    return found


@pytest.mark.parametrize("extension", [b"", b"later"])
def test_rows_cut_at_any_byte_are_the_same(extension: bytes) -> None:
    data = copy_of(ROWS, extension)
    whole = copied(data)
    whole.finish()
    for at in range(len(data) + 1):
        cut = copied(data[:at], data[at:])
        cut.finish()
        assert cut.rows == whole.rows
    records = decoded(whole)
    assert [record["op"] for record in records] == ["READ"] * 3
    assert [record["ordinal"] for record in records] == [0, 1, 2]
    rows = [{**record["after"], "day": record["after"]["day"] and str(record["after"]["day"])} for record in records]
    assert rows == EXPECTED
    assert [record["special"] for record in records] == [{}, {}, {"day": "infinity"}]
    assert all(record["before"] is None and record["unchanged"] == [] for record in records)


def test_keys_are_those_of_the_stream() -> None:
    rows = copied(copy_of(ROWS)).rows
    message = b"N\0\4b\0\0\0\4\0\0\0\1nnn"
    key, _ = RowEncoder(RELATION, 7, 8).insert(message, 0, len(message), TransactionContext(1, -1, 1, 1, 1, None), 1, 0)
    assert rows[0][0] == key


def test_what_is_not_whole_is_refused() -> None:
    data = copy_of(ROWS)
    for at in range(len(data)):
        with pytest.raises(UnreadableCopy):
            copied(data[:at]).finish()
    with pytest.raises(UnreadableCopy):
        copied(data + b"!").finish()
    with pytest.raises(UnreadableCopy):
        copied(b"x" * 100)
    with pytest.raises(UnreadableCopy):
        copied(copy_of([ROWS[0][:2]]))


def test_tuples_are_kept_with_their_keys_where_they_are_asked_for() -> None:
    for is_binary in (IS_BINARY, [True] * len(IS_BINARY)):
        rows = CopyDecoder(RowEncoder(RELATION, 7, 8), is_binary, keeps_tuples=True)
        rows.feed(copy_of([[struct.pack("!i", 1), None, None, None]]))
        rows.finish()
        assert rows.rows == [(copied(copy_of(ROWS)).rows[0][0], b"N\0\4b\0\0\0\4\0\0\0\1nnn")]


def test_a_large_row_costs_what_as_many_small_ones_do() -> None:
    """Fed in pieces: it is not copied for each of them."""
    piece_bytes = 1 << 13
    for is_binary in (IS_BINARY, [True] * len(IS_BINARY)):
        data = copy_of([[struct.pack("!i", 1), b"x" * (16 << 20), None, None]])
        rows = CopyDecoder(RowEncoder(RELATION, 7, 8), is_binary, keeps_tuples=True)
        begin = time.process_time()
        for start in range(0, len(data), piece_bytes):
            rows.feed(data[start : start + piece_bytes])
        rows.finish()
        assert time.process_time() - begin < 1
        assert len(rows.rows) == 1 and len(rows.rows[0][1]) > 16 << 20 and rows.byte_count == len(data)
