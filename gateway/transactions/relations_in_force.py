"""The version that each relation's next change is written with, and the relations whose changes are
not written.

A relation in quarantine gets no records, and neither does one that source.excluded_tables names.
Their version in the relation cache is a Quarantined or ExcludedTable with their present name, so
that rollbacks and renames apply to them, too. The next change of a relation that was refused raises
the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gateway.errors import WalgateError
from gateway.events.manifest import Manifest
from gateway.relations.relation_cache import RelationCache
from gateway.transactions.record_writer import RelationVersion
from gateway.transactions.transaction import ExcludedTable, Quarantined


class ChangeObserver(Protocol):
    """Receive what changes while tables are under snapshot (gateway/snapshot/change_tracking.py).
    All xids are the 32-bit ones of the protocol."""

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        """Return the version to encode the relation's changes with. If the relation is under
        snapshot, `changes` of this version is set."""
        ...

    def message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        """Receive a message with one of OWN_PREFIXES. Return the object to be handed over when the
        transaction commits, or None."""
        ...

    def committed(self, xid: int) -> None:
        """Note the commit of an ordinary transaction."""
        ...

    def committed_whole(self, xid: int, manifest: Manifest) -> None:
        """Note the commit of a transaction that was streamed or prepared."""
        ...

    def prepared(self, xid: int) -> None: ...

    def aborted(self, xid: int) -> None: ...


class RelationsInForce:
    """The relations and their versions, by oid. `stream_xid` is the xid of the transaction in whose
    segment a change arrives; None outside streams.

    `active` keeps the results of `activate` until one of them may change; each row is looked up
    there first. It never contains a relation whose changes are left out.
    """

    def __init__(self, quarantined: Iterable[Quarantined]) -> None:
        self.active: dict[int, RelationVersion] = {}
        self.quarantined: dict[int, Quarantined] = {relation.relation_oid: relation for relation in quarantined}
        self.excluded_count: dict[int, int] = dict.fromkeys(self.quarantined, 0)
        """The number of changes of each relation in quarantine."""
        self.left_out_count = 0
        """The number of changes of excluded tables."""
        self.observer: ChangeObserver | None = None
        self._cache: RelationCache[RelationVersion | ExcludedTable | Quarantined] = RelationCache()
        self._refused: dict[int, WalgateError] = {}

    def set_observer(self, observer: ChangeObserver | None) -> None:
        self.observer = observer
        self.active.clear()

    def announce(
        self,
        relation_oid: int,
        version: RelationVersion | ExcludedTable | Quarantined,
        stream_xid: int | None = None,
        subxid: int | None = None,
    ) -> None:
        """Store the version of a Relation message; inside a stream, `subxid` is the message's
        xid."""
        self.active.clear()
        self._refused.pop(relation_oid, None)
        if stream_xid is None:
            self._cache.announce(relation_oid, version)
        else:
            assert subxid is not None
            self._cache.announce_in_stream(stream_xid, subxid, relation_oid, version)

    def refuse(self, relation_oid: int, error: WalgateError) -> None:
        """Let the relation's next change raise `error`, instead of announcing a Relation message.
        The message cannot be announced and is in a transaction that is left out, or it need not be
        announced."""
        self.active.clear()
        self._refused[relation_oid] = error

    def forget(self, relation_oid: int) -> None:
        """Forget a relation that was dropped, and of which no change can come any more."""
        self.active.pop(relation_oid, None)
        self._refused.pop(relation_oid, None)
        self._cache.forget(relation_oid)

    def finish_stream(self, xid: int) -> None:
        """Make what was announced in the stream valid for all transactions."""
        self._cache.finish_stream(xid)
        self.active.clear()

    def abort_stream(self, xid: int, subxid: int) -> None:
        self._cache.abort_stream(xid, subxid)

    def in_force(self, relation_oid: int, stream_xid: int | None) -> RelationVersion | None:
        version = self._cache.find(relation_oid, stream_xid)
        return version if isinstance(version, RelationVersion) else None

    def activate(self, relation_oid: int, stream_xid: int | None) -> RelationVersion | None:
        """Return the version of a relation that is not in `active`, and store it there; return None
        if the relation was never announced. Raises the error of a refused relation."""
        refused = self._refused.get(relation_oid)
        if refused is not None:
            raise refused
        version = self.in_force(relation_oid, stream_xid)
        if version is None:
            return None
        if self.observer is not None:
            version = self.observer.version(relation_oid, version)
        self.active[relation_oid] = version
        return version

    def count_left_out(self, relation_oid: int, stream_xid: int | None) -> Quarantined | ExcludedTable | None:
        """Count a change that is not written, and return the entry of its relation; return None for
        a change that is written."""
        version = self._cache.find(relation_oid, stream_xid)
        quarantined = self.quarantined.get(relation_oid)
        if quarantined is not None:
            self.excluded_count[relation_oid] += 1
            return version if isinstance(version, Quarantined) else quarantined
        if not isinstance(version, ExcludedTable):
            return None
        self.left_out_count += 1
        return version
