"""Decode the messages of pgoutput, one at a time, without state or I/O.

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
