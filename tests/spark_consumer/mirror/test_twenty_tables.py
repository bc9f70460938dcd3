"""Twenty tables of every kind, altered while they are changed, from PostgreSQL to a mirror, with
kills of the gateway and of the mirror: at the end, and at commits chosen at random, they are what an
audit log says.

Triggers write the log, in PostgreSQL's own text of each value. In the transaction of an ALTER TABLE
the table is written into it anew, so that no rule about columns is needed to replay it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession

from gateway.local import Kafka, Registry
from schemas.lsn import format_lsn
from schemas.topic_names import transaction_topic
from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, versions
from spark_consumer.mirror.local.dump import newest, text_rows
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, OUT, is_log
from tests.conftest import Database
from tests.evolution.delivered import Delivered
from tests.spark_consumer.jobs.test_jobs import Topics, errors_of, lines, start
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_confirmed

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("WALGATE_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 40)
SECONDS = 225
SESSIONS, READERS, VERSIONS = 4, 3, 20
MIRROR_KILLS, GATEWAY_KILLS = 3, (0.3, 0.6)  # the latter are shares of the time
LOST = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.UndefinedColumnError,  # it was dropped or renamed meanwhile
    asyncpg.ConfigurationLimitExceededError,
)
TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy');
CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE > -1000000);
CREATE SCHEMA audit;
CREATE TABLE audit.log (
    number bigserial, xid int8 DEFAULT pg_current_xact_id()::text::numeric % 4294967296, relation text, op text,
    old_row text[], new_row text[], names text[], types text[]
);
CREATE FUNCTION audit.columns(relation regclass) RETURNS TABLE (names text[], types text[], row_sql text) STABLE
LANGUAGE sql AS $$
    SELECT array_agg(attname::text ORDER BY attnum), array_agg(format_type(atttypid, atttypmod) ORDER BY attnum),
        string_agg(format('($1).%I::text', attname), ', ' ORDER BY attnum)
    FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
$$;
CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE row_sql text; old_row text[]; new_row text[];
BEGIN
    SELECT c.row_sql INTO row_sql FROM audit.columns(TG_RELID) c;
    IF TG_OP IN ('UPDATE', 'DELETE') THEN EXECUTE 'SELECT ARRAY[' || row_sql || ']' INTO old_row USING OLD; END IF;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN EXECUTE 'SELECT ARRAY[' || row_sql || ']' INTO new_row USING NEW; END IF;
    INSERT INTO audit.log (relation, op, old_row, new_row) VALUES (TG_ARGV[0], TG_OP, old_row, new_row);
    RETURN NULL;
END $$;
CREATE FUNCTION audit.note_anew(name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE found record;
BEGIN
    SELECT * INTO found FROM audit.columns(format('public.%I', name)::regclass);
    INSERT INTO audit.log (relation, op, names, types) VALUES (name, 'COLUMNS', found.names, found.types);
    EXECUTE format('INSERT INTO audit.log (relation, op, new_row) SELECT %L, ''INSERT'', ARRAY[%s] FROM public.%I t',
        name, replace(found.row_sql, '($1)', 't'), name);
END $$
"""
TRIGGERS = """
CREATE TRIGGER rows AFTER INSERT OR UPDATE OR DELETE ON "{0}" FOR EACH ROW EXECUTE FUNCTION audit.note('{0}');
CREATE TRIGGER all_rows AFTER TRUNCATE ON "{0}" FOR EACH STATEMENT EXECUTE FUNCTION audit.note('{0}');
SELECT audit.note_anew('{0}')
"""
VALUES: Mapping[str, tuple[str, ...]] = {
    "int": ("NULL", "{n}", "-{n}"),
    "bigint": ("{n}", "{n} * 1000000007::bigint"),
    "text": ("NULL", "''", "'a {n}'", "'é, \"{n}\" \\\\ 漢'"),
    "varchar(40)": ("'v {n}'", "NULL"),
    "uuid": ("md5('{n}')::uuid",),
    "date": ("'2026-01-01'::date + {n} % 1000", "'infinity'", "NULL"),
    "timestamptz": ("'2026-01-01Z'::timestamptz + {n} * interval '1.000001 s'", "'-infinity'", "NULL"),
    "timestamp": ("'1901-02-03 04:05:06'::timestamp + {n} * interval '1.5 s'",),
    "time": ("'00:00'::time + {n} * interval '1.000001 s'", "'24:00:00'"),
    "interval": ("'1 mon -2 days'::interval * ({n} % 50)", "'{n} s'", "NULL"),
    "numeric(12,2)": ("{n} / 100.0", "'NaN'", "NULL"),
    "numeric": ("{n} / 7.0", "'Infinity'", "1e20 + {n}"),
    "float8": ("{n} / 3.0::float8", "'NaN'", "'-Infinity'", "0"),
    "real": ("({n} / 3.0)::real",),
    "bytea": (r"'\x'", "decode(md5('{n}'), 'hex')", "NULL"),
    "bool": ("true", "false", "NULL"),
    "jsonb": ("jsonb_build_object('a', {n}, 'b', 'é')", "'[1, null]'", "NULL"),
    "mood": ("'sad'", "'it''s ok'", "NULL"),
    "price": ("{n} / 100.0", "NULL"),
    "int[]": ("ARRAY[{n}, NULL, 1]", "'{{}}'", "NULL"),
    "text[]": ("ARRAY['x,y', NULL, 'q\"{n}']", "'{{}}'"),
    "int4range": ("int4range({n}, {n} + 5)", "'empty'"),
    "inet": ("'10.0.0.0'::inet + {n}",),
    "bit varying": ("({n}::int)::bit(12)::bit varying",),
}
LONG_TEXT = ("repeat(md5('{n}'), 90)", "'short {n}'", "NULL")


@dataclass
class Kind:
    """A table. Each has `n`, a number by which rows are chosen. `keys`: columns with values that do
    not come twice often."""

    name: str
    columns: dict[str, str]
    keys: tuple[str, ...] = ()
    after: str = ""  # further statements
    partitioned: str = ""
    only_inserts: bool = False
    long: frozenset[str] = frozenset()

    def create(self) -> str:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in {**self.columns, "n": "int"}.items())
        key = f", PRIMARY KEY ({', '.join(self.quoted(self.keys))})" if self.keys else ""
        return f'CREATE TABLE "{self.name}" ({columns}{key}) {self.partitioned}; {self.after}'

    @staticmethod
    def quoted(names: Iterable[str]) -> list[str]:
        return [f'"{name}"' for name in names]

    def value(self, name: str, rnd: random.Random, span: int) -> str:
        choices = LONG_TEXT if name in self.long else VALUES[self.columns[name]]
        if name in self.keys:
            choices = tuple(choice for choice in choices if "{n}" in choice)
        return rnd.choice(choices).format(n=rnd.randrange(1, span))

    def insert(self, rnd: random.Random, span: int = 4000) -> str:
        rows = []
        for _ in range(rnd.randint(1, 4)):
            values = [self.value(name, rnd, span) for name in self.columns]
            rows.append(f"({', '.join([*values, str(rnd.randrange(12))])})")
        names = ", ".join(self.quoted([*self.columns, "n"]))
        return f'INSERT INTO "{self.name}" ({names}) VALUES {", ".join(rows)} ON CONFLICT DO NOTHING'

    def statement(self, rnd: random.Random) -> str:
        choice = 0.0 if self.only_inserts else rnd.random()
        n, others = rnd.randrange(12), [name for name in self.columns if name not in self.keys]
        if choice < 0.42:
            return self.insert(rnd)
        if choice < 0.70 and others:
            names = rnd.sample(others, rnd.randint(1, min(3, len(others))))
            sets = ", ".join(f'"{name}" = {self.value(name, rnd, 4000)}' for name in names)
            return f'UPDATE "{self.name}" SET {sets} WHERE n = {n}'
        if choice < 0.78 and self.keys:
            name = rnd.choice(self.keys)
            row = f'(SELECT min(ctid) FROM "{self.name}" WHERE n = {n})'
            where = f"ctid = {row}" if not self.partitioned else f"n = {n}"
            return f'UPDATE "{self.name}" SET "{name}" = {self.value(name, rnd, 10**6)} WHERE {where}'
        if choice < 0.995:
            return f'DELETE FROM "{self.name}" WHERE n = {n} AND random() < 0.6'
        return f'TRUNCATE "{self.name}"'


def kinds() -> list[Kind]:
    full = 'ALTER TABLE "{0}" REPLICA IDENTITY FULL'
    return [
        Kind("one", {"id": "bigint", "a": "text", "b": "int"}, ("id",)),
        Kind("three", {"region": "int", "code": "text", "day": "date", "a": "numeric(12,2)"}, ("region", "code", "day")),
        Kind("three_mixed", {"u": "uuid", "code": "varchar(40)", "id": "bigint", "a": "text"}, ("u", "code", "id")),
        Kind("texts", {"id": "text", "a": "text", "b": "jsonb"}, ("id",)),
        Kind("uuids", {"id": "uuid", "a": "text", "b": "timestamptz"}, ("id",)),
        Kind("whole", {"id": "bigint", "a": "text", "b": "int"}, ("id",), full.format("whole")),
        Kind("bare", {"a": "text", "b": "int", "c": "bytea"}, (), full.format("bare")),
        Kind(
            "gets_key", {"id": "bigint", "a": "text"}, (),
            "ALTER TABLE gets_key ALTER id SET NOT NULL; CREATE UNIQUE INDEX ON gets_key (id);" + full.format("gets_key"),
        ),
        Kind("only_inserts", {"a": "text", "b": "timestamptz"}, only_inserts=True),
        Kind(
            "parts", {"id": "bigint", "a": "text", "b": "int"}, ("id",),
            "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
            "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
            "PARTITION BY HASH (id)",
        ),
        Kind(
            "toast", {"id": "bigint", "body": "text", "a": "int", "c": "text"}, ("id",),
            "ALTER TABLE toast ALTER body SET STORAGE EXTERNAL", long=frozenset({"body"}),
        ),
        Kind(
            "toast_whole", {"id": "bigint", "body": "text", "a": "int"}, ("id",),
            "ALTER TABLE toast_whole ALTER body SET STORAGE EXTERNAL; " + full.format("toast_whole"),
            long=frozenset({"body"}),
        ),
        Kind("enums", {"id": "bigint", "a": "mood", "b": "price", "c": "bool"}, ("id",)),
        Kind("arrays", {"id": "bigint", "a": "int[]", "b": "text[]"}, ("id",)),
        Kind("spans", {"id": "bigint", "a": "interval", "b": "time", "c": "timestamp", "d": "date"}, ("id",)),
        Kind("numbers", {"id": "numeric", "a": "numeric(12,2)", "b": "float8", "c": "real"}, ("id",)),
        Kind("times", {"id": "timestamptz", "a": "timestamptz", "b": "date"}, ("id",)),
        Kind(
            "indexed", {"id": "bigint", "code": "int", "a": "text"}, (),
            "ALTER TABLE indexed ALTER code SET NOT NULL; CREATE UNIQUE INDEX by_code ON indexed (code);"
            "ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_code",
        ),
        Kind("Odd Names", {"Id": "bigint", "a b": "text", "c.d": "int", "_special": "text"}, ("Id",)),
        Kind("others", {"id": "bigint", "a": "int4range", "b": "inet", "c": "bit varying"}, ("id",)),
    ]  # fmt: skip


@dataclass(frozen=True)
class Alter:
    """An ALTER TABLE (`sql` behind the name); `columns`: what changes of the columns, None: it is
    dropped."""

    table: str
    sql: str
    columns: Mapping[str, str | None] = field(default_factory=dict)
    keys: tuple[str, ...] = ()  # if they change


ALTERS = (
    Alter("one", "ADD extra int DEFAULT 7", {"extra": "int"}),
    Alter("three", "ADD extra text", {"extra": "text"}),
    Alter("texts", "DROP a", {"a": None}),
    Alter("uuids", "RENAME a TO renamed", {"a": None, "renamed": "text"}),
    Alter("whole", "ALTER b TYPE bigint", {"b": "bigint"}),
    Alter("bare", "ADD extra numeric(12,2) DEFAULT 1.50", {"extra": "numeric(12,2)"}),
    Alter("parts", "ADD extra text DEFAULT 'é'", {"extra": "text"}),
    Alter("toast", "DROP a, ADD a int DEFAULT 5", {"a": "int"}),
    Alter("arrays", "ADD extra text[] DEFAULT '{{\"x,y\"}}', DROP a", {"a": None, "extra": "text[]"}),
    Alter("enums", "ADD feels mood DEFAULT 'it''s ok'", {"feels": "mood"}),
    Alter("three_mixed", "RENAME code TO label", {"code": None, "label": "varchar(40)"}, ("u", "label", "id")),
    Alter("gets_key", "ADD PRIMARY KEY (id)", keys=("id",)),
)


@dataclass
class Source:
    sql: asyncpg.Connection
    database: Database
    slot: str
    gateway: GatewayProcess
    topics: Topics
    kinds: list[Kind]
    made: Counter[str] = field(default_factory=Counter)
    is_over: bool = False

    async def connect(self) -> asyncpg.Connection:
        sql = await self.database.connect()
        await sql.execute("SET TimeZone = 'UTC'; SET lock_timeout = '4s'")
        return sql

    async def work(self, number: int) -> None:
        sql, rnd = await self.connect(), random.Random(f"{SEED} {number}")
        while not self.is_over:
            try:
                await self._transaction(sql, rnd, f"{self.slot} {number} {self.made.total()}")
            except LOST:
                await sql.execute("ROLLBACK")
                self.made["lost"] += 1
            await asyncio.sleep(rnd.random() * 0.15)
        await sql.close()

    async def _transaction(self, sql: asyncpg.Connection, rnd: random.Random, gid: str) -> None:
        await sql.execute("BEGIN")
        for _ in range(rnd.randint(1, 4)):
            await sql.execute(rnd.choice(self.kinds).statement(rnd))
        shape = rnd.choices(["plain", "streamed", "prepared", "savepoint"], [70, 8, 12, 10])[0]
        if shape == "streamed":  # more than logical_decoding_work_mem, sent while it is open
            table, base = self.kinds[0], rnd.randrange(10**6, 10**9)
            await sql.execute(
                f"INSERT INTO {table.name} (id, a, n) SELECT {base} + i, repeat('s', 300), 99 FROM generate_series(1, 400) i;"
                f"DELETE FROM {table.name} WHERE id BETWEEN {base} + 20 AND {base} + 400"
            )
        elif shape == "savepoint":
            await sql.execute("SAVEPOINT s")
            await sql.execute(rnd.choice(self.kinds).statement(rnd))
            await sql.execute("ROLLBACK TO s")
            await sql.execute(rnd.choice(self.kinds).statement(rnd))
        if shape == "prepared":
            await sql.execute(f"PREPARE TRANSACTION '{gid}'")
            await asyncio.sleep(rnd.random())
            await sql.execute(f"{rnd.choice(['COMMIT'] * 4 + ['ROLLBACK'])} PREPARED '{gid}'")
        else:
            await sql.execute("COMMIT")
        self.made[shape] += 1

    async def alter(self, change: Alter, rnd: random.Random) -> None:
        """In one transaction with a row that is inserted behind it, so that the stream tells of
        it."""
        kind = next(kind for kind in self.kinds if kind.name == change.table)
        columns, keys = dict(kind.columns), change.keys or kind.keys
        for name, type_ in change.columns.items():
            if type_ is None:
                del columns[name]
            else:
                columns[name] = type_
        new = Kind(kind.name, columns, keys, long=kind.long)
        while True:
            try:
                await self.sql.execute(
                    f"BEGIN; ALTER TABLE \"{kind.name}\" {change.sql.format()}; SELECT audit.note_anew('{kind.name}')"
                )
                while (await self.sql.execute(new.insert(rnd, 10**8))).endswith(" 0"):
                    pass
                await self.sql.execute("COMMIT")
                break
            except LOST:
                await self.sql.execute("ROLLBACK")
        kind.columns, kind.keys = columns, keys
        self.made["altered"] += 1


@asynccontextmanager
async def open_source(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path
) -> AsyncIterator[Source]:
    sql, tables = await database.connect(), kinds()
    await sql.execute("SET TimeZone = 'UTC'; SET lock_timeout = '20s'")
    await sql.execute(TYPES)
    for kind in tables:
        await sql.execute(kind.create())
    names = ", ".join(f'"{kind.name}"' for kind in tables)
    await sql.execute(f"CREATE PUBLICATION walgate FOR TABLE {names} WITH (publish_via_partition_root = true)")
    for kind in tables:
        await sql.execute(TRIGGERS.format(kind.name))
    settings = {
        "source__dsn": database.dsn, "source__slot": prefix, "source__publications": "walgate",
        "source__two_phase": True, "kafka__bootstrap_servers": kafka.bootstrap_servers, "kafka__prefix": prefix,
        "kafka__replication_factor": 1, "registry__url": registry.url,
    }  # fmt: skip
    gateway = GatewayProcess(folder / "gateway.log", settings)
    try:
        await gateway.streaming()
        topics = Topics(kafka.bootstrap_servers, registry.url, prefix)
        yield Source(sql, database, prefix, gateway, topics, tables)
    except BaseException:
        print(gateway.log_tail(), errors_of(folder)[-3000:] if (folder / "errors.txt").exists() else "", sep="\n")
        raise
    finally:
        await gateway.end()


async def play(source: Source, path: Path) -> None:
    """Work, ALTERs and kills, for SECONDS or until the mirror was killed often enough."""
    loop, rnd = asyncio.get_running_loop(), random.Random(SEED)
    began = loop.time()
    working = [asyncio.create_task(source.work(number)) for number in range(SESSIONS)]

    async def at(share: float) -> None:
        await asyncio.sleep(max(0.0, began + share * SECONDS - loop.time()))
        for task in working:
            if task.done():
                task.result()

    async def alters() -> None:
        for number, change in enumerate(ALTERS, 1):
            await at(number / (len(ALTERS) + 1))
            await source.alter(change, rnd)

    async def kills_of_gateway() -> None:
        for share in GATEWAY_KILLS:
            await at(share)
            await source.gateway.kill()
            await source.gateway.streaming()

    async def kills_of_mirror() -> None:
        """Each some time behind its second batch, so that it falls into a batch, a merge, or
        between."""
        for number in range(MIRROR_KILLS + 1):
            process = await start("mirror", source.topics, path, "--merge-every", "5", "--max-changes", "400")
            assert process.stdout is not None
            batches = 0
            async for line in process.stdout:
                batches += b'"batch"' in line
                if batches == 2:
                    break
            assert batches == 2, errors_of(path.parent)
            reading = asyncio.create_task(lines(process))
            await (asyncio.sleep(rnd.random() * 8) if number < MIRROR_KILLS else at(1.0))
            os.killpg(process.pid, signal.SIGKILL if number < MIRROR_KILLS else signal.SIGTERM)
            await reading
            await process.wait()

    try:
        await asyncio.gather(alters(), kills_of_gateway(), kills_of_mirror())
    finally:
        source.is_over = True
    await asyncio.gather(*working)
    await until_confirmed(source.sql, source.slot)


TextRow = tuple[str | None, ...]


@dataclass
class State:
    """Columns and types of a table, and its rows as text."""

    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    rows: Counter[TextRow] = field(default_factory=Counter)


def commits_of(source: Source) -> tuple[dict[int, int], Counter[str]]:
    """xid -> commit LSN, as markers tell; what was sent again behind a kill says the same."""
    topics = source.topics
    delivered = Delivered(topics.bootstrap_servers, topics.registry_url, topics.prefix, lambda _: True)
    delivered.close()
    markers = [record.event for record in delivered.records if record.topic == transaction_topic(topics.prefix)]
    found: dict[int, int] = {}
    for marker in markers:
        if marker["kind"] in ("COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED"):
            assert found.setdefault(marker["xid"], marker["marker_lsn"]) == marker["marker_lsn"], marker
    return found, Counter(marker["kind"] for marker in markers)


def states_at(log: list[Any], commit_lsns: Mapping[int, int], wanted: set[int]) -> dict[int, dict[str, State]]:
    """All tables behind each of the wanted commits."""
    state: dict[str, State] = {}
    transactions: dict[int, list[Any]] = {}
    for entry in log:  # all of them are committed; those from before the stream are the first
        transactions.setdefault(commit_lsns.get(entry["xid"], 0), []).append(entry)
    assert all(entry["op"] == "COLUMNS" for entry in transactions[0]), "a transaction has no marker"
    found = {}
    for commit_lsn in sorted(transactions):
        for entry in transactions[commit_lsn]:
            if entry["op"] == "COLUMNS":
                state[entry["relation"]] = State(tuple(entry["names"]), tuple(entry["types"]))
            rows = state[entry["relation"]].rows
            if entry["op"] == "TRUNCATE":
                rows.clear()
            if entry["old_row"] is not None:
                old = tuple(entry["old_row"])
                assert rows[old] > 0, (commit_lsn, entry)
                rows[old] -= 1
            if entry["new_row"] is not None:
                rows[tuple(entry["new_row"])] += 1
        if commit_lsn in wanted:
            found[commit_lsn] = {name: State(one.names, one.types, +one.rows) for name, one in state.items()}
    return found


def rows_in(frame: Any) -> tuple[list[str], Counter[TextRow]]:
    """Columns and rows of a table in a version; of a log: what its entries add up to."""
    special = next(field.name for field in frame.schema if field.dataType.typeName() == "map")
    of_log = is_log(frame.columns)
    names = [name for name in frame.columns if name != special and not (of_log and name in LOG_COLUMNS)]
    table = frame.toArrow()
    rows = list(text_rows(table, names, special))
    if not of_log:
        return names, Counter(rows)
    held: Counter[TextRow] = Counter()
    places = zip(*(table[name].to_pylist() for name in ("_commit_lsn", "_ordinal", "_op")), strict=True)
    for (_, _, op), row in sorted(zip(places, rows, strict=True), key=lambda entry: entry[0][:2]):
        if op == "TRUNCATE":
            held.clear()
        else:
            held[row] += -1 if op in OUT else 1
    assert all(count >= 0 for count in held.values())
    return names, +held


class Texts:
    """PostgreSQL's own form of each text of a type: what differs only in form is equal."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    async def learn(self, sql: asyncpg.Connection, columns: Iterable[tuple[str, Iterable[str | None]]]) -> None:
        wanted: dict[str, set[str]] = {}
        for type_, texts in columns:
            known = self._known.setdefault(type_, {})
            wanted.setdefault(type_, set()).update(text for text in texts if text is not None and text not in known)
        for type_, some in wanted.items():
            if some:
                given = sorted(some)
                made = await sql.fetchval(
                    f"SELECT array_agg(text::{type_}::text ORDER BY place) FROM unnest($1::text[]) "
                    "WITH ORDINALITY AS u (text, place)",
                    given,
                )
                self._known[type_].update(zip(given, made, strict=True))

    def row(self, types: tuple[str, ...], row: TextRow) -> TextRow:
        known = [self._known[type_] for type_ in types]
        return tuple(None if text is None else one[text] for one, text in zip(known, row, strict=True))


async def check(
    sql: asyncpg.Connection, texts: Texts, expected: Mapping[str, State], found: Mapping[str, Any], place: str
) -> None:
    """`found`: name -> columns and rows."""
    for name, state in expected.items():
        columns, rows = found.get(f"public.{name}", (list(state.names), Counter[TextRow]()))
        place_of = [columns.index(column) for column in state.names] if set(columns) == set(state.names) else None
        assert place_of is not None, (place, name, columns, state.names)
        ordered = Counter({tuple(row[at] for at in place_of): count for row, count in rows.items()})
        for some in (ordered, state.rows):
            await texts.learn(sql, [(t, {row[at] for row in some}) for at, t in enumerate(state.types)])
        here, there = (
            Counter({texts.row(state.types, row): count for row, count in some.items()})
            for some in (ordered, state.rows)
        )
        assert here == there, (place, name, "too many", here - there, "missing", there - here)


async def test_twenty_tables_equal_the_audit_log_at_the_end_and_at_commits_between(
    spark: SparkSession, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    print(f"WALGATE_TEST_SEED={SEED}")
    path, texts = tmp_path / "mirror", Texts()
    async with open_source(database, kafka, registry, topic_prefix, tmp_path) as source:
        sql = source.sql
        await play(source, path)
        log = await sql.fetch("SELECT * FROM audit.log ORDER BY number")
        by_xid, markers = await asyncio.to_thread(commits_of, source)
        known = sorted({by_xid[entry["xid"]] for entry in log if entry["xid"] in by_xid})
        process = await start("mirror", source.topics, path, "--until-lsn", format_lsn(known[-1]))
        await lines(process)
        assert await process.wait() == 0, errors_of(tmp_path)
    print(source.made, dict(markers), f"{len(log)} entries, {len(known)} commits")
    assert source.made["altered"] == len(ALTERS) and source.gateway.start_count == 1 + len(GATEWAY_KILLS)
    assert markers["STREAM_COMMIT"] > 5 and markers["COMMIT_PREPARED"] > 5 and markers["COMMIT"] > 200
    assert changes.appended_lsn(spark, str(path)) >= known[-1]
    chosen = sorted(random.Random(SEED).sample(known[len(known) // 20 : -1], VERSIONS))
    expected = states_at(log, by_xid, {*chosen, known[-1]})
    last = expected[known[-1]]
    assert len(last) == len(source.kinds) == 20 and all(state.rows for state in last.values())
    for name, state in last.items():  # the log itself is right
        row = ", ".join(f't."{column}"::text' for column in state.names)
        there = Counter(tuple(found[0]) for found in await sql.fetch(f'SELECT ARRAY[{row}] FROM "{name}" t'))
        assert there == state.rows, name
    dumped = await asyncio.to_thread(newest, path)
    at_end = {table.name: (table.columns, Counter(table.rows())) for table in dumped}
    await check(sql, texts, last, at_end, "at the end")

    def read(commit_lsn: int) -> dict[str, Any]:
        version = versions.read(cloned(spark), str(path), at=commit_lsn)
        assert version.commit_lsn == commit_lsn
        return {name: rows_in(frame) for name, frame in version.items()}

    with ThreadPoolExecutor(READERS) as readers:
        reading = {lsn: asyncio.get_running_loop().run_in_executor(readers, read, lsn) for lsn in chosen}
        for lsn in chosen:
            await check(sql, texts, expected[lsn], await reading[lsn], f"at {format_lsn(lsn)}, seed {SEED}")
