"""What can go wrong outside of us: each ends the read within a minute, says what it was, and
nothing of it comes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from gateway.local import Kafka, Registry
from spark_consumer.errors import SourceUnavailable
from spark_consumer.reader.registry import Registry as SchemaRegistry
from tests.spark_consumer import feeder as feeders
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT}, ("id",))
OTHERS = relation("others", {"id": INT8, "much": INT8, "more": INT8}, ("id",))


def fill(feeder: Feeder, table: Table, rows: int) -> None:
    transaction = feeder.begin()
    for number in range(len(table.rows), len(table.rows) + rows):
        transaction.insert(table, {name: number if name == "id" else None for name in ("id", "owner")})
    transaction.commit()
    feeder.kafka_commit()


def is_refused(spark: SparkSession, options: dict[str, str], folder: Path, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(Exception, match=message):
        spark.read.format("walgate").options(**options).load().write.parquet(f"{folder}/out")
    assert time.monotonic() - began < 60
    assert not list(folder.glob("out/*.parquet"))


def test_records_that_retention_removed_are_missed(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    accounts = feeder.table(ACCOUNTS)
    fill(feeder, accounts, 30)
    fill(feeder, accounts, 2)
    admin = AdminClient({"bootstrap.servers": feeder.bootstrap_servers, "log_level": 2})
    for future in admin.delete_records([TopicPartition(accounts.topic, 0, 2)]).values():
        future.result(30)
    is_refused(
        spark,
        feeder.options(),
        tmp_path,
        "(?s)RangeExpired.*Retention has removed records.*startingPosition \\(--starting-position\\) to marker:1, ",
    )
    rest = spark.read.format("walgate").options(**feeder.options(startingPosition="marker:1")).load()
    assert rest.count() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": "nobody"}, "(?s)SourceUnavailable.*topic is missing"),
        ({"registry.url": "http://127.0.0.1:1"}, "(?s)SourceUnavailable.*schema registry did not return"),
        (
            {"kafka.bootstrap.servers": "127.0.0.1:1", "noProgressTimeout": "5"},
            "SourceUnavailable: Kafka did not return",
        ),
        ({"table": "public.nothing"}, "(?s)SourceUnavailable.*gateway has written to this prefix"),
    ],
)
def test_a_server_or_topic_that_is_not_there_is_named(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    fill(feeder, feeder.table(ACCOUNTS), 1)
    is_refused(spark, {**feeder.options(), **options}, tmp_path, message)


async def test_a_registry_without_the_path_of_its_api_is_told_with_the_path(registry: Registry) -> None:
    """Apicurio answers with a page."""
    asked = SchemaRegistry({"url": registry.url.removesuffix("/apis/ccompat/v7")})
    with pytest.raises(SourceUnavailable, match=r"(?s): 404\n.*--registry.*/apis/ccompat/v7 for Apicurio"):
        await asyncio.to_thread(asked.find, "cdc.transaction-value")


def cut(value: bytes) -> bytes:
    return value[:-1]


def lengthen(value: bytes) -> bytes:
    return value + b"\0"


def cut_to_framing(value: bytes) -> bytes:
    return value[:3]


@pytest.mark.parametrize("damage", [cut, lengthen, cut_to_framing])
def test_a_record_with_too_few_or_too_many_bytes_is_refused(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes],
) -> None:
    accounts = feeder.table(ACCOUNTS)
    fill(feeder, accounts, 5)
    encode = feeders.encode

    def encode_badly(schema_id: int, parsed: Any, record: Any) -> bytes:
        value = encode(schema_id, parsed, record)
        return damage(value) if schema_id == accounts.schema_id else value

    monkeypatch.setattr(feeders, "encode", encode_badly)
    fill(feeder, accounts, 1)
    place = rf"MalformedRecord: {feeder.prefix}\.public\.accounts\[\d\] offset \d+\b"
    is_refused(spark, feeder.options(table="public.accounts"), tmp_path, place)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_record_of_another_schema_is_refused(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """Named by its framing, or only by its bytes."""
    accounts, others = feeder.table(ACCOUNTS), feeder.table(OTHERS)
    encode = feeders.encode
    named = others.schema_id if is_named else accounts.schema_id

    def encode_badly(schema_id: int, parsed: Any, record: Any) -> bytes:
        if schema_id != accounts.schema_id:
            return encode(schema_id, parsed, record)
        return encode(named, others.parsed, {**record, "after": {"id": 1, "much": 2**40, "more": 2**50}})

    monkeypatch.setattr(feeders, "encode", encode_badly)
    fill(feeder, accounts, 1)
    is_refused(spark, feeder.options(table="public.accounts"), tmp_path, "MalformedRecord")


@pytest.mark.long
async def test_a_broker_that_is_lost_ends_the_query(
    spark: SparkSession, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with Kafka() as kafka:
        feeder = await asyncio.to_thread(Feeder, kafka.bootstrap_servers, registry.url, topic_prefix)
        accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
        await asyncio.to_thread(fill, feeder, accounts, 5)
        frame = spark.readStream.format("walgate").options(**feeder.options(noProgressTimeout="5")).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = await asyncio.to_thread(writer.start, str(tmp_path / "out"))
        await asyncio.to_thread(query.processAllAvailable)
        feeder.producer.flush(30)
        await kafka.close()
        began = time.monotonic()
        with pytest.raises(Exception, match="SourceUnavailable"):
            await asyncio.to_thread(query.awaitTermination, 60)
        assert time.monotonic() - began < 60
