"""Read the first fields of every change event without its schema, so that records can be selected
before they are fully decoded.

The envelope (record `Change` of every relation, and `LogicalMessage`) begins with op, xid, subxid,
epoch, change_lsn, ordinal: plain varints in this order. They are followed by commit_lsn,
commit_time, origin and, in a change, key_change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_consumer.columnar import scalars
from spark_consumer.columnar.cursor import Cursor, Longs
from spark_consumer.columnar.malformed import first_malformed
from spark_consumer.columnar.nested import optional_decoder
from spark_consumer.errors import MalformedRecord

OPERATIONS = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "READ")
DELETE, TRUNCATE = OPERATIONS.index("DELETE"), OPERATIONS.index("TRUNCATE")

_OPTIONAL_LONG = optional_decoder(scalars.integer_decoder("long", None), 1)
_OPTIONAL_STRING = optional_decoder(scalars.BYTES, 1)


@dataclass(frozen=True, slots=True)
class Heads:
    """The first fields of each record, as parallel arrays; `operation` has indexes in
    OPERATIONS."""

    operation: Longs
    xid: Longs
    subxid: Longs
    epoch: Longs
    change_lsn: Longs
    ordinal: Longs
    cursor: Cursor  # is after ordinal

    def key_changes(self, rows: Longs) -> Longs:
        """Return the `rows` whose key_change is true. They must be records of a relation's
        topic."""
        cursor = self.cursor.select(rows)
        for decoder in (_OPTIONAL_LONG, _OPTIONAL_LONG, _OPTIONAL_STRING):
            decoder.decode(cursor, None, len(rows))
        flag = scalars.BOOLEAN.decode(cursor, None, len(rows))
        chosen: Longs = rows[flag.to_numpy(zero_copy_only=False)]
        return chosen


def decode_heads(values: pa.Array, *, skip: int) -> Heads:
    """Return the heads of framed records (pa.binary()), whose Avro begins at byte `skip`. Raises
    MalformedRecord, with its field `record` set."""
    try:
        return _decode_heads(values, skip)
    except MalformedRecord as problem:
        raise first_malformed(lambda some: _decode_heads(some, skip), values, problem) from None


def _decode_heads(values: pa.Array, skip: int) -> Heads:
    cursor = Cursor.over(values, skip)
    operation, xid, subxid, epoch, change_lsn, ordinal = (cursor.varint(None) for _ in range(6))
    if len(values) and (int(operation.min()) < 0 or int(operation.max()) >= len(OPERATIONS)):
        raise MalformedRecord(
            f"a change event has an `op` that is not one of the {len(OPERATIONS)} symbols of its enum"
        )
    if (cursor.positions > cursor.ends).any():
        raise MalformedRecord("a record ends within its first fields")
    return Heads(operation, xid, subxid, epoch, change_lsn, ordinal, cursor)


def schema_ids(values: pa.Array) -> Longs:
    """Return the schema id in the header of each record (Confluent's wire format). Raises
    MalformedRecord."""
    cursor = Cursor.over(values, 5)  # each has at least 5 bytes
    framing = cursor.buffer[(cursor.positions - 5)[:, None] + np.arange(5)]
    if framing[:, 0].any():
        raise MalformedRecord("a record is not in Confluent's wire format")
    return np.ascontiguousarray(framing[:, 1:]).view(">u4")[:, 0].astype(np.int64)
