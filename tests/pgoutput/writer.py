"""How each message is written: the reverse of gateway/pgoutput, in the words of PostgreSQL's
proto.c.

It writes what it is told, also what the decoder must refuse. A message has an xid field when its
`xid` is not None.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from gateway.pgoutput.cursor import PG_EPOCH
from gateway.pgoutput.decode import PgOutputMessage
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Relation, Type
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit, Origin
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text, TupleData
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare

INFINITIES = (-(1 << 63), (1 << 63) - 1)


def write(message: PgOutputMessage) -> bytes:
    return _WRITERS[type(message)](message)


# -- field types
# -----------------------------------------------------------------------------------------------------


def write_int16(number: int) -> bytes:
    return struct.pack("!h", number)


def write_int32(number: int) -> bytes:
    return struct.pack("!i", number)


def write_uint32(number: int) -> bytes:
    return struct.pack("!I", number)


def write_lsn(lsn: int) -> bytes:
    return struct.pack("!Q", lsn)


def write_time(time: int) -> bytes:
    return struct.pack("!q", time if time in INFINITIES else time - PG_EPOCH)


def write_string(text: str) -> bytes:
    return text.encode() + b"\0"


def write_namespace(namespace: str) -> bytes:
    return write_string("" if namespace == "pg_catalog" else namespace)


def write_bytes(content: bytes) -> bytes:
    return write_int32(len(content)) + content


def write_xid(xid: int | None) -> bytes:
    return b"" if xid is None else write_uint32(xid)


def write_tuple_data(values: TupleData) -> bytes:
    parts = [write_int16(len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        elif isinstance(value, Text):
            parts.append(b"t" + write_bytes(value.value))
        else:
            assert isinstance(value, Binary)
            parts.append(b"b" + write_bytes(value.value))
    return b"".join(parts)


# -- transaction.py
# --------------------------------------------------------------------------------------------------


def write_begin(message: Begin) -> bytes:
    return b"B" + write_lsn(message.commit_lsn) + write_time(message.commit_time) + write_uint32(message.xid)


def write_commit(message: Commit) -> bytes:
    lsns = write_lsn(message.commit_lsn) + write_lsn(message.end_lsn)
    return b"C" + bytes([message.flags]) + lsns + write_time(message.commit_time)


def write_origin(message: Origin) -> bytes:
    return b"O" + write_lsn(message.origin_lsn) + write_string(message.name)


# -- logical_message.py
# ----------------------------------------------------------------------------------------------


def write_message(message: Message) -> bytes:
    head = b"M" + write_xid(message.xid) + bytes([message.transactional]) + write_lsn(message.message_lsn)
    return head + write_string(message.prefix) + write_bytes(message.content)


# -- relation.py
# -----------------------------------------------------------------------------------------------------


def write_relation(message: Relation) -> bytes:
    parts = [
        b"R",
        write_xid(message.xid),
        write_uint32(message.relation_oid),
        write_namespace(message.namespace),
        write_string(message.name),
        message.replica_identity.value.encode(),
        write_int16(len(message.columns)),
    ]
    for column in message.columns:
        parts += [bytes([column.key]), write_string(column.name)]
        parts += [write_uint32(column.type_oid), write_int32(column.typmod)]
    return b"".join(parts)


def write_type(message: Type) -> bytes:
    head = b"Y" + write_xid(message.xid) + write_uint32(message.type_oid)
    return head + write_namespace(message.namespace) + write_string(message.name)


# -- row.py
# ----------------------------------------------------------------------------------------------------------


def write_insert(message: Insert) -> bytes:
    head = b"I" + write_xid(message.xid) + write_uint32(message.relation_oid)
    return head + b"N" + write_tuple_data(message.new)


def write_update(message: Update) -> bytes:
    head = b"U" + write_xid(message.xid) + write_uint32(message.relation_oid)
    return head + _write_identity(message.key, message.old) + b"N" + write_tuple_data(message.new)


def write_delete(message: Delete) -> bytes:
    head = b"D" + write_xid(message.xid) + write_uint32(message.relation_oid)
    return head + _write_identity(message.key, message.old)


def _write_identity(key: TupleData | None, old: TupleData | None) -> bytes:
    key_part = b"" if key is None else b"K" + write_tuple_data(key)
    return key_part + (b"" if old is None else b"O" + write_tuple_data(old))


def write_truncate(message: Truncate) -> bytes:
    options = (1 if message.cascade else 0) | (2 if message.restart_identity else 0)
    head = b"T" + write_xid(message.xid) + write_int32(len(message.relation_oids)) + bytes([options])
    return head + b"".join(map(write_uint32, message.relation_oids))


# -- stream.py
# -------------------------------------------------------------------------------------------------------


def write_stream_start(message: StreamStart) -> bytes:
    return b"S" + write_uint32(message.xid) + bytes([message.first_segment])


def write_stream_stop(message: StreamStop) -> bytes:
    return b"E"


def write_stream_commit(message: StreamCommit) -> bytes:
    lsns = write_lsn(message.commit_lsn) + write_lsn(message.end_lsn)
    return b"c" + write_uint32(message.xid) + bytes([message.flags]) + lsns + write_time(message.commit_time)


def write_stream_abort(message: StreamAbort) -> bytes:
    head = b"A" + write_uint32(message.xid) + write_uint32(message.subxid)
    if message.abort_lsn is None or message.abort_time is None:
        return head
    return head + write_lsn(message.abort_lsn) + write_time(message.abort_time)


# -- two_phase.py
# ----------------------------------------------------------------------------------------------------


def write_begin_prepare(message: BeginPrepare) -> bytes:
    lsns = write_lsn(message.prepare_lsn) + write_lsn(message.end_lsn)
    return b"b" + lsns + write_time(message.prepare_time) + write_uint32(message.xid) + write_string(message.gid)


def write_prepare(message: Prepare) -> bytes:
    return b"P" + _write_prepared(message)


def write_stream_prepare(message: StreamPrepare) -> bytes:
    return b"p" + _write_prepared(message)


def _write_prepared(message: Prepare | StreamPrepare) -> bytes:
    lsns = write_lsn(message.prepare_lsn) + write_lsn(message.end_lsn)
    tail = write_time(message.prepare_time) + write_uint32(message.xid) + write_string(message.gid)
    return bytes([message.flags]) + lsns + tail


def write_commit_prepared(message: CommitPrepared) -> bytes:
    lsns = write_lsn(message.commit_lsn) + write_lsn(message.end_lsn)
    tail = write_time(message.commit_time) + write_uint32(message.xid) + write_string(message.gid)
    return b"K" + bytes([message.flags]) + lsns + tail


def write_rollback_prepared(message: RollbackPrepared) -> bytes:
    lsns = write_lsn(message.prepare_end_lsn) + write_lsn(message.rollback_end_lsn)
    times = write_time(message.prepare_time) + write_time(message.rollback_time)
    return b"r" + bytes([message.flags]) + lsns + times + write_uint32(message.xid) + write_string(message.gid)


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    Begin: write_begin,
    Message: write_message,
    Commit: write_commit,
    Origin: write_origin,
    Relation: write_relation,
    Type: write_type,
    Insert: write_insert,
    Update: write_update,
    Delete: write_delete,
    Truncate: write_truncate,
    StreamStart: write_stream_start,
    StreamStop: write_stream_stop,
    StreamCommit: write_stream_commit,
    StreamAbort: write_stream_abort,
    BeginPrepare: write_begin_prepare,
    Prepare: write_prepare,
    CommitPrepared: write_commit_prepared,
    RollbackPrepared: write_rollback_prepared,
    StreamPrepare: write_stream_prepare,
}
