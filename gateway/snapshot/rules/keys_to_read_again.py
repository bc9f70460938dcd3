"""Keys that must be read again, in segments that are stored separately.

The list is durable: keys that are added with the rows of a Kafka transaction are written in that
transaction. It is therefore kept in segments of limited size, and only segments that have changed
are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

SEGMENT_KEYS = 500


class KeysToReadAgain:
    """A set of keys in the order of their arrival. Segments are dirty if they have changed since
    `pop_dirty`."""

    def __init__(self, segments: Mapping[int, Iterable[bytes]] | None = None) -> None:
        self._segments: dict[int, dict[bytes, None]] = {
            number: dict.fromkeys(keys) for number, keys in sorted((segments or {}).items())
        }
        self._segment_of = {key: number for number, keys in self._segments.items() for key in keys}
        self._next = max(self._segments, default=-1) + 1
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._segment_of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._segment_of

    def __iter__(self) -> Iterator[bytes]:
        for keys in self._segments.values():
            yield from keys

    def add(self, key: bytes) -> None:
        if key in self._segment_of:
            return
        number = self._next - 1
        newest = self._segments.get(number)
        if newest is None or len(newest) >= SEGMENT_KEYS:
            number, self._next = self._next, self._next + 1
            newest = self._segments[number] = {}
        newest[key] = None
        self._segment_of[key] = number
        self._dirty.add(number)

    def discard(self, key: bytes) -> None:
        number = self._segment_of.pop(key, None)
        if number is not None:
            del self._segments[number][key]
            self._dirty.add(number)

    def clear(self) -> None:
        self._dirty.update(self._segments)
        self._segments.clear()
        self._segment_of.clear()

    def first(self, count: int, wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Return the `count` oldest keys that are wanted, or as many as there are."""
        found: list[bytes] = []
        for key in self:
            if len(found) >= count:
                break
            if wanted(key):
                found.append(key)
        return found

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def pop_dirty(self) -> dict[int, list[bytes]]:
        """Return the segments to be stored, with all their keys; a segment without keys is to be
        removed."""
        changed = {number: list(self._segments.get(number, ())) for number in sorted(self._dirty)}
        for number, keys in changed.items():
            if not keys:
                self._segments.pop(number, None)
        self._dirty.clear()
        return changed
