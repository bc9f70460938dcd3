"""A table is known by its true name, whatever name its topic has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.sql import SparkSession

from gateway.cli.tail.commands import tail_records
from gateway.cli.tail.filters import MessageFilter
from gateway.config.kafka import KafkaSettings
from gateway.config.settings import RegistrySettings
from gateway.errors import StopForOperator
from gateway.local.ports import HOST
from schemas.topic_names import message_topic, topic_names, transaction_topic, value_subject
from spark_consumer.changelog.writer import Changelog
from spark_consumer.errors import MalformedRecord, SourceRefused, SourceUnavailable
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.reader.topics import schemas_of_table, table_of_topic
from spark_consumer.reader.transactions import TransactionReader
from spark_consumer.source.options import parse_options
from spark_consumer.source.rows import decode
from spark_consumer.source.table_columns import table_frame
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Row, Table, relation
from tests.support import stock_registry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def fill(feeder: Feeder) -> dict[str, str]:
    """One transaction with a row in each of three tables; table -> topic."""
    names = {
        "public.plain": topic_names(feeder.prefix, "public", "plain")[0],
        "public.заказы клиентов": topic_names(feeder.prefix, "public", "заказы клиентов")[1],
        "public.chosen": f"{feeder.prefix}.chosen-name",
    }
    transaction = feeder.begin()
    for number, (name, topic) in enumerate(names.items()):
        table = feeder.table(relation(name.partition(".")[2], {"id": INT8}, ("id",)), topic)
        transaction.insert(table, {"id": number})
    transaction.change(None, "MESSAGE")
    transaction.commit()
    feeder.kafka_commit()
    return names


def test_tables_are_found_by_their_true_names(spark: SparkSession, feeder: Feeder) -> None:
    names = fill(feeder)
    options = feeder.options()
    raw = spark.read.format("walgate").options(**options).load()
    assert {(row["table"], row["topic"]) for row in raw.select("table", "topic").collect()} == set(names.items())
    (transaction,) = spark.read.format("walgate-transactions").options(**options).load().collect()
    assert transaction["tables"] == sorted(names)
    some = spark.read.format("walgate").options(**options, tables="public.chosen,public.plain").load()
    assert some.count() == 2
    for number, table in enumerate(names):
        typed = spark.read.format("walgate").options(**options, table=table).load()
        assert [row["after"]["id"] for row in typed.collect()] == [number]
        assert [row["after"]["id"] for row in decode(raw, table, options).collect()] == [number]
    with pytest.raises(Exception, match=r"(?s)SourceUnavailable.*no schema of public\.absent"):
        spark.read.format("walgate").options(**options, table="public.absent").load()


async def test_a_reader_without_spark_tells_the_true_name_too(feeder: Feeder) -> None:
    names = await asyncio.to_thread(fill, feeder)
    async with TransactionReader(feeder.bootstrap_servers, feeder.registry_url, prefix=feeder.prefix) as reader:
        transaction = await anext(aiter(reader))
        tables = [change.table async for change in transaction.changes()]
    assert tables == [*map(TableName.parse, ("public.plain", "public.заказы клиентов", "public.chosen")), None]
    assert [str(table) for table in tables if table] == list(names)


async def test_a_reader_names_a_topic_that_was_deleted(feeder: Feeder) -> None:
    names = await asyncio.to_thread(fill, feeder)
    admin = AdminClient({"bootstrap.servers": feeder.bootstrap_servers})
    deleted = admin.delete_topics([names["public.chosen"]], operation_timeout=30)
    await asyncio.to_thread(deleted[names["public.chosen"]].result)
    servers = feeder.bootstrap_servers, feeder.registry_url
    async with TransactionReader(*servers, prefix=feeder.prefix, no_progress_s=1) as reader:
        transaction = await anext(aiter(reader))
        with pytest.raises(SourceUnavailable, match=r"no topic .*\.chosen-name"):
            await anext(transaction.changes())


def test_a_schema_of_another_table_is_refused(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    """A registry that lost schemas has given the id to another table."""
    topic = topic_names(feeder.prefix, "public", "read")[0]
    table = feeder.table(relation("other", {"id": INT8}, ("id",)), topic)
    transaction = feeder.begin()
    transaction.insert(table, {"id": 1})
    transaction.commit()
    feeder.kafka_commit()

    async def read() -> None:
        async with TransactionReader(feeder.bootstrap_servers, feeder.registry_url, prefix=feeder.prefix) as reader:
            async for _ in (await anext(aiter(reader))).changes():
                pass

    async def tail() -> None:
        kafka = KafkaSettings(bootstrap_servers=feeder.bootstrap_servers, prefix=feeder.prefix)
        registry, all_of = RegistrySettings(url=feeder.registry_url), MessageFilter([], [])
        await tail_records(kafka, registry, all_of, as_json=True, from_beginning=True, limit=None, seconds=30)

    told = rf"public\.read.* schema {table.schema_id}, which is that of public\.other"
    with pytest.raises(MalformedRecord, match=told):
        asyncio.run(read())
    with pytest.raises(StopForOperator, match=told):
        asyncio.run(tail())
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))
    raw = spark.read.format("walgate").options(**feeder.options()).load()
    for output in (Changelog(str(tmp_path / "log"), "parquet", schemas), AppendingMirror(str(tmp_path), schemas)):
        with pytest.raises(MalformedRecord, match=told):
            output.apply(raw, 0)


def test_topics_and_tables_lead_to_each_other(feeder: Feeder) -> None:
    names = fill(feeder)
    registry = Registry({"url": feeder.registry_url})
    for name, topic in names.items():
        assert table_of_topic(registry, feeder.prefix, topic) == TableName.parse(name)
        schemas = schemas_of_table(registry, feeder.prefix, TableName.parse(name))
        assert list(schemas) == [registry.latest(value_subject(topic))[0]]
    for topic in (transaction_topic(feeder.prefix), message_topic(feeder.prefix)):
        assert table_of_topic(registry, feeder.prefix, topic) is None
    assert registry.find_schema(2**31 - 1) is None
    with pytest.raises(SourceUnavailable, match="subject"):
        table_of_topic(registry, feeder.prefix, f"{feeder.prefix}.nobody-knows")
    with pytest.raises(SourceUnavailable):
        schemas_of_table(
            Registry({"url": "http://127.0.0.1:1", "max.retries": "0"}), feeder.prefix, TableName("a", "b")
        )


@contextmanager
def watched(url: str, denied: Collection[str]) -> Iterator[tuple[Registry, list[str]]]:
    """The registry for a user who may not read some subjects, and the paths of the requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, content = 403, b"{}"
            if not any(subject in self.path for subject in denied):
                try:
                    with urlopen(f"{url}{self.path}") as answer:
                        status, content = 200, answer.read()
                except HTTPError as error:
                    status, content = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield Registry({"url": f"http://{HOST}:{server.server_port}"}), asked
        finally:
            server.shutdown()


def test_a_table_keeps_the_schemas_of_its_earlier_topics(feeder: Feeder) -> None:
    """After it got a name in kafka.topic_names, whose subject begins with the schema of then. A
    table of another prefix has the same name, and other applications use the prefix."""
    old, new = relation("items", {"id": INT8}, ("id",)), relation("items", {"id": INT8, "note": TEXT}, ("id",))
    topic = f"{feeder.prefix}.chosen-name"
    first = feeder.table(old)
    ids = [first.schema_id, feeder.table(new, topic).schema_id]
    prefix, table = feeder.prefix, TableName("public", "items")
    feeder.prefix = f"{prefix}.other"
    other_id = feeder.table(relation("items", {"id": TEXT}, ("id",))).schema_id
    feeder.prefix = prefix
    feeder.table(relation("secret", {"id": INT8}, ("id",)), f"{prefix}.secret")
    foreign = {
        "payments": ("PROTOBUF", 'syntax = "proto3"; message Payment { int32 id = 1; }'),
        "text": ("AVRO", '"string"'),
    }
    with closing(SchemaRegistryClient(stock_registry.settings(feeder.registry_url))) as client:
        for name, (form, text) in foreign.items():
            client.register_schema(value_subject(f"{prefix}.{name}"), Schema(text, form))
    with watched(feeder.registry_url, [f"{prefix}.secret-"]) as (registry, asked):
        schemas = schemas_of_table(registry, prefix, table)
        assert list(schemas) == ids and other_id not in ids
        frame = table_frame(
            parse_options(feeder.options(**{"registry.url": registry.settings["url"]}), streaming=None), table
        )
        assert [column.name for column in frame.schema.field("after").type] == ["id", "note"]
        asked.clear()
        assert schemas_of_table(registry, prefix, table) == schemas
        subjects = {path.split("/")[2] for path in asked if path.startswith("/subjects/")}
        assert subjects == {value_subject(name) for name in (first.topic, topic, f"{prefix}.secret")}
        with pytest.raises(
            SourceRefused, match=r"no schema of public\.secret .* this user may read: .*secret-value: 403"
        ):
            schemas_of_table(registry, prefix, TableName("public", "secret"))
    with watched(feeder.registry_url, ["/subjects?", "--"]) as (registry, _):
        assert list(schemas_of_table(registry, prefix, table)) == ids[:1]


def test_the_newest_schema_is_asked_for_each_time(spark: SparkSession, feeder: Feeder) -> None:
    """An application decodes a table before and after a column is added."""

    def rows() -> list[dict[str, object]]:
        raw = spark.read.format("walgate").options(**feeder.options()).load()
        changes = decode(raw, "public.growing", feeder.options()).orderBy("commit_lsn")
        return [row["after"].asDict() for row in changes.collect()]

    def insert(table: Table, row: Row) -> None:
        transaction = feeder.begin()
        transaction.insert(table, row)
        transaction.commit()
        feeder.kafka_commit()

    first = feeder.table(relation("growing", {"id": INT8}, ("id",)))
    registry, subject = Registry({"url": feeder.registry_url}), value_subject(first.topic)
    insert(first, {"id": 1})
    assert (registry.latest(subject)[0], rows()) == (first.schema_id, [{"id": 1}])
    second = feeder.alter(first, relation("growing", {"id": INT8, "note": TEXT}, ("id",)))
    insert(second, {"id": 2, "note": "new"})
    assert registry.latest(subject)[0] == second.schema_id
    assert rows() == [{"id": 1, "note": None}, {"id": 2, "note": "new"}]


@pytest.mark.long  # 1,100 schemas
def test_a_registry_of_more_than_a_thousand_subjects_is_read_to_its_end(feeder: Feeder) -> None:
    subjects = [f"{feeder.prefix}.t{number}-value" for number in range(1100)]
    with (
        closing(SchemaRegistryClient(stock_registry.settings(feeder.registry_url))) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda subject: client.register_schema(subject, Schema('"int"', "AVRO")), subjects))
    expected = sorted([*subjects, value_subject(transaction_topic(feeder.prefix))])
    assert Registry({"url": feeder.registry_url}).subjects(f"{feeder.prefix}.t") == expected
