"""The version of a relation that the next change is encoded with.

PostgreSQL sends a Relation message before the first change of a relation and again after each
invalidation. Three properties of `pgoutput.c` shape this cache:

* Within an in-progress stream the schema is tracked per top-level transaction: an announcement
  inside a stream applies to its transaction alone, and other transactions get announcements of
  their own. So each open stream has an overlay over the base.
* `pgoutput_stream_commit` marks the schema as sent for all transactions. The overlay then becomes
  the base, except for relations of which the base has received a newer announcement meanwhile. (A
  rolled back savepoint releases its locks, so another transaction may have altered the table
  between the announcement and the commit.) The order is known because announcements are numbered.
* After any stream abort the schema is announced again. Announcements of the rolled back
  (sub)transaction are discarded, so that the cache is again as it was before them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True)
class _Announcement(Generic[V]):
    number: int
    subxid: int
    version: V


@dataclass(slots=True)
class RelationCache(Generic[V]):
    """The announced versions of relations, by relation oid and xid. `V` is the caller's type of a
    version; this class only stores it."""

    _base: dict[int, _Announcement[V]] = field(default_factory=dict)
    _overlays: dict[int, dict[int, list[_Announcement[V]]]] = field(default_factory=dict)
    _count: int = 0

    def announce(self, relation_oid: int, version: V) -> None:
        """Store the version of a Relation message outside any stream."""
        self._count += 1
        self._base[relation_oid] = _Announcement(self._count, 0, version)

    def announce_in_stream(self, xid: int, subxid: int, relation_oid: int, version: V) -> None:
        """Store the version of a Relation message inside the stream of `xid`; `subxid` is the xid
        field of the message itself."""
        self._count += 1
        stack = self._overlays.setdefault(xid, {}).setdefault(relation_oid, [])
        if stack and stack[-1].subxid == subxid:  # announced again, as everything is after each abort
            stack.pop()
        stack.append(_Announcement(self._count, subxid, version))

    def forget(self, relation_oid: int) -> None:
        """Forget the version of a relation that was dropped: a change of another relation with its
        oid follows an announcement."""
        self._base.pop(relation_oid, None)

    def find(self, relation_oid: int, stream_xid: int | None) -> V | None:
        """Return the version for the next change of a relation: the stream's, or else the base's,
        or None if no version was announced."""
        if stream_xid is not None and (overlay := self._overlays.get(stream_xid)):
            stack = overlay.get(relation_oid)
            if stack:
                return stack[-1].version
        entry = self._base.get(relation_oid)
        return None if entry is None else entry.version

    def finish_stream(self, xid: int) -> None:
        """Make the announcements of a stream that was committed or prepared apply to all
        transactions."""
        for relation_oid, stack in self._overlays.pop(xid, {}).items():
            base = self._base.get(relation_oid)
            if stack and (base is None or base.number < stack[-1].number):
                self._base[relation_oid] = stack[-1]

    def abort_stream(self, xid: int, subxid: int) -> None:
        """Discard the announcements of `subxid`, which was rolled back; if it equals `xid`, discard
        the whole stream."""
        if subxid == xid:
            self._overlays.pop(xid, None)
            return
        for stack in self._overlays.get(xid, {}).values():
            stack[:] = [entry for entry in stack if entry.subxid != subxid]

    def __len__(self) -> int:
        return len(self._base) + sum(len(overlay) for overlay in self._overlays.values())
