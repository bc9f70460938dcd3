"""Confluent framing: 0x00, schema id as 4 bytes big-endian, Avro binary (Schema Registry docs,
"Wire format")."""

from __future__ import annotations

import struct
from typing import Final

from schemas.errors import SchemaError

MAGIC: Final = 0
FRAME_BYTES: Final = 5

_FRAME = struct.Struct("!BI")


def frame(schema_id: int) -> bytes:
    """Return the 5 bytes before the Avro data."""
    return _FRAME.pack(MAGIC, schema_id)


def read_schema_id(payload: bytes) -> int:
    """Return the schema id of a framed key or value. Raises SchemaError where the frame is too
    short or of another kind."""
    if len(payload) < FRAME_BYTES:
        raise SchemaError(f"a value in Confluent's wire format has at least {FRAME_BYTES} bytes, got {len(payload)}")
    magic, schema_id = _FRAME.unpack_from(payload)
    if magic != MAGIC:
        raise SchemaError(f"expected magic byte {MAGIC} (Confluent's wire format), got {magic}")
    return int(schema_id)
