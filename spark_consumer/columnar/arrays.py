"""Build Arrow arrays from the buffers of numpy arrays and from bytes.

`pa.array` and `pa.scalar` are not used, because they import pandas when they are first called. This
would take over a second of CPU time and 40 MB in every Python worker and planner that Spark starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[Any], arrow_type: pa.DataType | None = None) -> pa.Array:
    """Return an array of numbers. `arrow_type`: a type of the same width that numpy does not have;
    None stands for numpy's own type."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(arrow_type or pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def booleans(values: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def nullable(values: pa.Array, missing: npt.NDArray[np.bool_]) -> pa.Array:
    """Return fixed-width `values`, which have no nulls, with null where `missing` is true."""
    return pa.Array.from_buffers(values.type, len(values), [_bits(~missing), *values.buffers()[1:]])


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def binaries(values: Sequence[bytes], arrow_type: pa.DataType | None = None) -> pa.Array:
    """Return an array of `arrow_type`: pa.binary() by default, or pa.string() if the values are
    UTF-8."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    if int(offsets[-1]) > 0x7FFFFFFF:
        raise ValueError("more than 2 GiB of values in one array")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(arrow_type or pa.binary(), len(values), buffers)


def strings(values: Sequence[str]) -> pa.Array:
    return binaries([value.encode() for value in values], pa.string())


def repeated(text: str | None, count: int) -> pa.Array:
    """Return an array that contains the string `count` times, or `count` nulls if the string is
    None."""
    return pa.nulls(count, pa.string()) if text is None else strings([text]).take(numbers(np.zeros(count, np.int32)))
