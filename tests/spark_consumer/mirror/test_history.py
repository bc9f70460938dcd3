"""Pictures at random commit LSNs are what the source's own history says, which triggers keep in
PostgreSQL.

A trigger of each table writes every change, as PostgreSQL's own text of each value, into a table
that is not published. Markers tell the commit LSN of each xid: in that order the changes add up to
the truth, in which no model of these tests has a part.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession

from gateway.local import Kafka
from gateway.local import Registry as LocalRegistry
from schemas.topic_names import transaction_topic
from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.merge.merge_command import merge_once
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.tables.table_schema import OUT, is_log
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.conftest import Database
from tests.evolution.delivered import Delivered
from tests.spark_consumer.queries import run_to_end
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_confirmed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("WALGATE_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 40)
SESSIONS = 3
READERS = 3
LATER_S = 10_000.0
COLUMNS = {
    "stock": ("region", "code", "quantity", "price", "counted_at", "photo"),
    "documents": ("id", "title", "body", "amount"),
    "entries": ("account", "amount", "note", "booked_at", "scan"),
}
TABLES = """
CREATE TABLE stock (
    region int8, code text, quantity int8, price numeric(20, 4), counted_at timestamptz, photo bytea, PRIMARY KEY (region, code)
);
CREATE TABLE documents (id int8 PRIMARY KEY, title text, body text, amount numeric(20, 4));
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;
CREATE TABLE entries (account int8, amount numeric(20, 4), note text, booked_at timestamptz, scan bytea);
ALTER TABLE entries REPLICA IDENTITY FULL;
CREATE SCHEMA history;
CREATE TABLE history.changes (
    number bigserial, xid int8 DEFAULT pg_current_xact_id()::text::numeric % 4294967296, relation text, op text,
    old_row text[], new_row text[]
);
CREATE PUBLICATION history_test FOR TABLE stock, documents, entries
"""
TRIGGER = """
CREATE FUNCTION history.note_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO history.changes (relation, op, old_row, new_row) VALUES (
        TG_TABLE_NAME, TG_OP,
        CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN ARRAY[{old}] END,
        CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN ARRAY[{new}] END
    );
    RETURN NULL;
END $$;
CREATE TRIGGER rows AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION history.note_{table}();
CREATE TRIGGER all_rows AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION history.note_{table}()
"""
# Another session was first, or has the row: the transaction, or its part behind a savepoint, is
# rolled back.
LOST = (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
TextRow = tuple[str | None, ...]
State = dict[str, Counter[TextRow]]


@dataclass
class Source:
    sql: asyncpg.Connection
    connect: Callable[[], Any]
    slot: str
    options: dict[str, str]
    schemas: SchemaCache

    async def run(self, part: int, count: int) -> None:
        """So many transactions of several sessions at once, and a large one among them."""
        sessions = [await self.connect() for _ in range(SESSIONS)]
        for sql in sessions:
            await sql.execute("SET TimeZone = 'UTC'; SET lock_timeout = '2s'")
        each = [
            _session(sql, random.Random(f"{SEED} {part} {number}"), count // SESSIONS)
            for number, sql in enumerate(sessions)
        ]
        await asyncio.gather(*each)
        if part == 0:
            await self.sql.execute("TRUNCATE documents, entries")  # by chance there may be no other
        await until_confirmed(self.sql, self.slot)
        for sql in sessions:
            await sql.close()

    async def history(self) -> list[asyncpg.Record]:
        found: list[asyncpg.Record] = await self.sql.fetch("SELECT * FROM history.changes ORDER BY number")
        return found


@asynccontextmanager
async def open_source(
    database: Database, kafka: Kafka, registry: LocalRegistry, prefix: str, folder: Path
) -> AsyncIterator[Source]:
    sql, slot = await database.connect(), f"slot_{prefix}"
    await sql.execute(TABLES)
    for table, columns in COLUMNS.items():
        old, new = (", ".join(f"{side}.{name}::text" for name in columns) for side in ("OLD", "NEW"))
        await sql.execute(TRIGGER.format(table=table, old=old, new=new))
    settings = {
        "source__dsn": database.dsn, "source__slot": slot, "source__publications": "history_test",
        "kafka__bootstrap_servers": kafka.bootstrap_servers, "kafka__prefix": prefix,
        "kafka__replication_factor": 1, "registry__url": registry.url,
    }  # fmt: skip
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "registry.url": registry.url, "prefix": prefix}
    gateway = GatewayProcess(folder / "gateway.log", settings)
    try:
        await gateway.streaming()
        yield Source(sql, database.connect, slot, options, SchemaCache(Registry({"url": registry.url})))
    except BaseException:
        print(gateway.log_tail())
        raise
    finally:
        await gateway.end()


async def _session(sql: asyncpg.Connection, rnd: random.Random, count: int) -> None:
    large = rnd.randrange(count)
    for number in range(count):
        transaction = sql.transaction()
        await transaction.start()
        try:
            for _ in range(rnd.randint(1, 4)):
                await sql.execute(_statement(rnd))
            if number == large:
                await _much(sql, rnd)
            if rnd.random() < 0.25:
                await _savepoint(sql, rnd)
        except LOST:
            await transaction.rollback()
            continue
        await (transaction.rollback() if rnd.random() < 0.05 else transaction.commit())


async def _savepoint(sql: asyncpg.Connection, rnd: random.Random) -> None:
    inner = sql.transaction()
    await inner.start()
    try:
        for _ in range(rnd.randint(1, 3)):
            await sql.execute(_statement(rnd))
    except LOST:
        await inner.rollback()
    else:
        await (inner.rollback() if rnd.random() < 0.6 else inner.commit())
    await sql.execute(_statement(rnd))


async def _much(sql: asyncpg.Connection, rnd: random.Random) -> None:
    """More than logical_decoding_work_mem: it is sent while it is open, a part that is rolled back
    too."""
    region = rnd.randint(100, 10**6)
    await sql.execute(
        f"INSERT INTO stock SELECT {region}, 'm' || i, i, i / 7.0, now(), NULL FROM generate_series(1, 400) i"
    )
    inner = sql.transaction()
    await inner.start()
    await sql.execute(f"UPDATE stock SET quantity = -quantity, code = 'lost' || code WHERE region = {region}")
    await inner.rollback()
    await sql.execute(f"UPDATE stock SET code = 'n' || code WHERE region = {region} AND quantity % 3 = 0")
    await sql.execute(f"DELETE FROM stock WHERE region = {region} AND quantity % 3 > 0")


def _statement(rnd: random.Random) -> str:
    key, other, text = rnd.randint(1, 12), rnd.randint(1, 12), f"{rnd.choice('aéß漢')}{rnd.randrange(10**6)}"
    number = rnd.choice(["NULL", "'NaN'", *(f"{rnd.randint(-(10**9), 10**9)} / 10000.0" for _ in range(6))])
    seconds = f"'2026-01-01Z'::timestamptz + {rnd.randint(0, 10**12)} * interval '1 microsecond'"
    time = rnd.choice(["NULL", "'infinity'", "'-infinity'", "'1901-02-03 04:05:06.7Z'", *[seconds] * 6])
    data = rnd.choice(["NULL", r"'\x'", rf"'\x{rnd.randbytes(rnd.randint(1, 9)).hex()}'"])
    long = rnd.choice(["NULL", "'short'", *[f"repeat(md5('{text}'), 100)"] * 4])
    choices = {
        f"INSERT INTO stock VALUES ({key}, '{text}', {other}, {number}, {time}, {data})": 6,
        f"INSERT INTO stock SELECT {key}, '{text}' || i, i, {number}, {time} FROM generate_series(1, {other}) i": 2,
        f"UPDATE stock SET quantity = quantity + 1, price = {number}, photo = {data} WHERE region = {key}": 4,
        f"UPDATE stock SET region = {other}, counted_at = {time} WHERE region = {key}": 3,
        f"UPDATE stock SET code = code || '{text}' WHERE region = {key} AND quantity % 2 = 0": 2,
        f"DELETE FROM stock WHERE region = {key} AND quantity % 3 = {other % 3}": 4,
        f"INSERT INTO documents VALUES ({rnd.randrange(10**6)}, '{text}', {long}, {number})": 8,
        f"UPDATE documents SET title = '{text}', amount = {number} WHERE id % 12 = {key}": 6,
        f"UPDATE documents SET body = {long} WHERE id % 12 = {key}": 3,
        f"UPDATE documents SET id = id + {rnd.randint(1, 10**6)} WHERE id % 24 = {key}": 3,
        f"DELETE FROM documents WHERE id % 24 = {key}": 4,
        f"INSERT INTO entries SELECT {key}, {number}, '{text}', {time}, {data} FROM generate_series(1, {other % 3 + 1})": 8,
        f"UPDATE entries SET amount = {number}, scan = {data} WHERE account = {key}": 4,
        f"UPDATE entries SET account = {other}, note = note || '!' WHERE account = {key}": 2,
        f"DELETE FROM entries WHERE ctid IN (SELECT min(ctid) FROM entries WHERE account < {key} GROUP BY note)": 4,
        "TRUNCATE stock": 0.4,
        "TRUNCATE documents, entries": 0.4,
    }
    return rnd.choices(list(choices), list(choices.values()))[0]


def commits(source: Source, prefix: str) -> tuple[dict[int, int], Counter[str]]:
    """xid -> commit LSN, as the markers tell; how many markers of each kind there are."""
    options = source.options
    delivered = Delivered(options["kafka.bootstrap.servers"], options["registry.url"], prefix, lambda _: True)
    delivered.close()
    markers = [record.event for record in delivered.records if record.topic == transaction_topic(prefix)]
    ends = [marker for marker in markers if marker["kind"] in ("COMMIT", "STREAM_COMMIT")]
    found = {marker["xid"]: marker["marker_lsn"] for marker in ends}
    assert len(found) == len(ends)
    return found, Counter(marker["kind"] for marker in markers)


def states(history: Iterable[Any], commit_lsns: dict[int, int], wanted: Iterable[int]) -> dict[int, State]:
    """At each of these commit LSNs, the rows of all tables as text."""
    transactions: dict[int, list[Any]] = {}
    for change in history:  # every transaction of them was committed: else its history would not be there
        transactions.setdefault(commit_lsns[change["xid"]], []).append(change)
    state: State = {table: Counter() for table in COLUMNS}
    found, chosen = {}, set(wanted)
    for commit_lsn in sorted(transactions):
        for change in transactions[commit_lsn]:
            rows = state[change["relation"]]
            if change["op"] == "TRUNCATE":
                rows.clear()
            if change["old_row"] is not None:
                old = tuple(change["old_row"])
                assert rows[old] > 0, (commit_lsn, change)
                rows[old] -= 1
            if change["new_row"] is not None:
                rows[tuple(change["new_row"])] += 1
        if commit_lsn in chosen:
            found[commit_lsn] = {table: +rows for table, rows in state.items()}
    return found


def state_in(picture: versions.MirrorVersion) -> State:
    """Rows of all tables, each value as PostgreSQL's text of it; of a log: what its entries add up
    to."""
    found: State = {}
    for table, columns in COLUMNS.items():
        rows = found[table] = Counter()
        name = f"public.{table}"
        entries = picture[name].toArrow().to_pylist() if name in picture else []
        if entries and is_log(entries[0]):
            entries.sort(key=lambda entry: (entry["_commit_lsn"], entry["_ordinal"]))
        for entry in entries:
            special = dict(entry["_special"] or ())
            row = tuple(special.get(column, as_text(entry[column])) for column in columns)
            if entry.get("_op") == "TRUNCATE":
                assert not any(value is not None for value in row), row
                rows.clear()
            else:
                rows[row] += -1 if entry.get("_op") in OUT else 1
        assert all(count >= 0 for count in rows.values()), (table, rows)
        found[table] = +rows
    return found


def as_text(value: int | Decimal | datetime | bytes | str | None) -> str | None:
    """As PostgreSQL's output functions, with TimeZone UTC."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        utc = value.astimezone(UTC)
        fraction = f".{utc.microsecond:06}".rstrip("0").rstrip(".")
        return f"{utc:%Y-%m-%d %H:%M:%S}{fraction}+00"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return None if value is None else str(value)


def differences(found: State, expected: State) -> dict[str, Any]:
    """Of each table: what is there too often, and what is missing."""
    return {
        table: (found[table] - expected[table], expected[table] - found[table])
        for table in COLUMNS
        if found[table] != expected[table]
    }


@pytest.mark.parametrize(
    ("count", "transactions", "limit"),
    [(6, 120, 480), pytest.param(100, 900, 1800, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
async def test_a_picture_at_any_commit_is_the_source_s_own_history(
    spark: SparkSession,
    database: Database,
    kafka: Kafka,
    registry: LocalRegistry,
    topic_prefix: str,
    tmp_path: Path,
    count: int,
    transactions: int,
    limit: int,
) -> None:
    """Half of it was merged beside the batches; of the other half nothing is, then all."""
    print(f"WALGATE_TEST_SEED={SEED}")
    path, reports = tmp_path / "mirror", list[BatchReport]()

    def stream(source: Source, merge_every_s: float) -> None:
        mirror = AppendingMirror(str(path), source.schemas, reports.append, merge_every_s=merge_every_s)
        options = {**source.options, "includeMarkers": "true", "maxChangesPerTrigger": str(limit)}
        frame = spark.readStream.format("walgate").options(**options).load()
        run_to_end(frame.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", f"{path}/checkpoint"))
        mirror.finish(spark, merge=False)

    def check_one(commit_lsn: int) -> None:
        picture = versions.read(cloned(spark), str(path), at=commit_lsn)
        assert picture.commit_lsn == commit_lsn, f"seed {SEED}"
        wrong = differences(state_in(picture), expected[commit_lsn])
        assert not wrong, f"seed {SEED}, at {commit_lsn:X}: {wrong}"

    def check(at: Iterable[int]) -> None:
        with ThreadPoolExecutor(READERS) as readers:
            list(readers.map(check_one, at))

    async with open_source(database, kafka, registry, topic_prefix, tmp_path) as source:
        for part, merge_every_s in enumerate((0.0, LATER_S)):
            await source.run(part, transactions // 2)
            await asyncio.to_thread(stream, source, merge_every_s)
        history = await source.history()
        by_xid, kinds = await asyncio.to_thread(commits, source, topic_prefix)
    assert kinds["COMMIT"] > transactions / 2 and kinds["STREAM_COMMIT"] >= SESSIONS, f"seed {SEED}: {kinds}"
    assert {change["op"] for change in history} == {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}, f"seed {SEED}"
    known = sorted({by_xid[change["xid"]] for change in history})
    assert changes.appended_lsn(spark, str(path)) >= known[-1]
    appends, merges = (
        [report.commit_lsn for report in reports if report.is_merge is is_merge] for is_merge in (False, True)
    )
    assert len(appends) > 6 and len(merges) > 1, f"seed {SEED}: {reports}"
    # Within batches: which commits end one depends on the load of the machine.
    within = [commit_lsn for commit_lsn in known[1:-1] if commit_lsn not in {*appends, *merges}]
    draw = random.Random(SEED)
    chosen = [draw.choice([commit_lsn for commit_lsn in within if commit_lsn > max(merges)])]
    chosen += draw.sample(within, count - 3)
    expected = states(history, by_xid, [*chosen, known[0], known[-1]])
    assert all(any(state[table] for state in expected.values()) for table in COLUMNS), f"seed {SEED}"
    await asyncio.to_thread(check, [known[0], *chosen[::2]])
    await asyncio.to_thread(merge_once, cloned(spark), str(path), lambda _: None)
    await asyncio.to_thread(check, [*chosen[1::2], known[-1]])
    print(f"{len(history)} changes of {len(known)} transactions, {len(appends)} batches, {len(merges)} merges")
