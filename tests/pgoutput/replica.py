"""The plainest subscriber: applies decoded messages to tables in memory, whole transactions at a
time."""

from __future__ import annotations

from collections import defaultdict

from gateway.pgoutput.decode import PgOutputMessage
from gateway.pgoutput.relation import Relation
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit
from gateway.pgoutput.tuple_data import UNCHANGED, TupleData, TupleValue
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare

# With the relations as they were when the change came.
Change = tuple[Insert | Update | Delete | Truncate, list[Relation]]
Key = tuple[TupleValue, ...]


class Replica:
    """`tables`: relation name -> key -> row. Rows of rolled back subtransactions are dropped by
    their subxid."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Key, TupleData]] = defaultdict(dict)
        self._relations: dict[int, Relation] = {}
        self._current: list[Change] = []
        self._streams: dict[int, list[Change]] = {}
        self._prepared: dict[tuple[str, int], list[Change]] = {}

    def apply(self, message: PgOutputMessage) -> None:
        match message:
            case Relation():
                self._relations[message.relation_oid] = message
            case Begin() | BeginPrepare():
                self._current = []
            case StreamStart():
                self._current = self._streams.setdefault(message.xid, [])
            case StreamStop():
                self._current = []
            case Commit():
                self._commit(self._current)
            case StreamCommit():
                self._commit(self._streams.pop(message.xid))
            case StreamAbort():
                self._abort(message)
            case Prepare():
                self._prepared[message.gid, message.xid] = self._current
            case StreamPrepare():
                self._prepared[message.gid, message.xid] = self._streams.pop(message.xid)
            case CommitPrepared():
                self._commit(self._prepared.pop((message.gid, message.xid)))
            case RollbackPrepared():
                del self._prepared[message.gid, message.xid]
            case Truncate():
                self._current.append((message, [self._relations[oid] for oid in message.relation_oids]))
            case Insert() | Update() | Delete():
                self._current.append((message, [self._relations[message.relation_oid]]))
            case _:
                pass

    def _abort(self, message: StreamAbort) -> None:
        if message.xid == message.subxid:
            del self._streams[message.xid]
        else:
            # PostgreSQL 18 may abort a subtransaction of what it never streamed: tests/golden,
            # stream_abort_alone.
            changes = self._streams.get(message.xid, [])
            changes[:] = [change for change in changes if change[0].xid != message.subxid]

    def _commit(self, changes: list[Change]) -> None:
        for change, relations in changes:
            for relation in relations:
                if isinstance(change, Truncate):
                    self.tables[relation.name].clear()
                else:
                    self._change(change, relation)

    def _change(self, change: Insert | Update | Delete, relation: Relation) -> None:
        table = self.tables[relation.name]
        if isinstance(change, Insert):
            self._put(table, relation, change.new)
            return
        identity = change.key or change.old
        if isinstance(change, Delete):
            assert identity is not None
            del table[_key(relation, identity)]
            return
        before = table.pop(_key(relation, change.new if identity is None else identity))
        new = [old if value is UNCHANGED else value for value, old in zip(change.new, before, strict=True)]
        self._put(table, relation, tuple(new))

    def _put(self, table: dict[Key, TupleData], relation: Relation, row: TupleData) -> None:
        key = _key(relation, row)
        assert key not in table, "a second row with this key"
        table[key] = row


def _key(relation: Relation, values: TupleData) -> Key:
    return tuple([value for column, value in zip(relation.columns, values, strict=True) if column.key])
