"""Delta's deletion vectors, which list the deleted rows of a Parquet file.

Protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vector-format; the
bitmaps in it: https://github.com/RoaringBitmap/RoaringFormatSpec
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_consumer.errors import MirrorError

Places = npt.NDArray[np.uint64]

# Z85 and Python's base85 differ only in their alphabets.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = bytes.maketrans(_Z85, _B85)
_UUID_CHARACTERS = 20

_MAGIC = 1681511377
_WITH_RUNS, _WITHOUT_RUNS = 12347, 12346
_OFFSETS_FROM = 4  # a bitmap with runs has offsets only from this many containers on
_ARRAY_LIMIT = 4096
_BITMAP_BYTES = 8192


def unique_id(vector: dict[str, Any] | None) -> str | None:
    """Return the id of a file's deletion vector. The log identifies a file by its path and this
    id."""
    return None if vector is None else f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def deleted_places(folder: Path, vector: dict[str, Any]) -> Places:
    """Return the positions, from 0, of the deleted rows in a file of the table in `folder`.
    `vector`: the descriptor of the deletion vector in the log."""
    text = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "i":
        return read_bitmaps(_z85(text))
    if vector["storageType"] != "u":
        raise MirrorError(
            f"{folder} has a deletion vector that is stored under an absolute path", hint="Read it with Spark."
        )
    name = f"deletion_vector_{uuid.UUID(bytes=_z85(text[-_UUID_CHARACTERS:]))}.bin"
    return read_bitmaps(_stored(folder / text[:-_UUID_CHARACTERS] / name, vector["offset"], vector["sizeInBytes"]))


def _z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_TO_B85))


def _stored(path: Path, offset: int, size: int) -> bytes:
    """Return the data of a deletion vector in a file, which also has its length and checksum.
    Raises MirrorError."""
    with path.open("rb") as file:
        file.seek(offset)
        found = file.read(size + 8)
    data = found[4 : 4 + size]
    if len(found) != size + 8 or struct.unpack(">i", found[:4])[0] != size:
        raise MirrorError(f"{path} has no deletion vector of {size} bytes at {offset}")
    if struct.unpack(">I", found[-4:])[0] != zlib.crc32(data):
        raise MirrorError(f"the deletion vector at {offset} in {path} has a wrong checksum")
    return data


def read_bitmaps(data: bytes) -> Places:
    """Return the positions in a RoaringBitmapArray: 32-bit bitmaps, each with the upper half of its
    positions. Raises MirrorError."""
    magic, count = struct.unpack_from("<iq", data)
    if magic != _MAGIC:
        raise MirrorError(f"a deletion vector has an unknown format ({magic})", hint="Read the table with Spark.")
    at, parts = 12, [np.empty(0, np.uint64)]
    for _ in range(count):
        (upper,) = struct.unpack_from("<I", data, at)
        places, at = _read_bitmap(data, at + 4)
        parts.append(places | np.uint64(upper << 32))
    return np.concatenate(parts)


def _read_bitmap(data: bytes, at: int) -> tuple[Places, int]:
    """Return the positions in the bitmap at `at`, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    has_runs = cookie & 0xFFFF == _WITH_RUNS
    if has_runs:
        count, at = (cookie >> 16) + 1, at + 4
        runs = np.unpackbits(np.frombuffer(data, np.uint8, (count + 7) // 8, at), bitorder="little").astype(bool)
        at += (count + 7) // 8
    elif cookie == _WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", data, at + 4)
        runs, at = np.zeros(count, bool), at + 8
    else:
        raise MirrorError(f"a bitmap in a deletion vector has an unknown format ({cookie})")
    headers = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2).astype(np.uint64)
    at += 4 * count + (0 if has_runs and count < _OFFSETS_FROM else 4 * count)
    parts = [np.empty(0, np.uint64)]
    for place, (upper, cardinality) in enumerate(headers.tolist()):
        lower, at = _read_container(data, at, cardinality + 1, is_runs=bool(runs[place]))
        parts.append(lower | np.uint64(upper << 16))
    return np.concatenate(parts), at


def _read_container(data: bytes, at: int, cardinality: int, *, is_runs: bool) -> tuple[Places, int]:
    if is_runs:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", 2 * count, at + 2).reshape(count, 2).astype(np.uint64)
        ranges = [np.arange(start, start + length + 1, dtype=np.uint64) for start, length in pairs.tolist()]
        return np.concatenate(ranges), at + 2 + 4 * count
    if cardinality <= _ARRAY_LIMIT:
        return np.frombuffer(data, "<u2", cardinality, at).astype(np.uint64), at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITMAP_BYTES, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.uint64), at + _BITMAP_BYTES
