"""What is durable of snapshots is read back as it was written; what is none is refused."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from gateway.errors import StopForOperator
from gateway.snapshot.rules.published_content import Account, LeafContent, Membership, PublishedContent, TypeVersion
from gateway.snapshot.rules.ranges_to_read import TidRange
from gateway.snapshot.stored_state import (
    StreamState,
    TableState,
    content_key,
    decode_states,
    encode_content,
    encode_keys,
    encode_stream,
    encode_table,
    of_slot,
    segment_key,
    table_key,
)
from schemas.records import SNAPSHOT_STATE
from schemas.wire_format import frame

FRAME = frame(7)
WRITERS = {7: SNAPSHOT_STATE}
KEY = b"123/shop/walgate"
STREAM = StreamState(1 << 33, (5, 1 << 40), True, "id")
TABLE = TableState(
    16400,
    "public",
    "t",
    "id",
    "REPLACE",
    "READING",
    "f" * 64,
    2,
    (TidRange(0, 1, None), TidRange(1, 5, 9)),
    (3,),
    1,
    2,
    3,
)
ACCOUNT = Account("1", "2", "3", 10, (Membership(5, "6", "p", "iud", "all", True),), (TypeVersion(16700, "7"),))
LEAVES = (LeafContent(16500, 7, "x" * 32, True, "8/", 16501), LeafContent(16600, 8, "y" * 32))
CONTENT = PublishedContent("public", "t", True, LEAVES, ACCOUNT, horizon=1 << 33)


def test_states_are_read_back() -> None:
    values = {
        KEY: encode_stream(FRAME, STREAM),
        table_key(KEY, 16400): encode_table(FRAME, TABLE),
        segment_key(KEY, 16400, 0): encode_keys(FRAME, 16400, 0, []),
        segment_key(KEY, 16400, 1): encode_keys(FRAME, 16400, 1, [b"\2", b"\4"]),
        content_key(KEY, 16400): encode_content(FRAME, 16400, CONTENT),
        KEY + b"_2": encode_stream(FRAME, StreamState()),
        table_key(KEY + b"_2", 16400): encode_table(FRAME, TABLE),
    }
    own = of_slot(KEY, values)
    assert len(own) == 5
    states = decode_states(own, WRITERS)
    assert states.contents == {16400: CONTENT}
    assert states.contents[16400].horizon == CONTENT.horizon
    assert (states.stream, states.tables, states.keys) == (STREAM, {16400: TABLE}, {16400: {1: [b"\2", b"\4"]}})
    assert decode_states({}, {}).stream is None


def without(schema: Any, *names: str) -> Any:
    """The schema before these fields were added."""
    if isinstance(schema, list):
        return [without(part, *names) for part in schema if not (isinstance(part, dict) and part.get("name") in names)]
    if isinstance(schema, dict):
        return {name: without(part, *names) for name, part in schema.items()}
    return schema


def test_the_content_that_an_older_gateway_wrote_is_read() -> None:
    older = without(SNAPSHOT_STATE, "account", "horizon", "attachment", "toast")
    assert older != SNAPSHOT_STATE
    leaf = {"oid": 16500, "filenode": 7, "columns": "x", "is_attached": True}
    content = {"relation_oid": 16400, "schema": "public", "name": "t", "is_partitioned": False, "leaves": [leaf]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(older), {"content": content})
    states = decode_states({content_key(KEY, 16400): FRAME + body.getvalue()}, {7: older})
    assert states.contents == {16400: PublishedContent("public", "t", False, (LeafContent(16500, 7, "x", True),))}


@pytest.mark.parametrize("value", [b"", FRAME, FRAME + b"\7", b"\1" + FRAME, frame(8) + b"\0\0\0"])
def test_what_is_no_state_is_refused(value: bytes) -> None:
    with pytest.raises(StopForOperator, match="key 123/shop/walgate#5"):
        decode_states({KEY + b"#5": value}, WRITERS)
