"""Keep the catalog entries and files that the published rows of relations depend on, and the
records of them that are not stored yet."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.snapshot.rules.published_content import PublishedContent
from gateway.snapshot.stored_state import content_key, encode_content


class StoredContents:
    """The catalog entries and files that the rows of each relation depend on (see
    rules/published_content.py), by oid."""

    def __init__(self, stored: Mapping[int, PublishedContent]) -> None:
        self._by_oid = dict(stored)
        self._horizons: dict[int, int] = {}
        """Horizon of the last check at which a relation was still as in `by_oid`, if that check was
        later than the one that `by_oid` has."""
        self._unwritten: set[int] = set()

    @property
    def by_oid(self) -> Mapping[int, PublishedContent]:
        return self._by_oid

    def horizon(self, oid: int, content: PublishedContent) -> int:
        """Return the horizon of the last check at which the relation was as in `content`, which is
        its content in `by_oid`, or was until now."""
        return self._horizons.get(oid, content.horizon)

    def is_now(self, oid: int, content: PublishedContent) -> None:
        """Store `content` as what the published rows of the relation depend on now."""
        self._by_oid[oid] = content
        self._horizons.pop(oid, None)
        self._unwritten.add(oid)

    def is_unchanged(self, oid: int, horizon: int) -> None:
        """Report that the relation was still as in `by_oid` at this horizon, which is not
        stored."""
        self._horizons[oid] = horizon

    def forget(self, oid: int) -> None:
        """Forget a relation: the next check compares it with nothing. Its record is removed."""
        if self._by_oid.pop(oid, None) is not None:
            self._unwritten.add(oid)
        self._horizons.pop(oid, None)

    @property
    def has_unwritten(self) -> bool:
        return bool(self._unwritten)

    def take_states(self, frame: bytes, position_key: bytes) -> dict[bytes, bytes | None]:
        """Return the records of the contents that are not written yet, and None for those to be
        removed."""
        states: dict[bytes, bytes | None] = {}
        for oid in self._unwritten:
            content = self._by_oid.get(oid)
            states[content_key(position_key, oid)] = None if content is None else encode_content(frame, oid, content)
        self._unwritten.clear()
        return states
