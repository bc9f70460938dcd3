"""What happened in the source database: the log that the workload keeps, and PostgreSQL's own account of it.

Two witnesses, neither of which is the gateway:

* `history.transactions` and `history.statements` are written inside the transactions that they describe, also inside their
  savepoints. So a row of the log exists exactly when what it tells of was committed, whatever became of the client.
* A second slot, decoded by PostgreSQL itself without streaming and without two-phase, gives each committed transaction's
  LSNs and commit time in commit order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import asyncpg

_PG_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

SCHEMA = """
    CREATE SCHEMA history;
    CREATE SEQUENCE history.number;
    CREATE TABLE history.transactions (number bigint PRIMARY KEY, xid bigint NOT NULL, shape text NOT NULL);
    CREATE TABLE history.statements (
        number bigint NOT NULL, step int NOT NULL, operation text NOT NULL, relation text NOT NULL, keys bigint[] NOT NULL
    );
    CREATE TABLE history.noise (payload text);
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement's changes, in no order among themselves. `relation` is `schema.table`; TRUNCATE and MESSAGE have no keys."""

    step: int
    operation: str
    relation: str
    keys: tuple[int, ...] = ()

    @property
    def event_count(self) -> int:
        return len(self.keys) if self.operation in ("INSERT", "UPDATE", "DELETE") else 1


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction as PostgreSQL decoded it."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: datetime


@dataclass(frozen=True, slots=True)
class Logged:
    """A committed transaction; `committed` is None where no witness was asked."""

    number: int
    xid: int
    statements: tuple[Statement, ...]
    shape: str = ""
    committed: Committed | None = None


@dataclass(slots=True)
class Truth:
    """Committed transactions, in commit order where there is a witness; and the LSNs of the logical messages that belong to
    no transaction. A transaction without statements changed nothing that is published, or rolled all of it back."""

    transactions: list[Logged] = field(default_factory=list)
    message_lsns: list[int] = field(default_factory=list)

    @property
    def event_count(self) -> int:
        return sum(statement.event_count for logged in self.transactions for statement in logged.statements)


async def create_history(connection: asyncpg.Connection) -> None:
    """The log's tables and the witness slot."""
    await connection.execute(SCHEMA)
    await connection.execute("SELECT pg_create_logical_replication_slot('witness_' || current_database(), 'pgoutput')")


async def load_truth(connection: asyncpg.Connection, publication: str) -> Truth:
    """Both witnesses together. Raises AssertionError where they disagree: then the test itself is wrong."""
    committed, message_lsns = await _ask_witness(connection, publication)
    witnessed = {one.xid: one for one in committed}
    statements: dict[int, list[Statement]] = {}
    for row in await connection.fetch("SELECT * FROM history.statements ORDER BY number, step"):
        if row["keys"] or row["operation"] in ("TRUNCATE", "MESSAGE"):
            statement = Statement(row["step"], row["operation"], row["relation"], tuple(row["keys"]))
            statements.setdefault(row["number"], []).append(statement)
    truth = Truth(message_lsns=message_lsns)
    for row in await connection.fetch("SELECT number, xid, shape FROM history.transactions"):
        done = tuple(statements.get(row["number"], ()))
        decoded = witnessed.get(row["xid"])
        assert decoded or not done, f"transaction {row['number']} is in the log but was not decoded"
        truth.transactions.append(Logged(row["number"], row["xid"], done, row["shape"], decoded))
    truth.transactions.sort(key=lambda logged: logged.committed.commit_lsn if logged.committed else 0)
    return truth


async def _ask_witness(connection: asyncpg.Connection, publication: str) -> tuple[list[Committed], list[int]]:
    """Peeks, so that it may be asked again. Only Begin, Commit and Message are read (PostgreSQL manual, 54.9)."""
    rows = await connection.fetch(
        """
        SELECT data FROM pg_logical_slot_peek_binary_changes(('witness_' || current_database())::name, NULL, NULL,
            'proto_version', '1', 'publication_names', $1, 'messages', 'true')
        WHERE get_byte(data, 0) IN (ascii('B'), ascii('C'), ascii('M'))
        """,
        publication,
    )
    found: list[Committed] = []
    message_lsns: list[int] = []
    xid = 0
    for (data,) in rows:
        if data[:1] == b"B":
            (xid,) = struct.unpack_from("!I", data, 17)
        elif data[:1] == b"M":
            flags, message_lsn = struct.unpack_from("!BQ", data, 1)
            if not flags & 1:
                message_lsns.append(message_lsn)
        else:
            commit_lsn, end_lsn, microseconds = struct.unpack_from("!QQq", data, 2)
            found.append(Committed(xid, commit_lsn, end_lsn, _PG_EPOCH + timedelta(microseconds=microseconds)))
    return found, message_lsns
