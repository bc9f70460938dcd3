"""The examples run, and do what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import shutil
import sys
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from schemas.relation import ReplicaIdentity
from spark_consumer.source.rows import decode, feed, last_states, versions
from tests.spark_consumer.feeder import INT8, NUMERIC, NUMERIC_12_2, TEXT, Feeder, Table, Transaction, relation
from tests.spark_consumer.queries import run_to_end_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def example(name: str) -> ModuleType:
    path = Path(__file__).parents[3] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_transfers_add_up_to_zero_in_every_batch(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    balances = relation("balances", {"id": INT8, "balance": (NUMERIC, NUMERIC_12_2)}, ("id",), ReplicaIdentity.FULL)
    table = feeder.table(balances)
    opening = feeder.begin()
    for number in range(4):
        opening.insert(table, {"id": number, "balance": Decimal("100.00")})
    opening.commit()
    for turn in range(12):
        transfer = feeder.begin(streamed=turn % 3 == 0)
        amount = Decimal(turn) + Decimal("0.25")
        for key, sign in ((turn % 4, -1), ((turn + 1) % 4, 1)):
            old = table.rows[key,]
            transfer.update(table, old, {**old, "balance": old["balance"] + sign * amount})
        transfer.commit()
        feeder.kafka_commit()
    seen: list[Decimal] = []
    options = feeder.options(table="public.balances", maxChangesPerTrigger="5")
    balanced = example("balanced_transfers")
    run = partial(balanced.watch, spark, options, str(tmp_path))
    run(lambda _, balance: seen.append(balance), availableNow=True).awaitTermination()
    assert len(seen) > 3 and set(seen) == {Decimal(0)}
    gift = feeder.begin()
    gift.update(table, table.rows[0,], {"id": 0, "balance": Decimal("1000.00")})
    gift.commit()
    feeder.kafka_commit()
    with pytest.raises(StreamingQueryException, match="money appeared"):
        run(balanced.report, availableNow=True).awaitTermination(120)


@pytest.mark.parametrize("identity", [ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL])
def test_versions_and_last_states_tell_the_history_of_rows(
    spark: SparkSession, feeder: Feeder, identity: ReplicaIdentity
) -> None:
    people = feeder.table(relation("people", {"id": INT8, "name": TEXT, "note": TEXT}, ("id",), identity))
    first: dict[str, Any] = {"id": 1, "name": "a", "note": "long"}
    steps: list[Any] = [
        lambda t: t.insert(people, first),
        lambda t: t.update(people, first, {**first, "name": "b"}, unchanged=("note",)),
        lambda t: t.insert(people, {"id": 2, "name": "x", "note": None}),
        lambda t: t.delete(people, people.rows[2,]),
        lambda t: t.update(people, people.rows[1,], {"id": 3, "name": "b", "note": "short"}),
    ]
    for step in steps:
        transaction = feeder.begin()
        step(transaction)
        transaction.commit()
    feeder.kafka_commit()
    options = feeder.options(table="public.people")
    found = example("row_versions").row_versions(spark, options, ["id"]).orderBy("id", "valid_from").collect()
    assert [(row.id, row.name, row.note, row.valid_to is None) for row in found] == [
        (1, "a", "long", False), (1, "b", "long", False), (2, "x", None, False), (3, "b", "short", True),
    ]  # fmt: skip
    raw = spark.read.format("walgate").options(**feeder.options()).load()
    last = decode(raw, "public.people", feeder.options()).transform(last_states, ["id"])
    assert [row.asDict() for row in last.collect()] == list(people.rows.values())
    fed = spark.read.format("walgate").options(**options).load().transform(feed, ["id"]).collect()
    assert sorted((row.id, row._op) for row in fed) == [
        (1, "DELETE"), (1, "INSERT"), (1, "UPDATE"), (2, "DELETE"), (2, "INSERT"), (3, "UPDATE"),
    ]  # fmt: skip
    newest = {row.id: row._op for row in sorted(fed, key=lambda row: row._sequence)}
    assert newest == {1: "DELETE", 2: "DELETE", 3: "UPDATE"}


def test_a_truncate_ends_the_versions_before_it(spark: SparkSession) -> None:
    kinds = "op string, commit_lsn long, commit_time timestamp, ordinal long, old_key struct<id:long>, "
    kinds += "before struct<id:long>, after struct<id:long>, unchanged array<string>, special map<string,string>"
    steps = [
        ("INSERT", 1),
        ("INSERT", 2),
        ("DELETE", 2),
        ("TRUNCATE", None),
        ("INSERT", 1),
        ("TRUNCATE", None),
        ("INSERT", 3),
    ]
    moments = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, len(steps) + 1)]
    rows: list[tuple[Any, ...]] = [
        (op, lsn, moments[lsn], 0, (key,) if op == "DELETE" else None, None, (key,) if op == "INSERT" else None, [], {})
        for lsn, (op, key) in enumerate(steps)
    ]
    found = spark.createDataFrame(rows, kinds).transform(versions, ["id"]).orderBy("valid_from").toArrow().to_pylist()
    days = [(row["id"], row["valid_from"].day, row["valid_to"] and row["valid_to"].day) for row in found]
    assert days == [(1, 1, 4), (2, 2, 3), (1, 5, 6), (3, 7, None)]


class History:
    """Random transactions over a few keys, each with what is easily done wrong; `feeder` knows what
    they leave."""

    def __init__(self, feeder: Feeder, table: Table, seed: int) -> None:
        self.feeder, self.table, self.rnd = feeder, table, random.Random(seed)

    def row(self, key: int) -> dict[str, Any]:
        return {"id": key, "name": self.rnd.choice(["a", "b", None]), "note": f"long {self.rnd.random()}"}

    def step(self) -> None:
        """One transaction, streamed or not. Some never end, some are rolled back in part, and some
        are sent again."""
        streamed = self.rnd.random() < 0.4
        rows = {key: dict(row) for (key,), row in self.table.rows.items()}
        transaction = self.feeder.begin(streamed=streamed)
        for _ in range(self.rnd.randint(1, 6)):
            self.change(transaction, rows)
        if streamed:
            kept = dict(rows)
            for _ in range(self.rnd.randint(0, 2)):
                self.change(transaction, rows, subxid=transaction.xid + 100_000)
            transaction.abort_to(transaction.xid + 100_000)
            rows = kept
            transaction.send()
            if self.rnd.random() < 0.2:  # and no more is heard of it
                return
        transaction.commit()

    def change(self, transaction: Transaction, rows: dict[int, dict[str, Any]], subxid: int | None = None) -> None:
        chance, key, other = self.rnd.random(), self.rnd.randint(1, 6), self.rnd.randint(1, 6)
        if chance < 0.04:
            transaction.truncate(self.table, subxid=subxid)
            rows.clear()
        elif key not in rows:
            rows[key] = self.row(key)
            transaction.insert(self.table, dict(rows[key]), subxid)
        elif chance < 0.2:
            transaction.delete(self.table, rows.pop(key), subxid)
        else:
            old = rows.pop(key)
            new = {**self.row(key if other in rows or chance < 0.6 else other), "note": old["note"]}
            unsent: tuple[str, ...] = ("note",)
            if self.rnd.random() < 0.3:
                new, unsent = {**new, "note": None}, ()
            transaction.update(self.table, old, new, subxid, unchanged=unsent)
            rows[new["id"]] = new


def test_plain_spark_keeps_a_table_equal(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    """Killed after a round of a batch, and begun again without its checkpoint, too."""
    people = feeder.table(relation("people", {"id": INT8, "name": TEXT, "note": TEXT}, ("id",)))
    history = History(feeder, people, 5)
    mirror = example("plain_spark").PlainMirror(
        spark,
        feeder.bootstrap_servers,
        feeder.registry_url,
        feeder.prefix,
        "public.people",
        ["id"],
        str(tmp_path / "people"),
    )
    for turn in range(3):
        for _ in range(8):
            history.step()
        feeder.kafka_commit()
        if turn == 1:
            feeder.restart()
            merge_round = mirror.merge_round

            def dies(*words: Any, merge: Any = merge_round, **named: Any) -> None:
                merge(*words, **named)
                raise RuntimeError("killed behind a round")

            mirror.merge_round = dies
            with pytest.raises(StreamingQueryException, match="killed behind a round"):
                mirror.start(availableNow=True).awaitTermination()
            mirror.merge_round = merge_round
        if turn == 2:
            shutil.rmtree(f"{mirror.path}/_checkpoint")
        run_to_end_of(lambda: mirror.start(availableNow=True))
        rows = spark.read.format("delta").load(mirror.path).collect()
        assert {(row.id,): row.asDict() for row in rows} == people.rows
        assert len(rows) == len(people.rows)


def test_a_topic_that_does_not_exist_is_named(feeder: Feeder, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = example("read_topic")
    monkeypatch.setattr(reader, "SERVERS", feeder.bootstrap_servers)
    with pytest.raises(SystemExit, match="nowhere.*UNKNOWN_TOPIC_OR_PART"):
        reader.main(f"{feeder.prefix}.public.nowhere")


WITHOUT_SPARK = """
import asyncio, runpy, sys
sys.modules.update(dict.fromkeys(["numpy", "pandas", "pyarrow", "pyspark", "py4j"]))  # as if they were not installed
follow = runpy.run_path(sys.argv[1])["follow"]
asyncio.run(follow(*sys.argv[2:5], 1))
"""


async def test_transactions_are_followed_without_spark_and_what_belongs_to_it(feeder: Feeder) -> None:
    people = await asyncio.to_thread(feeder.table, relation("people", {"id": INT8}, ("id",)))
    transaction = feeder.begin()
    for number in range(3):
        transaction.insert(people, {"id": number})
    await asyncio.to_thread(transaction.commit)
    await asyncio.to_thread(feeder.kafka_commit)
    program = Path(__file__).parents[3] / "examples" / "follow_transactions.py"
    words = [str(program), feeder.bootstrap_servers, feeder.registry_url, feeder.prefix]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_SPARK, *words, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert output.decode().strip().endswith(f"xid {transaction.xid}: 3 x INSERT public.people")
