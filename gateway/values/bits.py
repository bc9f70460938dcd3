"""bit and varbit: int32 number of bits, then the bits; text is a row of 0 and 1."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("!i").unpack_from


def render_bits(value: bytes) -> bytes:
    length: int = _LENGTH(value)[0]
    if len(value) != 4 + (length + 7) // 8:
        raise ValueError("length of a bit string")
    if not length:
        return b""
    bits = int.from_bytes(value[4:])
    return f"{bits:0{len(value) * 8 - 32}b}"[:length].encode()
