"""The wire format of Confluent: 0x00, the schema id in 4 bytes (big-endian), and Avro data in
binary (Schema Registry docs, "Wire format")."""

from __future__ import annotations

import struct
from typing import Final

from schemas.errors import SchemaError

MAGIC: Final = 0
FRAME_BYTES: Final = 5

_FRAME = struct.Struct("!BI")


def frame(schema_id: int) -> bytes:
    """Return the 5 bytes that precede the Avro data."""
    return _FRAME.pack(MAGIC, schema_id)


def read_schema_id(payload: bytes) -> int:
    """Return the schema id of a framed key or value. Raises SchemaError if the payload is too short
    or has another format."""
    if len(payload) < FRAME_BYTES:
        raise SchemaError(f"a value in Confluent's wire format has at least {FRAME_BYTES} bytes, got {len(payload)}")
    magic, schema_id = _FRAME.unpack_from(payload)
    if magic != MAGIC:
        raise SchemaError(f"expected magic byte {MAGIC} (Confluent's wire format), got {magic}")
    return int(schema_id)
