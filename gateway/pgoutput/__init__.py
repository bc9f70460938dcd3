"""Decodes the messages of pgoutput, one at a time, without state or I/O.

    decode.py           a message of any type
    letters.py          the bytes that identify messages and their parts
    cursor.py           the protocol's field types, checked
    tuple_data.py       the columns of a row
    transaction.py      Begin, Commit, Origin
    logical_message.py  Message
    relation.py         Relation, Type
    row.py              Insert, Update, Delete, Truncate
    stream.py           transactions in progress
    two_phase.py        prepared transactions
    errors.py           PgOutputError

In: the bytes of one message. Out: one frozen dataclass. This package must not know the connection
or Avro: a value remains the bytes that the server sent. Sentences in double quotes are the manual's
own (55.9 Logical Replication Message Formats).
"""

from gateway.pgoutput.cursor import PG_EPOCH
from gateway.pgoutput.decode import PgOutputMessage, decode
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.logical_message import Message, MessageHead, read_message_head
from gateway.pgoutput.relation import Column, Relation, Type
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit, Origin
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text, TupleData, TupleValue, Unchanged
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from schemas.relation import ReplicaIdentity

__all__ = [
    "PG_EPOCH",
    "UNCHANGED",
    "Begin",
    "BeginPrepare",
    "Binary",
    "Column",
    "Commit",
    "CommitPrepared",
    "Delete",
    "Insert",
    "Message",
    "MessageHead",
    "Origin",
    "PgOutputError",
    "PgOutputMessage",
    "Prepare",
    "Relation",
    "ReplicaIdentity",
    "RollbackPrepared",
    "StreamAbort",
    "StreamCommit",
    "StreamPrepare",
    "StreamStart",
    "StreamStop",
    "Text",
    "Truncate",
    "TupleData",
    "TupleValue",
    "Type",
    "Unchanged",
    "Update",
    "decode",
    "read_message_head",
]
