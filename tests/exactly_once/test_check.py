"""`walgate check` against real servers: mistakes seeded into them and into the settings are named,
and nothing is changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from gateway.cli.check import run_check
from gateway.cli.check_report import CheckResult, exit_code, render
from gateway.config.settings import Settings
from gateway.local import Registry
from schemas.topic_names import POSITION_TOPIC
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess, ended, environment_of
from tests.support.proxy import ACCOUNT, ProxiedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
LOGIN = {name.removeprefix("kafka__"): value for name, value in ACCOUNT.items()}


class Place:
    """Settings as they must be, of which a test changes some."""

    def __init__(self, database: Database, kafka: ProxiedKafka, registry: Registry, prefix: str) -> None:
        self.database, self.kafka, self.registry, self.prefix = database, kafka, registry, prefix
        self.source: dict[str, Any] = {"dsn": database.dsn, "slot": prefix, "publications": ["p"]}
        self.of_kafka: dict[str, Any] = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "prefix": prefix,
            "retention_ms": -1,
            "replication_factor": 1,
        }
        self.of_registry: dict[str, Any] = {"url": registry.url}

    def settings(self, **change: Any) -> Settings:
        values: dict[str, Any] = {
            "source": {**self.source, **change.get("source", {})},
            "kafka": {**self.of_kafka, **change.get("kafka", {})},
            "registry": {**self.of_registry, **change.get("registry", {})},
            "debezium": change.get("debezium", {}),
        }
        return Settings(**values)

    async def finds(self, outcome: str, *words: str, **change: Any) -> None:
        """Exactly one finding of this outcome, with all of these words."""
        checked = await run_check(self.settings(**change))
        found = [one for one in checked if one.outcome == outcome and words[0] in one.message]
        assert len(found) == 1, render(checked)
        text = f"{found[0].message}\n{found[0].remedy}"
        assert all(word in text for word in words), text


@pytest.fixture
def place(own_database: Database, proxied_kafka: ProxiedKafka, registry: Registry, topic_prefix: str) -> Place:
    return Place(own_database, proxied_kafka, registry, topic_prefix)


def wrong(checked: list[CheckResult]) -> list[CheckResult]:
    return [one for one in checked if one.outcome in ("waits", "stops")]


async def test_what_is_well_is_said_to_be_and_nothing_is_changed(place: Place) -> None:
    sql = await place.database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap_servers})
    state = "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication_tables)"
    before = set(admin.list_topics(timeout=10).topics), tuple(await sql.fetchrow(state))
    settings = {
        "source__dsn": place.database.dsn,
        "source__slot": place.prefix,
        "source__publications": "p",
        "kafka__bootstrap_servers": place.kafka.bootstrap_servers,
        "kafka__prefix": place.prefix,
        "registry__url": place.registry.url,
    }
    done = await ended(("check", "--json"), environment_of(settings))
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"] == 0, told
    said = " ".join(finding["message"] for finding in told["findings"] if finding["outcome"] == "ok")
    for words in (
        "1 table published",
        "accepts replication connections",
        "answers as a schema registry",
        "the first start",
    ):
        assert words in said
    assert (set(admin.list_topics(timeout=10).topics), tuple(await sql.fetchrow(state))) == before


async def test_mistakes_in_postgresql_are_named(place: Place) -> None:
    sql = await place.database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
    role = f"plain_{place.prefix}"
    await place.finds(
        "waits", "publication q does not exist", "CREATE PUBLICATION", source={"publications": ["p", "q"]}
    )
    await place.finds("waits", "publication P does not exist", "did you mean p?", source={"publications": ["P"]})
    elsewhere = place.database.dsn.replace(place.database.name, "postgres")
    await place.finds("waits", "publication p does not exist", "has no publication at all", source={"dsn": elsewhere})
    await place.finds("waits", "connection", source={"dsn": place.database.dsn.replace(place.database.name, "nowhere")})
    closed = {"source": {"dsn": place.database.dsn.replace(place.database.name, "template0")}}
    await place.finds("waits", "accepting connections", 'ALTER DATABASE "template0" ALLOW_CONNECTIONS true', **closed)
    await place.finds("waits", "connection", source={"dsn": "postgresql://u@127.0.0.1:1/d"})
    await sql.execute("CREATE TABLE bare (v text); ALTER PUBLICATION p ADD TABLE bare")
    await place.finds("warning", "without a replica identity", '"public"."bare"', "REPLICA IDENTITY FULL")
    await sql.execute("ALTER PUBLICATION p DROP TABLE bare")
    await sql.execute("SELECT pg_create_physical_replication_slot($1)", place.prefix)
    await place.finds("stops", "is physical, not logical", "another source.slot")
    assert len(wrong(await run_check(place.settings()))) == 1
    await sql.execute("SELECT pg_drop_replication_slot($1)", place.prefix)
    await sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", place.prefix)
    await place.finds("stops", "no resume LSN is stored for it", "source.adopt_slot = true")
    await sql.execute("SELECT pg_drop_replication_slot($1)", place.prefix)
    writer = await place.database.connect()
    await writer.execute("BEGIN; INSERT INTO t VALUES (1)")
    is_old = "SELECT now() - xact_start > interval '5 s' FROM pg_stat_activity WHERE pid = $1"
    while not await sql.fetchval(is_old, writer.get_server_pid()):  # a younger transaction is no news
        await asyncio.sleep(0.1)
    await place.finds("warning", f"open transaction of process {writer.get_server_pid()}", "pg_terminate_backend")
    await writer.execute("ROLLBACK")
    await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{place.database.server.password}'")
    try:
        url = place.database.dsn_of(role)
        checked = await run_check(place.settings(source={"dsn": url}))
        said = {one.message: one.remedy for one in checked}
        assert said.get(f"role {role} lacks the REPLICATION attribute") == f'ALTER ROLE "{role}" REPLICATION', render(
            checked
        )
        assert any("cannot see the details of other roles' sessions" in message for message in said)
        assert any("cannot read" in message for message in said)
        assert exit_code(checked) == 1
        assert not any("row-level security" in message for message in said)
        nowhere = url.replace(f"/{place.database.name}", "")
        await place.finds("waits", "does not exist", "source.dsn names no database", source={"dsn": nowhere})
        for limited in (f'ROLE "{role}"', f'DATABASE "{place.database.name}"'):
            await sql.execute(f"ALTER {limited} CONNECTION LIMIT 8")
            remedy = f"ALTER {limited} CONNECTION LIMIT "
            await place.finds("warning", "is limited to 8 connections", remedy, source={"dsn": url})
            checked = await run_check(place.settings(source={"dsn": url}))
            await sql.execute(next(one.remedy for one in checked if one.remedy.startswith(remedy)))
            checked = await run_check(place.settings(source={"dsn": url}))
            assert not any("is limited to" in one.message for one in checked), render(checked)
        await sql.execute(f"GRANT SELECT ON t TO {role}; ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        only = {"source": {"dsn": url}}
        await place.finds("warning", "row-level security applies", "public.t", "BYPASSRLS", **only)
        for enough in (f"ALTER ROLE {role} BYPASSRLS", f"ALTER ROLE {role} NOBYPASSRLS; ALTER TABLE t OWNER TO {role}"):
            await sql.execute(enough)
            checked = await run_check(place.settings(**only))
            assert not any("row-level security" in one.message for one in checked), render(checked)
        await sql.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
        await place.finds("warning", "row-level security applies", "public.t", **only)
    finally:
        await sql.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


async def test_mistakes_in_kafka_and_the_registry_are_named(place: Place) -> None:
    sql = await place.database.connect()
    await sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (v text); CREATE TABLE f (v text);"
        "CREATE TABLE k (id int PRIMARY KEY); ALTER TABLE f REPLICA IDENTITY FULL; ALTER TABLE k REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION p FOR TABLE f, k, t, u WITH (publish = 'insert')"
    )
    compacted = {"kafka": {"dialect": "debezium"}, "debezium": {"compacted_topics": True}}
    await place.finds("warning", "have no key", ": public.f, public.u", "cleanup.policy = delete", **compacted)
    truncates = {"kafka": {"dialect": "debezium"}, "debezium": {"skipped_operations": "none"}}
    await place.finds("warning", "several partitions", "kafka.partitions = 1", **truncates)
    secured = {"bootstrap_servers": place.kafka.secured_servers}
    postgres = f"127.0.0.1:{place.database.server.port}"
    await place.finds("stops", "requires SASL (PLAIN)", "= SASL_PLAINTEXT", kafka=secured)
    await place.finds("stops", "does not use SASL", "= PLAINTEXT", kafka=LOGIN)
    elsewhere = {"bootstrap_servers": "k1.invalid:9092"}
    await place.finds("warning", "sends the password in cleartext", "SASL_SSL", kafka=LOGIN | elsewhere)
    await place.finds(
        "stops",
        "does not support kafka.sasl_mechanism",
        "PLAIN",
        kafka={**secured, **LOGIN, "sasl_mechanism": "SCRAM-SHA-512"},
    )
    await place.finds(
        "waits",
        "SaslAuthenticationFailed",
        "kafka.sasl_username",
        kafka={**secured, **LOGIN, "sasl_password": "x"},
    )
    await place.finds("stops", "does not use TLS", "= PLAINTEXT", kafka={"security_protocol": "SSL"})
    await place.finds("stops", "answers, but not with Kafka's protocol", kafka={"bootstrap_servers": postgres})
    await place.finds("waits", "connection to 127.0.0.1:1 refused", kafka={"bootstrap_servers": "127.0.0.1:1"})
    both = {"bootstrap_servers": f"127.0.0.1:1,{place.kafka.bootstrap_servers}"}
    await place.finds("warning", "connection to 127.0.0.1:1 refused", "uses the other addresses", kafka=both)
    await place.finds("waits", "kafka.replication_factor is 3", "= 1", kafka={"replication_factor": 3})
    checked = await run_check(place.settings(kafka={"replication_factor": 3}))
    assert exit_code(checked) == 1, render(checked)  # as `walgate run`, which waits for brokers
    await place.finds("stops", "kafka.transaction_timeout_s is 2000", "= 900", kafka={"transaction_timeout_s": 2000})
    await place.finds("stops", "requests of at most 104857600 bytes", kafka={"max_record_bytes": 200 << 20})
    await place.finds("warning", "keep records for 1 h", kafka={"retention_ms": 3_600_000})
    for config, table, outcome, words in (
        ({"retention.ms": "7d"}, "t", "stops", ("would reject the request to create", "7d", "kafka.topics")),
        ({"max.message.bytes": "2000"}, "u", "warning", ("of at most 2000 bytes", "in kafka.topics")),
        ({"cleanup.policy": "compact"}, ".*", "warning", ("is compacted", f"for {place.prefix}.public.f")),
    ):
        override = {"pattern": rf"{place.prefix}\.public\.{table}", "config": config}
        await place.finds(outcome, *words, kafka={"topics": [override]})
    for policy, outcomes in (
        ("compact", {"ok", "warning"}),
        ("delete", {"ok"}),
    ):  # the gateway's own topics keep theirs
        override = {"pattern": ".*", "config": {"cleanup.policy": policy}}
        checked = await run_check(place.settings(kafka={"topics": [override]}))
        assert {one.outcome for one in checked if one.area == "kafka"} == outcomes, render(checked)
    await place.finds(
        "waits",
        "not point to a schema registry",
        "/apis/ccompat/v7",
        registry={"url": f"http://127.0.0.1:{place.registry.port}/nowhere"},
    )
    await place.finds("waits", "does not answer", registry={"url": "http://127.0.0.1:1"})
    await _topics_and_rights(place, {**secured, **LOGIN})


async def _topics_and_rights(place: Place, account: dict[str, Any]) -> None:
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap_servers})
    markers = f"{place.prefix}.transaction"
    table = f"{place.prefix}.public.t"
    for future in admin.create_topics(
        [
            NewTopic(markers, 2, 1),
            NewTopic(table, 1, 1, config={"max.message.bytes": "1048588"}),
            NewTopic(f"{place.prefix}.public_f", 1, 1),  # another name is left for the topic of f
        ]
    ).values():
        future.result(30)
    checked = await run_check(place.settings())
    assert not any(f"{place.prefix}.public.f" in one.message for one in checked), render(checked)
    await place.finds("stops", f"{markers} has 2 partitions", "another kafka.prefix")
    await place.finds(
        "warning", f"{table} accepts record batches of at most 1048588 bytes", "max.message.bytes=16777216"
    )
    await _denied(admin, ResourceType.TOPIC, table, AclOperation.WRITE)  # no ACL allows the rest: to describe it, say
    await place.finds("waits", "does not allow", table, "kafka-acls.sh", kafka=account)


async def test_a_position_that_cannot_be_read_is_not_taken_for_none(place: Place, tmp_path: Path) -> None:
    """The slot is well, and must not be said to be one that nothing is known of."""
    sql = await place.database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    of_parts = {"source": place.source, "kafka": place.of_kafka, "registry": place.of_registry}
    settings = {f"{part}__{name}": value for part, values in of_parts.items() for name, value in values.items()}
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    await gateway.streaming()
    await gateway.stop()
    await _a_deleted_topic_is_named(place)
    account = {"kafka": {"bootstrap_servers": place.kafka.secured_servers, **LOGIN}}
    assert wrong(await run_check(place.settings(**account))) == []

    async def finds_only(code: int, *words: str, **change: Any) -> None:
        checked = await run_check(place.settings(**change))
        found = wrong(checked)
        assert len(found) == 1 and exit_code(checked) == code, render(checked)
        assert all(word in f"{found[0].message} {found[0].remedy}" for word in words), found

    await finds_only(78, "belongs to slot", "source.slot", source={"slot": f"{place.prefix}_other"})
    await finds_only(78, "are written with the topic prefix", kafka={"prefix": f"{place.prefix}-other"})
    markers = f"{place.prefix}.transaction"
    for topic, operation, words in (
        (POSITION_TOPIC, AclOperation.READ, ("denies access to topic", "grant Read and Describe")),
        (markers, AclOperation.READ, ("denies access to topic", "grant Read and Describe")),
        (POSITION_TOPIC, AclOperation.DESCRIBE, (f"does not allow Describe on {POSITION_TOPIC}", "kafka-acls.sh")),
        (markers, AclOperation.DESCRIBE, (f"does not allow Describe on {markers}", "kafka-acls.sh")),
    ):
        async with all_but(place, topic, operation):
            await finds_only(1, *words, **account)
    foreign = Producer({"bootstrap.servers": place.kafka.bootstrap_servers, "transactional.id": f"of-{place.prefix}"})
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(POSITION_TOPIC, key=b"1/d/s", value=b"v")
    foreign.flush(30)
    await finds_only(1, "could not be read to its end", "wait")
    foreign.abort_transaction(30)
    assert wrong(await run_check(place.settings())) == []
    identifier, name = await sql.fetchrow("SELECT system_identifier, current_database() FROM pg_control_system()")
    plain = Producer({"bootstrap.servers": place.kafka.bootstrap_servers})
    plain.produce(POSITION_TOPIC, key=f"{identifier}/{name}/{place.prefix}".encode(), value=b"\0\0\0\0\0")
    assert plain.flush(30) == 0
    await finds_only(78, POSITION_TOPIC)


async def _a_deleted_topic_is_named(place: Place) -> None:
    """The gateway would stop; its start created the topic, and registered no schema yet."""
    topic = f"{place.prefix}.public.t"
    place.kafka.delete_topic(topic)
    assert wrong(await run_check(place.settings())) == []
    with SchemaRegistryClient({"url": place.registry.url}) as registry:
        registry.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
        await place.finds("stops", f"these topics were deleted: {topic}", "create the topics yourself")
        for is_permanent in (False, True):
            registry.delete_subject(f"{topic}-value", permanent=is_permanent)


@asynccontextmanager
async def all_but(place: Place, topic: str, operation: AclOperation) -> AsyncIterator[None]:
    """What User:gateway may do with a topic; the authorizer hears of it a little later."""
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap_servers})
    at = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:gateway", "*")
    rules = [AclBinding(*at, AclOperation.ALL, AclPermissionType.ALLOW)]
    rules.append(AclBinding(*at, operation, AclPermissionType.DENY))
    for future in admin.create_acls(rules).values():
        future.result(30)
    await asyncio.sleep(1.0)
    try:
        yield
    finally:
        every = AclBindingFilter(*at, AclOperation.ANY, AclPermissionType.ANY)
        for deleted in admin.delete_acls([every]).values():
            deleted.result(30)
        await asyncio.sleep(1.0)


async def _denied(admin: AdminClient, kind: Any, name: str, operation: Any) -> None:
    denied = AclBinding(kind, name, ResourcePatternType.LITERAL, "User:gateway", "*", operation, AclPermissionType.DENY)
    for future in admin.create_acls([denied]).values():
        future.result(30)
    await asyncio.sleep(1.0)  # the authorizer hears of it a little later


def test_a_setting_that_does_not_exist_is_a_finding(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from gateway.cli.main import app

    file = tmp_path / "walgate.toml"
    file.write_text('[source]\ndsn = "postgresql://u@h/d"\nsolt = "x"\n')
    result = CliRunner().invoke(app, ["check", "--config", str(file)])
    assert result.exit_code == 78 and "STOPS" in result.output and "solt" in result.output
