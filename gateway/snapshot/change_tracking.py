"""Pass the changes of tables under snapshot to the judge: which transaction changed which key, and
which UPDATEs left columns out.

While changes are recorded (change_recorder), the observer of the state machine is a
`RecordingObserver`. Each version of a relation under snapshot gets a `RelationRecorder` when it is
put in force. Otherwise the observer is a `MessageObserver`, which only receives Walgate's own
logical messages, so that rows cause no additional work.

    ordinary transaction    its keys are collected as they arrive and recorded at its COMMIT: no
                            other transaction ends in between
    streamed, prepared      the relations that it changes are recorded, and the keys for rule T
                            (rules/stale_rows.py), which count once it is prepared or committed;
                            its xid counts from its commit on
    TRUNCATE                its xid counts for all keys
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.events.manifest import Manifest
from gateway.events.row_encoder import RowEncoder
from gateway.snapshot.rules import stale_rows as judging
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import MAX_KEYS_TO_READ_AGAIN, TableProgress
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.record_writer import RelationVersion
from gateway.transactions.transaction import Transaction
from schemas.wire_format import FRAME_BYTES

_NOWHERE: Final[deque[bytes | None]] = deque(maxlen=0)
"""A deque that discards every item that is appended."""


@dataclass(slots=True)
class TrackedTable:
    """A relation whose changes are recorded. `schema_ids`: all schema ids that its changes were
    encoded with."""

    progress: TableProgress
    schema_ids: set[int] = field(default_factory=set)


NewAndOldKey = tuple[bytes, bytes]
"""New and old key of an UPDATE that left columns out."""


class RecordingObserver:
    """Implement `gateway.transactions.relations_in_force.ChangeObserver` while tables are under
    snapshot.

    `on_message(prefix, content, xid, in_stream)` returns the object to be published or carried out
    at the commit of the message's transaction, or None.
    """

    def __init__(
        self,
        machine: TransactionMachine,
        judge: StalenessJudge,
        on_message: Callable[[str, bytes, int, bool], object | None],
    ) -> None:
        self.judge = judge
        self.entered: list[RelationRecorder] = []
        """The relations that the current ordinary transaction has changed."""
        self.relations: dict[int, TrackedTable] = {}
        self.machine = machine
        self._on_message = on_message
        self._left_out: dict[int, dict[int, list[NewAndOldKey]]] = {}
        """Keys of UPDATEs that left columns out, of transactions that have not ended: xid ->
        relation oid -> keys. A relation with an empty list was also changed."""

    def begin(self, relation_oid: int, progress: TableProgress, schema_ids: Iterable[int]) -> None:
        """Record the changes to the relation from now on. `progress` must have begun, so that its
        `track` is set."""
        in_force = self.machine.in_force(relation_oid)
        all_ids = {*schema_ids} if in_force is None else {*schema_ids, in_force.schema_id}
        self.relations[relation_oid] = TrackedTable(progress, all_ids)
        self.machine.set_observer(self)

    def end(self, relation_oid: int) -> None:
        self.relations.pop(relation_oid, None)
        self.machine.set_observer(self)

    # -- the machine's side

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        tracked = self.relations.get(relation_oid)
        if tracked is None:
            return version
        tracked.schema_ids.add(version.schema_id)
        return version.tracked(RelationRecorder(self, relation_oid, tracked.progress, version.encoder.left_out_count))

    def message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        return self._on_message(prefix, content, xid, in_stream)

    def committed(self, xid: int) -> None:
        wide_xid = self.judge.committed(xid)
        for changes in self.entered:
            changes.committed(wide_xid)
        self.entered.clear()

    def committed_whole(self, xid: int, manifest: Manifest) -> None:
        self.judge.committed(xid)
        left_out = self._left_out.pop(xid, {})
        for relation_oid, tracked in list(self.relations.items()):
            if relation_oid in left_out or self._may_have_changed(tracked, xid, manifest):
                tracked.progress.committed_without_keys(xid, left_out.get(relation_oid, ()))

    def prepared(self, xid: int) -> None:
        for relation_oid, keys in self._left_out.pop(xid, {}).items():
            tracked = self.relations.get(relation_oid)
            if tracked is not None:
                tracked.progress.prepared(xid, keys)

    def aborted(self, xid: int) -> None:
        self._left_out.pop(xid, None)
        for tracked in self.relations.values():
            tracked.progress.rolled_back(xid)

    def _may_have_changed(self, tracked: TrackedTable, xid: int, manifest: Manifest) -> bool:
        """Return whether the transaction may have changed the relation. A transaction of an earlier
        epoch may have used other schema ids, so it may have changed every relation unless it has no
        events."""
        if manifest.epoch != self.machine.epoch:
            return not manifest.is_empty
        return not tracked.schema_ids.isdisjoint(manifest.schema_ids)

    # -- the changes' side

    def left_out_of(self, xid: int, relation_oid: int) -> list[NewAndOldKey]:
        return self._left_out.setdefault(xid, {}).setdefault(relation_oid, [])


class MessageObserver:
    """Implement `ChangeObserver` while no changes are recorded: it only receives messages."""

    def __init__(self, on_message: Callable[[str, bytes, int, bool], object | None]) -> None:
        self._on_message = on_message

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


class RelationRecorder:
    """Implement `gateway.transactions.transaction.RelationChangeTracker` for one relation."""

    def __init__(
        self, observer: RecordingObserver, relation_oid: int, progress: TableProgress, left_out_count: int
    ) -> None:
        self._observer = observer
        self._relation_oid = relation_oid
        self._progress = progress
        self._most_keys, self._most_of_one = judging.MAX_KEYS, judging.MAX_KEYS_OF_ONE
        # One more than the limit: a full deque shows that there were too many keys.
        self._keys: deque[bytes | None] = deque(maxlen=self._most_of_one + 1)
        self.hold_key: Callable[[bytes | None], None] = self._keys.append
        self.left_out_count = left_out_count
        self._wire_xid = 0
        self._left_out: list[NewAndOldKey] | None = None
        """Keys for rule T of the streamed or prepared transaction that was entered last; None for
        an ordinary one."""
        self._changed_all = False

    def enter(self, transaction: Transaction) -> None:
        if transaction.commit_lsn is not None:
            if self._left_out is not None:
                self._left_out = None
                self.hold_key = self._keys.append
            self._observer.entered.append(self)
        else:
            self._wire_xid = transaction.xid
            self._left_out = self._observer.left_out_of(transaction.xid, self._relation_oid)
            self.hold_key = _NOWHERE.append

    def left_out(self, encoder: RowEncoder, key: bytes | None, old_key: bytes | None) -> None:
        self.left_out_count = encoder.left_out_count
        if key is None or old_key is None:
            return
        keys = key[FRAME_BYTES:], old_key[FRAME_BYTES:]
        if self._left_out is None:
            self._progress.record_unchanged_toast(*keys)
        elif len(self._left_out) < MAX_KEYS_TO_READ_AGAIN:
            self._left_out.append(keys)
        elif self._progress.track is not None:
            self._progress.track.suspects.add(self._wire_xid)

    def truncated(self) -> None:
        self._changed_all = self._left_out is None

    def committed(self, xid: int) -> None:
        """Record the keys of the ordinary transaction that was entered. `xid` is its 64-bit id."""
        keys, progress = self._keys, self._progress
        track = progress.track
        if track is None:
            pass
        elif self._changed_all or progress.is_read_at_once or len(keys) > self._most_of_one:
            track.xids_without_keys.add(xid)
        else:
            if len(track.keys) > self._most_keys:
                self._observer.judge.reduce_keys(track)
            recorded = track.keys
            for key in keys:
                if key is not None:
                    recorded[key[FRAME_BYTES:]] = xid
        keys.clear()
        self._changed_all = False
