"""Relation and Type: the descriptions of the rows that follow."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pgoutput.cursor import Cursor
from schemas.relation import ReplicaIdentity


@dataclass(frozen=True, slots=True)
class Column:
    """ "The following message part appears for each column included in the publication." """

    key: bool
    """ "Flags for the column. Currently can be either 0 for no flags or 1 which marks the column as
    part of the key." The key is the replica identity; under FULL every column is marked."""
    name: str
    """ "Name of the column." """
    type_oid: int
    """ "OID of the column's data type." """
    typmod: int
    """ "Type modifier of the column (atttypmod)." It is -1 if there is none."""


@dataclass(frozen=True, slots=True)
class Relation:
    """'R': "Identifies the message as a relation message." """

    xid: int | None
    """ "Xid of the transaction (only present for streamed transactions). [...] since protocol
    version 2." It is the xid of the subtransaction, if there is one."""
    relation_oid: int
    """ "OID of the relation." """
    namespace: str
    """ "Namespace (empty string for pg_catalog)." Here it is `pg_catalog` in full."""
    name: str
    """ "Relation name." """
    replica_identity: ReplicaIdentity
    """ "Replica identity setting for the relation (same as relreplident in pg_class)." """
    columns: tuple[Column, ...]
    """ "Number of columns", then each column."""


@dataclass(frozen=True, slots=True)
class Type:
    """'Y': "Identifies the message as a type message." It is sent before a Relation that has a
    column of a user-defined type.

    For a domain, the message contains the domain's OID, but the namespace and name of its base type
    (`logicalrep_write_typ`).
    """

    xid: int | None
    """ "Xid of the transaction (only present for streamed transactions). [...] since protocol
    version 2." """
    type_oid: int
    """ "OID of the data type." """
    namespace: str
    """ "Namespace (empty string for pg_catalog)." Here it is `pg_catalog` in full."""
    name: str
    """ "Name of the data type." """


_IDENTITY_BY_LETTER = {ord(identity.value): identity for identity in ReplicaIdentity}


def read_relation(cursor: Cursor, in_stream: bool) -> Relation:
    return Relation(
        xid=cursor.read_stream_xid() if in_stream else None,
        relation_oid=cursor.read_uint32("relation_oid"),
        namespace=_read_namespace(cursor),
        name=cursor.read_string("name"),
        replica_identity=_read_replica_identity(cursor),
        columns=_read_columns(cursor),
    )


def read_type(cursor: Cursor, in_stream: bool) -> Type:
    return Type(
        xid=cursor.read_stream_xid() if in_stream else None,
        type_oid=cursor.read_uint32("type_oid"),
        namespace=_read_namespace(cursor),
        name=cursor.read_string("name"),
    )


def _read_namespace(cursor: Cursor) -> str:
    return cursor.read_string("namespace") or "pg_catalog"


def _read_replica_identity(cursor: Cursor) -> ReplicaIdentity:
    letter = cursor.read_byte("replica_identity")
    identity = _IDENTITY_BY_LETTER.get(letter)
    if identity is None:
        raise cursor.error("replica_identity", cursor.position - 1, "one of d n f i", f"0x{letter:02x}")
    return identity


def _read_columns(cursor: Cursor) -> tuple[Column, ...]:
    columns: list[Column] = []
    for number in range(cursor.read_count("number of columns")):
        column = f"column {number}"
        columns.append(
            Column(
                key=cursor.read_flag(f"flags of {column}"),
                name=cursor.read_string(f"name of {column}"),
                type_oid=cursor.read_uint32(f"type_oid of {column}"),
                typmod=cursor.read_int32(f"typmod of {column}"),
            )
        )
    return tuple(columns)
