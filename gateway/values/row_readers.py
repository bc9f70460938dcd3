"""Readers of a whole row. They know where the parts of a column are, and read neighbouring columns
of one type in one call.

The reader of such a run reads the values that nearly all columns have, and leaves the others to the
type's own reader. In runs of 8 and 12 in plain Python, an integer takes 0.05 to 0.10 us instead of
0.10 to 0.15 us. A text value takes 0.13 us instead of 0.16 us. If there is a NULL among 10
integers, a run takes 0.15 us more than reading column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, groupby
from typing import Final

from gateway.build import is_compiled
from gateway.pgoutput.letters import KIND_BINARY, KIND_TEXT
from gateway.values.column_readers import Parts, Reader, read_bytes, read_bytes_side_by_side
from gateway.values.integers import read_int2, read_int4, read_int8, read_integers_side_by_side

_SHORTEST_RUN: Final = 4
"""The shortest run with a reader of its own: three columns take the same time either way."""


class RowReaders:
    """The readers of a row's columns. `columns` has a reader for each column, and `runs` has fewer
    readers that append the same parts. `nulls` has the parts that are appended for NULL in each
    column, as many as for any value."""

    def __init__(self, columns: Iterable[Reader], like: RowReaders | None = None) -> None:
        """Take `nulls` from `like`, RowReaders that append as many parts. This is needed if some of
        `columns` accept no NULL."""
        self.columns = tuple(columns)
        self.runs = tuple(_in_runs(self.columns))
        self.nulls: tuple[tuple[bytes, ...], ...] = (
            like.nulls if like is not None else tuple(parts_of_null(read) for read in self.columns)
        )
        self._places = tuple(accumulate(map(len, self.nulls), initial=0))

    def parts_of(self, columns: Iterable[int]) -> tuple[int, ...]:
        """Return the indexes of the parts of the columns with these indexes."""
        return tuple(part for column in columns for part in range(self._places[column], self._places[column + 1]))


def parts_of_null(read: Reader) -> tuple[bytes, ...]:
    """Return the parts that the reader appends for NULL."""
    parts: Parts = []
    read(b"n", 0, parts)
    return tuple(parts)


def _in_runs(readers: Iterable[Reader]) -> Iterable[Reader]:
    for reader, neighbours in groupby(readers):
        count = len(list(neighbours))
        run_of = _RUNS.get(reader)
        yield from [reader] * count if run_of is None or count < _SHORTEST_RUN else [run_of(count)]


_RUNS: dict[Reader, Callable[[int], Reader]] = {
    read_bytes(kind, is_text): partial(read_bytes_side_by_side, kind, is_text)
    for kind in (KIND_TEXT, KIND_BINARY)
    for is_text in (True, False)
}
# When compiled, calls cost less than the struct's tuple.
if not is_compiled():  # pragma: no branch - no coverage is measured when compiled
    _RUNS |= {
        read_int2: partial(read_integers_side_by_side, read_int2, "h"),
        read_int4: partial(read_integers_side_by_side, read_int4, "i"),
        read_int8: partial(read_integers_side_by_side, read_int8, "q"),
    }
