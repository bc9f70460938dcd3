"""Column rules of a running gateway: what is in its topics, in both dialects, while tables are read
and change."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.debezium.encoded import Record
from tests.debezium.scene import Reader, end_load
from tests.snapshot.test_holes import held_commit
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

HASH_KEY: Final = "the key of all hashes"
RULES: Final = [
    {"pattern": r"public\.people\.secret", "action": "drop"},
    {"pattern": r"public\.people\.phone", "action": "null"},
    {"pattern": r".*\.mail", "action": "hash", "in_key": True},
    {"pattern": r"public\.people\.note", "action": "truncate", "length": 4},
]
MARK: Final = "Zz9"
"""In every value that must not leave whole."""
ROWS: Final = 3000
SETUP: Final = f"""
create table people (id int primary key, mail text, phone text, note text, secret text, n int);
create table logins (mail text primary key, n int);
insert into people select n, 'mail{MARK}' || n, 'phone{MARK}', 'note{MARK}' || n, 'secret{MARK}', 0
    from generate_series(1, {ROWS}) n;
insert into logins select 'mail{MARK}' || n, 0 from generate_series(1, {ROWS}) n;
create publication walgate for all tables;
"""


def hashed(text: str) -> str:
    return hmac.new(HASH_KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


def settings_of(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, dialect: str, rules: str
) -> dict[str, str]:
    """One partition, so that records come in order."""
    return {
        "source__dsn": database.dsn,
        "source__slot": prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__dialect": dialect,
        "kafka__partitions": "1",
        "registry__url": registry.url,
        "columns__rules": rules,
        "columns__hash_key": HASH_KEY,
    }


@pytest.mark.parametrize("dialect", ["walgate", "debezium"])
async def test_what_a_rule_replaces_is_in_no_record_and_the_rest_is_there(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, dialect: str
) -> None:
    sql = await database.connect()
    await sql.execute(SETUP)
    settings = settings_of(database, kafka, registry, topic_prefix, dialect, json.dumps(RULES)) | {
        "snapshot__mode": "initial",
        "snapshot__chunk_bytes": "16384",
    }
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    await gateway.streaming()
    other = await database.connect()
    load = asyncio.create_task(change(other, random.Random(1)))
    await gateway.logged('"snapshot_done"', timeout_s=90)
    await end_load(load, other)
    await sql.execute("insert into people (id) values (-1)")
    topics = [f"{topic_prefix}.public.{table}" for table in ("people", "logins")]
    is_last: Callable[[Record], bool] = lambda record: record.key == {"id": -1}  # noqa: E731
    records = await Reader(kafka.bootstrap_servers, registry.url, topics).until(is_last)
    assert await gateway.stop() == 0, gateway.log_tail()
    assert len({str(record.value["op"]) for record in records if record.value}) == 4, "rows of every operation"
    for record in records:
        assert MARK not in f"{record.key} {record.value} {record.value_schema} {record.key_schema}"
    assert MARK not in gateway.log()
    people = {
        row["id"]: {
            "id": row["id"],
            "mail": row["mail"] and hashed(row["mail"]),
            "phone": None,
            "note": row["note"] and row["note"][:4],
            "n": row["n"],
        }
        for row in await sql.fetch("select * from people")
    }
    assert left(records, topics[0], "id") == people
    logins = {hashed(mail): {"mail": hashed(mail), "n": n} for mail, n in await sql.fetch("select mail, n from logins")}
    assert left(records, topics[1], "mail") == logins


def left(records: list[Record], topic: str, key: str) -> dict[object, object]:
    """The rows of a reader by key."""
    rows: dict[object, object] = {}
    for record in records:
        if record.topic != topic:
            continue
        assert record.key is not None
        after = None if record.value is None else record.value["after"]
        if after is None:
            rows.pop(record.key[key], None)
        else:
            assert after[key] == record.key[key]
            rows[record.key[key]] = after
    return rows


async def change(sql: asyncpg.Connection, chance: random.Random) -> None:
    """Rows that are being read, until cancelled."""
    new = ROWS
    while True:
        first = chance.randrange(1, ROWS)
        new += 1
        async with sql.transaction():
            await sql.execute("update people set n = n + 1, note = 'new' || note where id between $1 and $1 + 9", first)
            await sql.execute(f"update people set mail = 'other{MARK}' || id, phone = 'x{MARK}' where id = $1", first)
            await sql.execute("delete from people where id = $1", chance.randrange(1, ROWS))
            await sql.execute(
                f"insert into people values ($1, 'mail{MARK}' || $1::int, 'p{MARK}', 'note{MARK}', 's{MARK}')", new
            )
            await sql.execute(f"update logins set n = n + 1 where mail = 'mail{MARK}' || $1::int", first)
            await sql.execute(
                f"update logins set mail = 'new{MARK}' || mail where mail = 'mail{MARK}' || $1::int", first + 1
            )
            await sql.execute(f"delete from logins where mail = 'mail{MARK}' || $1::int", chance.randrange(1, ROWS))
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("dialect", [pytest.param("walgate", marks=pytest.mark.long), "debezium"])
async def test_a_column_that_leaves_its_rule_by_a_new_name_stops_the_gateway_until_the_rule_follows(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, dialect: str
) -> None:
    """While it runs and after each restart. The last rename is of the table, too."""
    sql = await database.connect()
    await sql.execute("create table people (id int primary key, mail text, secret text)")
    await sql.execute("create publication walgate for all tables")
    patterns = {"secret": [r"public\.people\.secret"], "mail": [r"public\.people\.mail"]}

    def rules() -> str:
        return json.dumps(
            [
                {"pattern": "|".join(patterns["secret"]), "action": "drop"},
                {"pattern": "|".join(patterns["mail"]), "action": "hash"},
            ]
        )

    settings = settings_of(database, kafka, registry, topic_prefix, dialect, rules())
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)

    async def stops(said: str) -> None:
        assert await gateway.wait(60) == 78, gateway.log_tail()
        assert said in gateway.log_tail(1)

    async def row(number: int, table: str = "people") -> None:
        await sql.execute(f"insert into {table} values ($1, 'mail{MARK}', 'secret{MARK}')", number)

    async def arrives(number: int, table: str = "people") -> list[Record]:
        reader = Reader(kafka.bootstrap_servers, registry.url, [f"{topic_prefix}.public.{table}"])
        return await reader.until(lambda record: record.key == {"id": number})

    await gateway.streaming()
    await row(1)
    await arrives(1)
    await sql.execute("alter table people rename secret to hidden")
    await row(2)
    await stops("column hidden was public.people.secret")
    gateway.start()
    await stops("extend the pattern, so that it matches public.people.hidden too")
    patterns["secret"].append(r"public\.people\.hidden")
    await gateway.streaming(columns__rules=rules())
    await sql.execute("alter table people drop hidden, add note text")
    await sql.execute("insert into people values (3, 'x', 'a new column of no rule')")
    records = await arrives(3)
    assert [record.value and record.value["after"].get("note") for record in records][-1] == "a new column of no rule"
    assert await gateway.stop() == 0, gateway.log_tail()
    await sql.execute("alter table people rename mail to contact; alter table people rename to persons")
    await row(4, "persons")
    for _ in range(2):
        gateway.start(columns__rules=rules())
        await stops("public.persons: column contact was public.people.mail")
    patterns["mail"].append(r"public\.persons\.contact")
    await gateway.streaming(columns__rules=rules())
    records += await arrives(4, "persons")
    assert await gateway.stop() == 0, gateway.log_tail()
    assert records[-1].value is not None and records[-1].value["after"]["contact"] == hashed(f"mail{MARK}")
    for record in records:
        assert f"mail{MARK}" not in f"{record.key} {record.value} {record.value_schema}"
    assert f"secret{MARK}" not in f"{[record.value for record in records if record.topic.endswith('people')]}"


@pytest.mark.parametrize("dialect", ["walgate", pytest.param("debezium", marks=pytest.mark.long)])
async def test_a_column_that_a_rename_brings_under_a_rule_was_not_under_it_before(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, dialect: str
) -> None:
    """The rows before the rename come again after the schema of those that follow it. A column that
    leaves its rule and comes back, while the gateway is down, still stops it."""
    sql = await database.connect()
    await sql.execute("create table people (id int primary key, mail text); create publication walgate for all tables")
    rules = json.dumps([{"pattern": r"public\.people\.email", "action": "hash"}])
    settings = settings_of(database, kafka, registry, topic_prefix, dialect, rules)
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    await gateway.streaming(failpoints="after_registry_call:raise:2")
    async with sql.transaction():
        await sql.execute("insert into people values (1, 'first')")
        await sql.execute("alter table people rename mail to email")
        await sql.execute("insert into people values (2, 'second')")
    reader = Reader(kafka.bootstrap_servers, registry.url, [f"{topic_prefix}.public.people"])
    records = await reader.until(lambda record: record.key == {"id": 2})
    values = [record.value and record.value["after"] for record in records]
    assert values == [{"id": 1, "mail": "first"}, {"id": 2, "email": hashed("second")}]
    assert await gateway.stop() == 0, gateway.log_tail()
    await sql.execute("alter table people rename email to contact; insert into people values (3, 'third')")
    await sql.execute("alter table people rename contact to email")
    gateway.start()
    assert await gateway.wait(60) == 78, gateway.log_tail()
    assert "column contact was public.people.email" in gateway.log_tail(1)


SWAPS: Final = (
    ("drop note", "rename mail to note", "add mail text"),  # the names stay in their places
    ("rename mail to away", "rename note to mail", "rename away to note"),
    ("rename mail to contact", "add mail text"),
)


@pytest.mark.parametrize("shape", [pytest.param("streamed", marks=pytest.mark.long), "prepared"])
async def test_a_name_that_moves_in_a_transaction_which_has_not_committed_uncovers_nothing(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, shape: str
) -> None:
    """Another column has the name of the rule, and other sessions do not see that yet. What is
    prepared is streamed, too."""
    sql, other = await database.connect(), await database.connect()
    await sql.execute(SETUP)
    await sql.execute("alter table people drop phone, drop secret, drop note, drop n, drop mail")
    await sql.execute(f"alter table people add note text, add mail text default 'mail{MARK}'")
    rules = json.dumps([{"pattern": r"public\.people\.mail", "action": "hash"}])
    settings = settings_of(database, kafka, registry, topic_prefix, "walgate", rules)
    gateway = GatewayProcess(tmp_path / "gateway.log", settings | {"source__two_phase": "true"})
    topics = [f"{topic_prefix}.public.{table}" for table in ("people", "logins")]
    arrived = 0

    async def mark() -> None:
        nonlocal arrived
        arrived += 1
        await other.execute(f"insert into logins values ('{arrived}', {arrived})")

    async def nothing_is_uncovered() -> None:
        """What was sent before the last mark is looked at."""
        is_last: Callable[[Record], bool] = lambda record: record.key == {"mail": str(arrived)}  # noqa: E731
        for record in await Reader(kafka.bootstrap_servers, registry.url, topics).until(is_last):
            assert MARK not in str(record.value), record.value

    async def begin(changes: tuple[str, ...], number: int) -> None:
        await gateway.streaming()
        await other.execute("insert into people values (-$1::int, 'note', 'mail')", number)
        await mark()
        await nothing_is_uncovered()
        gateway.signal(signal.SIGSTOP)  # to receive the next mark together with what follows it
        await mark()
        await sql.execute("begin;" + ";".join(f"alter table people {change}" for change in changes))
        await sql.execute("update people set id = id + 100000 where id > 0")
        if shape == "prepared":
            await sql.execute("prepare transaction 'swap'")
        gateway.signal(signal.SIGCONT)
        await gateway.logged("may have renamed columns of public.people", times=number)
        await nothing_is_uncovered()

    for number, changes in enumerate(SWAPS, 1):
        await begin(changes, number)
        if number < len(SWAPS):
            await sql.execute("rollback" if shape == "streamed" else "rollback prepared 'swap'")
            await mark()
            await nothing_is_uncovered()
            assert await gateway.stop() == 0, gateway.log_tail()
    await sql.execute("commit" if shape == "streamed" else "commit prepared 'swap'")
    assert await gateway.wait(60) == 78, gateway.log_tail()
    assert "column contact was public.people.mail" in gateway.log_tail(1)
    await gateway.streaming(columns__rules=rules.replace("mail", "(mail|contact)"))
    await mark()
    await nothing_is_uncovered()
    assert await gateway.stop() == 0, gateway.log_tail()


async def test_a_commit_that_waits_for_a_standby_uncovers_nothing(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The gateway has received it, and other sessions still see the table as it was."""
    sql = await database.connect()
    await sql.execute(
        "create table people (id int primary key, note text, mail text); create publication walgate for all tables"
    )
    rules = json.dumps([{"pattern": r"public\.people\.mail", "action": "hash"}])
    settings = settings_of(database, kafka, registry, topic_prefix, "walgate", rules)
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    await gateway.streaming()

    async def arrived(number: int) -> list[Record]:
        reader = Reader(kafka.bootstrap_servers, registry.url, [f"{topic_prefix}.public.people"])
        return await reader.until(lambda record: record.key == {"id": number})

    await sql.execute(f"insert into people values (0, 'note', '{MARK}')")
    await arrived(0)
    values = f"'{MARK}', '{MARK}'"
    alter = ";".join(f"alter table people {change}" for change in SWAPS[0])
    async with held_commit(database, f"begin; {alter}; insert into people values (1, {values}); commit"):
        await gateway.logged("other sessions do not see that yet")
    assert await gateway.wait(60) == 78, gateway.log_tail()
    assert "column note was public.people.mail" in gateway.log_tail(1)
    await gateway.streaming(columns__rules=rules.replace("mail", "(mail|note)"))
    await sql.execute(f"insert into people values (2, {values})")
    records = await arrived(2)
    assert [record.key for record in records] == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert MARK not in str([record.value for record in records])
    assert await gateway.stop() == 0, gateway.log_tail()
