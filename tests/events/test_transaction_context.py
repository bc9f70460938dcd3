from __future__ import annotations

import io
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.transaction_context import TransactionContext

longs = st.integers(0, 2**63 - 1)
IDENTITY = {
    "type": "record",
    "name": "I",
    "fields": [{"name": name, "type": "long"} for name in ("xid", "subxid", "epoch")],
}
COMMIT = {
    "type": "record",
    "name": "C",
    "fields": [
        {"name": "commit_lsn", "type": ["null", "long"]},
        {"name": "commit_time", "type": ["null", "long"]},
        {"name": "origin", "type": ["null", "string"]},
    ],
}


@given(
    longs,
    st.integers(-1, 2**32),
    longs,
    st.none() | longs,
    st.none() | longs,
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)
def test_a_context_holds_its_fields_as_a_reader_gets_them(
    xid: int, subxid: int, epoch: int, commit_lsn: int | None, commit_time: int | None, origin: str | None
) -> None:
    context = TransactionContext(xid, subxid, epoch, commit_lsn, commit_time, origin)
    assert read(IDENTITY, context.identity) == {"xid": xid, "subxid": subxid, "epoch": epoch}
    assert read(COMMIT, context.commit) == {"commit_lsn": commit_lsn, "commit_time": commit_time, "origin": origin}


def read(schema: Any, payload: bytes) -> Any:
    stream = io.BytesIO(payload)
    value = fastavro.schemaless_reader(stream, schema, None)
    assert not stream.read(1)
    return value
