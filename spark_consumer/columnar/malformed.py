"""Find the malformed record among many. Columns are decoded for all records at once, so a search is
needed to find it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_consumer.errors import MalformedRecord


def first_malformed(
    decode: Callable[[pa.Array], object], values: pa.Array, problem: MalformedRecord
) -> MalformedRecord:
    """Return the error of the first record that cannot be decoded by itself, with the record's
    index in `record`. If there is no such record, return `problem`, the error of decoding all
    `values`."""
    first, end = 0, len(values)
    while end - first > 1:
        middle = (first + end) // 2
        if _problem(decode, values[first:middle]) is not None:
            end = middle
        else:
            first = middle
    return _problem(decode, values[first:end], first) or problem


def _problem(
    decode: Callable[[pa.Array], object], values: pa.Array, record: int | None = None
) -> MalformedRecord | None:
    try:
        decode(values)
    except MalformedRecord as problem:
        problem.record = record
        return problem
    return None
