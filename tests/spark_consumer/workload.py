"""Random workloads for a feeder: everything a PostgreSQL and a gateway that is killed now and then
can leave in the topics."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from schemas.relation import ReplicaIdentity
from tests.spark_consumer.feeder import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT8,
    INT4,
    INT4_ARRAY,
    INT8,
    NUMERIC,
    NUMERIC_12_2,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    Feeder,
    Key,
    Row,
    Table,
    Transaction,
    relation,
)

CUSTOMERS = relation(
    "customers",
    {"id": INT8, "name": TEXT, "notes": TEXT, "balance": (NUMERIC, NUMERIC_12_2), "born": DATE,
     "seen_at": TIMESTAMPTZ, "tags": INT4_ARRAY},
    ("id",),
)  # fmt: skip
ORDERS = relation(
    "orders",
    {"customer": INT8, "line": INT4, "letter": TEXT, "placed_at": TIMESTAMP, "weight": FLOAT8, "paid": BOOL, "scan": BYTEA},
    ("customer", "line"),
    ReplicaIdentity.FULL,
)  # fmt: skip
VISITS = relation("visits", {"page": TEXT, "seconds": FLOAT8}, (), ReplicaIdentity.NOTHING)
TOASTED = {"customers": "notes", "orders": "letter"}


class Workload:
    """Calls `step` as often as wanted, then `finish`: no transaction is left open but those that a
    restart made void."""

    def __init__(self, feeder: Feeder, seed: int) -> None:
        self.feeder = feeder
        self.random = random.Random(seed)
        self.customers, self.orders, self.visits = (feeder.table(found) for found in (CUSTOMERS, ORDERS, VISITS))
        self.tables = (self.customers, self.orders, self.visits)
        self._open: list[Work] = []
        self._prepared: list[Work] = []
        self._locked: set[tuple[str, Key]] = set()
        self._next_id = 0

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.35:
            self._small()
        elif choice < 0.50:
            self._open.append(Work(self, streamed=True))
        elif choice < 0.80 and self._open:
            self._stream(self.random.choice(self._open))
        elif choice < 0.90 and self._open:
            self._end(self._open.pop(self.random.randrange(len(self._open))))
        elif choice < 0.94 and self._prepared:
            self._commit_prepared(self._prepared.pop(0))
        elif choice < 0.97:
            self._abort_in_kafka()
        elif choice < 0.98:
            self._restart()
        if self.random.random() < 0.4:
            self.feeder.kafka_commit()

    def finish(self) -> None:
        for work in self._open:
            self._end(work)
        for work in self._prepared:
            self._commit_prepared(work)
        self._open, self._prepared = [], []
        self.feeder.kafka_commit()

    def _small(self) -> None:
        work = Work(self, streamed=False)
        for _ in range(self.random.randint(1, 12)):
            work.change()
        if self.random.random() < 0.03 and not self._open and not self._prepared:
            work.transaction.truncate(self.random.choice((self.customers, self.orders)), self.visits)
            work.recompute()
            work.change()
        if self.random.random() < 0.1:
            work.transaction.change(None, "MESSAGE")
        work.transaction.commit()
        self.unlock(work)

    def _stream(self, work: Work) -> None:
        """A segment of a streamed transaction, a part of it in a savepoint that may be rolled
        back."""
        for _ in range(self.random.randint(1, 30)):
            work.change()
        if self.random.random() < 0.4:
            work.subxid = self.feeder.next_xid()
            for _ in range(self.random.randint(1, 10)):
                work.change()
            if self.random.random() < 0.5:
                work.transaction.abort_to(work.subxid)
                work.recompute()
            work.subxid = None
        work.transaction.send()

    def _end(self, work: Work) -> None:
        choice = self.random.random()
        if choice < 0.6:
            work.transaction.commit()
            self.unlock(work)
        elif choice < 0.8:  # rolled back: its rows stay in the topics
            self.feeder.marker(
                {"kind": "STREAM_ABORT", "xid": work.transaction.xid, "subxid": work.transaction.xid, "marker_lsn": 0}
            )
            self.unlock(work)
        else:
            work.transaction.send()
            self.feeder.marker(
                {
                    "kind": "STREAM_PREPARE",
                    "xid": work.transaction.xid,
                    "marker_lsn": self.feeder.next_lsn(),
                    "gid": "g",
                }
            )
            self._prepared.append(work)

    def _commit_prepared(self, work: Work) -> None:
        work.transaction.commit("COMMIT_PREPARED")
        self.unlock(work)

    def _abort_in_kafka(self) -> None:
        """Records that no reader may see, and a gap in the offsets."""
        self.feeder.kafka_commit()
        lost = Transaction(self.feeder, self.feeder.next_xid(), streamed=False)
        for number in range(self.random.randint(1, 20)):
            lost.insert(self.customers, self._customer(-number))
        lost.send(1)
        self.feeder.kafka_abort()

    def _restart(self) -> None:
        """Streamed transactions are void and come again, prepared ones stay."""
        self.feeder.kafka_commit()
        for work in self._open:
            self.unlock(work)
        self._open = []
        self.feeder.restart()

    def lock(self, table: Table, key: Key) -> None:
        self._locked.add((table.name, key))

    def unlock(self, work: Work) -> None:
        self._locked -= work.locked

    def free_keys(self, table: Table) -> list[Key]:
        return [key for key in table.rows if (table.name, key) not in self._locked]

    def new_row(self, table: Table) -> Row:
        self._next_id += 1
        if table is self.customers:
            return self._customer(self._next_id)
        if table is self.orders:
            return {**self._order(), "customer": self._next_id, "line": self.random.randint(1, 9)}
        return {"page": f"/page/{self._next_id}", "seconds": self.random.random()}

    def changed(self, table: Table, row: Row) -> Row:
        fresh = self.new_row(table)
        return {**fresh, **{name: row[name] for name in table.key_columns}}

    def _customer(self, number: int) -> Row:
        rnd = self.random
        return {
            "id": number, "name": f"name é {number}", "notes": "n" * rnd.randint(0, 50),
            "balance": Decimal(rnd.randint(-99999, 99999)).scaleb(-2),
            "born": date(1950, 1, 1) + timedelta(rnd.randint(0, 20000)),
            "seen_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=rnd.randint(0, 10**13)),
            "tags": [rnd.randint(0, 9) if rnd.random() < 0.8 else None for _ in range(rnd.randint(0, 3))],
        }  # fmt: skip

    def _order(self) -> Row:
        rnd = self.random
        return {
            "letter": "l" * rnd.randint(0, 50), "placed_at": datetime(2026, 1, 1) + timedelta(seconds=rnd.randint(0, 10**6)),  # noqa: DTZ001
            "weight": rnd.choice([rnd.random(), None]), "paid": rnd.random() < 0.5, "scan": rnd.randbytes(rnd.randint(0, 9)),
        }  # fmt: skip


class Work:
    """One open transaction and the rows as it sees them: None is a row it deleted."""

    def __init__(self, workload: Workload, *, streamed: bool) -> None:
        self.workload = workload
        self.transaction = workload.feeder.begin(streamed=streamed)
        self.subxid: int | None = None
        self.locked: set[tuple[str, Key]] = set()
        self._own: dict[tuple[str, Key], Row | None] = {}

    def recompute(self) -> None:
        """After a rollback to a savepoint or a TRUNCATE."""
        self._own.clear()
        for change in self.transaction.surviving():
            if change.op == "TRUNCATE" and change.table is not None:
                for key in change.table.rows:
                    self._own[change.table.name, key] = None
                for place in [place for place in self._own if place[0] == change.table.name]:
                    self._own[place] = None
            elif change.table is not None and change.row is not None:
                self._see(change.table, change.op, change.row, change.left)

    def _see(self, table: Table, op: str, row: Row, left: Row | None) -> None:
        if left is not None:
            self._own[table.name, table.key(left)] = None
        self._own[table.name, table.key(row)] = None if op == "DELETE" else row

    def _rows(self, table: Table) -> list[Row]:
        """Rows that this transaction may change: its own, and committed ones that no other has
        touched."""
        own = [row for (name, _), row in self._own.items() if name == table.name and row is not None]
        free = [table.rows[key] for key in self.workload.free_keys(table)[:20] if (table.name, key) not in self._own]
        return own + free

    def change(self) -> None:
        rnd = self.workload.random
        table = rnd.choice(self.workload.tables)
        rows = self._rows(table) if table.key_columns else []
        if not rows or rnd.random() < 0.5:
            row = self.workload.new_row(table)
            self.transaction.insert(table, row, self.subxid)
            self._took(table, "INSERT", row, None)
            return
        old = rnd.choice(rows)
        self._lock(table, table.key(old))
        if rnd.random() < 0.2:
            self.transaction.delete(table, old, self.subxid)
            self._took(table, "DELETE", old, None)
            return
        new = self.workload.changed(table, old)
        if rnd.random() < 0.2:
            new = {**new, table.key_columns[0]: self.workload.new_row(table)[table.key_columns[0]]}
        unsent: tuple[str, ...] = ()
        if rnd.random() < 0.4:
            toasted = TOASTED[table.description.name]
            new, unsent = {**new, toasted: old[toasted]}, (toasted,)
        change = self.transaction.update(table, old, new, self.subxid, unsent)
        self._took(table, "UPDATE", new, change.left)

    def _took(self, table: Table, op: str, row: Row, left: Row | None) -> None:
        if table.key_columns:
            self._lock(table, table.key(row))
            self._see(table, op, row, left)

    def _lock(self, table: Table, key: Key) -> None:
        self.workload.lock(table, key)
        self.locked.add((table.name, key))
