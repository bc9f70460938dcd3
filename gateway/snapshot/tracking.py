"""What the stream changes while tables are under snapshot, told to the judge: who changed which key, and which were left out.

The state machine knows a `Watch`, and the relations of it an outlet that stands in the way of their own: both are there while a
snapshot is under way and not otherwise, so that the stream costs nothing more where none is. A row costs one look at its key.

    ordinary transaction       its keys are noted as they come: nothing of it commits anywhere else before its COMMIT
    streamed, prepared         the relations that it changes are noted, and keys of rule T; its xid counts where it commits
    TRUNCATE                   its xid counts for all keys
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.events.manifest import Manifest
from gateway.events.row_encoder import RowEncoder
from gateway.operate.errors import StopForOperator
from gateway.snapshot import judge as judging
from gateway.snapshot.judge import Judge
from gateway.snapshot.table import MAX_AGAIN, Status, Table
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import Outlet, RelationVersion
from gateway.varint import encode_long
from schemas.framing import FRAME_BYTES
from schemas.relation import OPERATIONS

_DELETE: Final = encode_long(OPERATIONS.index("DELETE"))[0]


@dataclass(slots=True)
class Tracked:
    """A relation whose changes are noted. `schema_ids`: all that its changes were ever encoded with, as far as is known."""

    table: Table
    schema_ids: set[int] = field(default_factory=set)


Note = tuple[bytes, bytes]
"""New and old key of an UPDATE that left columns out."""


class Tracking:
    """Satisfies `gateway.transactions.transaction.Watch`. `on_message(prefix, content, xid, in_stream)` gives what is to be
    handed over."""

    def __init__(
        self,
        machine: TransactionMachine,
        judge: Judge,
        on_message: Callable[[str, bytes, int, bool], object | None],
    ) -> None:
        self.judge = judge
        self.relations: dict[int, Tracked] = {}
        self.machine = machine
        self._on_message = on_message
        self._notes: dict[int, dict[int, list[Note]]] = {}
        """Of transactions that have not ended: xid -> relation oid -> notes. A relation without notes was changed too."""

    def begin(self, relation_oid: int, table: Table, schema_ids: Iterable[int]) -> None:
        """The changes of the relation are noted from here on; the table has its `track`."""
        in_force = self.machine.in_force(relation_oid)
        known = {*schema_ids} if in_force is None else {*schema_ids, in_force.schema_id}
        self.relations[relation_oid] = Tracked(table, known)
        self.machine.set_watch(self)

    def end(self, relation_oid: int) -> None:
        self.relations.pop(relation_oid, None)
        self.machine.set_watch(self)

    # -- the machine's side -----------------------------------------------------------------------------------------------

    @property
    def is_tracking(self) -> bool:
        return bool(self.relations)

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        tracked = self.relations.get(relation_oid)
        if tracked is None:
            return version
        tracked.schema_ids.add(version.schema_id)
        outlet = TrackedOutlet(self, relation_oid, tracked.table, version.encoder, version.outlet)
        return RelationVersion(version.name, version.schema_id, version.encoder, outlet)

    def message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        return self._on_message(prefix, content, xid, in_stream)

    def committed(self, xid: int) -> None:
        self.judge.committed(xid)

    def committed_whole(self, xid: int, manifest: Manifest) -> None:
        self.judge.committed(xid)
        notes = self._notes.pop(xid, {})
        for relation_oid, tracked in list(self.relations.items()):
            if relation_oid in notes or self._may_have_changed(tracked, xid, manifest):
                tracked.table.committed_whole(xid, notes.get(relation_oid, ()))

    def prepared(self, xid: int) -> None:
        for relation_oid, found in self._notes.pop(xid, {}).items():
            tracked = self.relations.get(relation_oid)
            if tracked is not None:
                tracked.table.prepared(xid, found)

    def aborted(self, xid: int) -> None:
        self._notes.pop(xid, None)
        for tracked in self.relations.values():
            tracked.table.rolled_back(xid)

    def _may_have_changed(self, tracked: Tracked, xid: int, manifest: Manifest) -> bool:
        """One of an earlier epoch had other schema ids, perhaps."""
        if manifest.epoch != self.machine.epoch:
            return not manifest.is_empty
        return not tracked.schema_ids.isdisjoint(manifest.schema_ids)

    # -- the outlets' side ------------------------------------------------------------------------------------------------

    def notes_of(self, xid: int, relation_oid: int) -> list[Note]:
        return self._notes.setdefault(xid, {}).setdefault(relation_oid, [])


class Listening:
    """Satisfies `Watch` while nothing is under snapshot: commands are heard."""

    def __init__(self, on_message: Callable[[str, bytes, int, bool], object | None]) -> None:
        self._on_message = on_message

    @property
    def is_tracking(self) -> bool:
        return False

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        return version

    def message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        return self._on_message(prefix, content, xid, in_stream)

    def committed(self, xid: int) -> None:
        pass

    def committed_whole(self, xid: int, manifest: Manifest) -> None:
        pass

    def prepared(self, xid: int) -> None:
        pass

    def aborted(self, xid: int) -> None:
        pass


class TrackedOutlet:
    """Satisfies `gateway.transactions.transaction.Outlet`."""

    def __init__(
        self, tracking: Tracking, relation_oid: int, table: Table, encoder: RowEncoder, outlet: Outlet
    ) -> None:
        self._tracking = tracking
        self._relation_oid = relation_oid
        self._table = table
        self._encoder = encoder
        self._outlet = outlet
        self._append = outlet.append
        self._left_out = encoder.left_out_count
        self._manifest: Manifest | None = None
        self._xid = self._wire_xid = 0
        self._notes: list[Note] | None = None
        self._keys: dict[bytes, int] | None = None
        """Where the keys of the current transaction are noted, while they are."""
        self._keys_end = 0
        self._old_key = b""

    def append(self, key: bytes | None, value: bytes, manifest: Manifest | None) -> None:
        self._append(key, value, manifest)
        if manifest is not self._manifest:
            self._enter(manifest)
        if key is None:
            return
        keys = self._keys
        if keys is not None:
            keys[key[FRAME_BYTES:]] = self._xid
            if len(keys) > self._keys_end:
                self._note_whole()
        if self._encoder.left_out_count != self._left_out:
            self._note(key[FRAME_BYTES:], value)

    def append_everywhere(self, value: bytes, manifest: Manifest | None) -> None:
        self._outlet.append_everywhere(value, manifest)
        if manifest is not self._manifest:
            self._enter(manifest)
        if self._notes is None:
            self._note_whole()

    def too_large(self, what: str, size: int) -> StopForOperator:
        return self._outlet.too_large(what, size)

    def _enter(self, manifest: Manifest | None) -> None:
        """The first change of another transaction, or of one that changes other tables in between."""
        self._manifest = manifest
        tracking = self._tracking
        transaction = tracking.machine.current
        assert transaction is not None
        xid, is_ordinary = transaction.xid, transaction.commit_lsn is not None
        self._wire_xid = xid
        self._xid = tracking.judge.widen(xid)
        self._notes = None if is_ordinary else tracking.notes_of(xid, self._relation_oid)
        self._keys = None
        track = self._table.track
        if not is_ordinary or track is None:
            return
        if self._table.is_read_at_once:
            track.whole.add(self._xid)
            return
        if len(track.keys) > judging.MAX_KEYS:
            tracking.judge.relieve(track)
        self._keys = track.keys
        self._keys_end = len(track.keys) + judging.MAX_KEYS_OF_ONE

    def _note_whole(self) -> None:
        """Of a transaction that is too large, or changes every key, the id alone."""
        self._keys = None
        if self._table.track is not None:
            self._table.track.whole.add(self._xid)

    def _note(self, key: bytes, value: bytes) -> None:
        """An UPDATE left columns out. One that changes the key comes in two records, the DELETE first."""
        if value[FRAME_BYTES] == _DELETE:
            self._old_key = key
            return
        self._left_out = self._encoder.left_out_count
        old_key, self._old_key = self._old_key or key, b""
        if self._notes is None:
            self._table.note_unchanged(key, old_key)
            if self._table.status is Status.WAITING:  # too many: it begins again, and nothing is noted until then
                self._manifest = None
        elif len(self._notes) < MAX_AGAIN:
            self._notes.append((key, old_key))
        elif self._table.track is not None:
            self._table.track.suspects.add(self._wire_xid)
