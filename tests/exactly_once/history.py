"""What happened in the source database: the log that the workload keeps, and PostgreSQL's own
account of it.

Two witnesses, neither of which is the gateway:

* `history.transactions` and `history.statements` are written inside the transactions that they
  describe, also inside their savepoints. So a row of the log exists exactly when what it tells of
  was committed, whatever became of the client.
* A second slot, decoded by PostgreSQL itself without streaming and without two-phase, gives each
  committed transaction's LSNs and commit time in commit order.
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
    """One statement's changes, in no order among themselves. `relation` is `schema.table`; TRUNCATE
    and MESSAGE have no keys."""

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
    """Committed transactions, in commit order where there is a witness; and the LSNs of the logical
    messages that belong to no transaction. A transaction without statements changed nothing that is
    published, or rolled all of it back."""

    transactions: list[Logged] = field(default_factory=list)
    message_lsns: list[int] = field(default_factory=list)

    @property
    def event_count(self) -> int:
        return sum(statement.event_count for logged in self.transactions for statement in logged.statements)


async def create_history(connection: asyncpg.Connection) -> None:
    """The log's tables and the witness slot."""
    await connection.execute(SCHEMA)
    await connection.execute("SELECT pg_create_logical_replication_slot('witness_' || current_database(), 'pgoutput')")


@dataclass(slots=True)
class Witnessed:
    """Of the witness slot: committed transactions by their commit LSN, and the LSNs of messages
    that belong to none."""

    committed: dict[int, Committed] = field(default_factory=dict)
    message_lsns: set[int] = field(default_factory=set)


async def load_truth(connection: asyncpg.Connection, publication: str, earlier: Witnessed | None = None) -> Truth:
    """Both witnesses together. Raises AssertionError where they disagree: then the test itself is
    wrong.

        `earlier`: what `ask_witness` has consumed.
    """
    told = earlier or Witnessed()
    await ask_witness(connection, publication, told)
    witnessed = {one.xid: one for _, one in sorted(told.committed.items())}
    statements: dict[int, list[Statement]] = {}
    for row in await connection.fetch("SELECT * FROM history.statements ORDER BY number, step"):
        if row["keys"] or row["operation"] in ("TRUNCATE", "MESSAGE"):
            statement = Statement(row["step"], row["operation"], row["relation"], tuple(row["keys"]))
            statements.setdefault(row["number"], []).append(statement)
    truth = Truth(message_lsns=sorted(told.message_lsns))
    for row in await connection.fetch("SELECT number, xid, shape FROM history.transactions"):
        done = tuple(statements.get(row["number"], ()))
        decoded = witnessed.get(row["xid"])
        assert decoded or not done, f"transaction {row['number']} is in the log but was not decoded"
        truth.transactions.append(Logged(row["number"], row["xid"], done, row["shape"], decoded))
    truth.transactions.sort(key=lambda logged: logged.committed.commit_lsn if logged.committed else 0)
    return truth


async def ask_witness(
    connection: asyncpg.Connection, publication: str, told: Witnessed, *, consume: bool = False
) -> None:
    """Adds to `told` what the witness slot has to say; peeks, so that it may be asked again, unless
    `consume` is set.

        Only Begin, Commit and Message are read (PostgreSQL manual, 54.9).
    """
    function = "pg_logical_slot_get_binary_changes" if consume else "pg_logical_slot_peek_binary_changes"
    rows = await connection.fetch(
        f"""
        SELECT data FROM {function}(('witness_' || current_database())::name, NULL, NULL,
            'proto_version', '1', 'publication_names', $1, 'messages', 'true')
        WHERE get_byte(data, 0) IN (ascii('B'), ascii('C'), ascii('M'))
        """,
        publication,
    )
    xid = 0
    for (data,) in rows:
        if data[:1] == b"B":
            (xid,) = struct.unpack_from("!I", data, 17)
        elif data[:1] == b"M":
            flags, message_lsn = struct.unpack_from("!BQ", data, 1)
            if not flags & 1:
                told.message_lsns.add(message_lsn)
        else:
            commit_lsn, end_lsn, microseconds = struct.unpack_from("!QQq", data, 2)
            time = _PG_EPOCH + timedelta(microseconds=microseconds)
            told.committed[commit_lsn] = Committed(xid, commit_lsn, end_lsn, time)
