"""hypothesis strategies: any legal message of each of the 19 kinds."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from gateway.pgoutput.cursor import PG_EPOCH
from gateway.pgoutput.decode import PgOutputMessage
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Column, Relation, Type
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit, Origin
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text, TupleData
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from schemas.lsn import Lsn
from schemas.relation import ReplicaIdentity
from tests.pgoutput.writer import INFINITIES

LAST = (1 << 32) - 1
LSN = st.integers(0, (1 << 64) - 1).map(Lsn)
SET_LSN = st.integers(1, (1 << 64) - 1).map(Lsn)
# The whole range that fits a signed 64-bit count from 1970, and the two infinities.
TIME = st.integers(-211_813_488_000_000_000 + PG_EPOCH, (1 << 63) - 2) | st.sampled_from(INFINITIES)
XID = st.integers(0, LAST)
STREAM_XID = st.integers(1, LAST)
OID = st.integers(0, LAST)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NAMESPACE = st.just("pg_catalog") | NAME.filter(bool)
NO_FLAGS = st.just(0)
CONTENT = st.binary(max_size=30)
TUPLE_DATA: st.SearchStrategy[TupleData] = st.lists(
    st.none() | st.just(UNCHANGED) | st.builds(Text, CONTENT) | st.builds(Binary, CONTENT), max_size=5
).map(tuple)
COLUMNS = st.lists(st.builds(Column, st.booleans(), NAME, OID, INT32), max_size=5).map(tuple)


def _rows_with_identity(message: Callable[..., PgOutputMessage], *rest: st.SearchStrategy[TupleData]) -> Fields:
    """A key tuple, or an old tuple, never both."""
    key = (TUPLE_DATA, st.none())
    old = (st.none(), TUPLE_DATA)
    return lambda xid: st.builds(message, xid, OID, *key, *rest) | st.builds(message, xid, OID, *old, *rest)


Fields = Callable[[st.SearchStrategy[int | None]], st.SearchStrategy[PgOutputMessage]]

# Those that have an xid field inside a stream segment: made from the strategy for that field.
WITH_STREAM_XID: dict[type, Fields] = {
    Message: lambda xid: st.builds(Message, xid, st.booleans(), LSN, NAME, CONTENT),
    Relation: lambda xid: st.builds(Relation, xid, OID, NAMESPACE, NAME, st.sampled_from(ReplicaIdentity), COLUMNS),
    Type: lambda xid: st.builds(Type, xid, OID, NAMESPACE, NAME),
    Insert: lambda xid: st.builds(Insert, xid, OID, TUPLE_DATA),
    Update: lambda xid: (
        st.builds(Update, xid, OID, st.none(), st.none(), TUPLE_DATA) | _rows_with_identity(Update, TUPLE_DATA)(xid)
    ),
    Delete: _rows_with_identity(Delete),
    Truncate: lambda xid: st.builds(
        Truncate, xid, st.lists(OID, min_size=1, max_size=9).map(tuple), st.booleans(), st.booleans()
    ),
}
FIXED: dict[type, st.SearchStrategy[PgOutputMessage]] = {
    Begin: st.builds(Begin, SET_LSN, TIME, XID),
    Commit: st.builds(Commit, NO_FLAGS, LSN, LSN, TIME),
    Origin: st.builds(Origin, LSN, NAME),
    StreamStart: st.builds(StreamStart, STREAM_XID, st.booleans()),
    StreamStop: st.builds(StreamStop),
    StreamCommit: st.builds(StreamCommit, STREAM_XID, NO_FLAGS, LSN, LSN, TIME),
    StreamAbort: st.builds(StreamAbort, STREAM_XID, XID, LSN, TIME)
    | st.builds(StreamAbort, STREAM_XID, XID, st.none(), st.none()),
    BeginPrepare: st.builds(BeginPrepare, SET_LSN, SET_LSN, TIME, XID, NAME),
    Prepare: st.builds(Prepare, NO_FLAGS, SET_LSN, SET_LSN, TIME, XID, NAME),
    CommitPrepared: st.builds(CommitPrepared, NO_FLAGS, SET_LSN, SET_LSN, TIME, XID, NAME),
    RollbackPrepared: st.builds(RollbackPrepared, NO_FLAGS, SET_LSN, SET_LSN, TIME, TIME, XID, NAME),
    StreamPrepare: st.builds(StreamPrepare, NO_FLAGS, SET_LSN, SET_LSN, TIME, XID, NAME),
}
KINDS: tuple[type, ...] = (*FIXED, *WITH_STREAM_XID)


def messages_of(kind: type, in_stream: bool) -> st.SearchStrategy[PgOutputMessage]:
    """Legal messages of one dataclass, with the xid field or without."""
    if kind in FIXED:
        return FIXED[kind]
    return WITH_STREAM_XID[kind](STREAM_XID if in_stream else st.none())


def messages(in_stream: bool) -> st.SearchStrategy[PgOutputMessage]:
    return st.one_of([messages_of(kind, in_stream) for kind in KINDS])
