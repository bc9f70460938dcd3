"""Mistakes that `walgate check` must find and name: each is seeded into facts that are well, and
must be the only thing found.

The ones that need a server's own words are seeded into real servers, in
tests/exactly_once/test_check.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gateway.errors import DataGap, RetrySlowly, StopForOperator
from gateway.startup.facts import Expected, Facts
from gateway.startup.findings import Finding, OperatorWarning
from gateway.startup.kafka_checks import (
    KafkaExpected,
    KafkaFacts,
    Refused,
    TopicFacts,
    check_brokers,
    check_refusals,
    check_topics,
)
from gateway.startup.listener_checks import ListenerFacts, check_bootstrap, check_cleartext_login, check_listener
from gateway.startup.publication_checks import check_actions
from gateway.startup.role_checks import RoleFacts, check_role, for_provider
from gateway.startup.server_checks import check_slot_capacity
from gateway.startup.start import check_without_position
from tests.startup.facts import (
    EXPECTED,
    FACTS,
    ID,
    ITEMS,
    ORDERS,
    PUBLICATION,
    with_publication,
    with_server,
    with_slot,
    without_slot,
)
from tests.test_links import messages_of_the_index

ROLE = RoleFacts("walgate")
WANTED = KafkaExpected("cdc", "walgate.position", "cdc.transaction", "walgate.1.5.s", replication_factor=3)
LISTENER = ListenerFacts("k1:9092")
CONFIG = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.replication.factor": "3",
    "socket.request.max.bytes": str(100 << 20),
    "unclean.leader.election.enable": "false",
    "log.retention.hours": "168",
}
TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "max.message.bytes": str(16 << 20),
    "min.insync.replicas": "2",
}
TOPICS = {
    "walgate.position": TopicFacts("walgate.position", 1, 3, config={**TOPIC_CONFIG, "cleanup.policy": "compact"}),
    "walgate.snapshot": TopicFacts(
        "walgate.snapshot", 1, 3, config={**TOPIC_CONFIG, "cleanup.policy": "compact", "retention.ms": "604800000"}
    ),
    "cdc.transaction": TopicFacts("cdc.transaction", 1, 3, config=TOPIC_CONFIG),
    "cdc.shop.orders": TopicFacts("cdc.shop.orders", 3, 3, config=TOPIC_CONFIG),
}
BROKERS = KafkaFacts(3, CONFIG, TOPICS)


@dataclass(frozen=True)
class World:
    """Everything that is looked at, as it must be."""

    facts: Facts = FACTS
    expected: Expected = EXPECTED
    role: RoleFacts = ROLE
    wanted: KafkaExpected = WANTED
    listener: ListenerFacts = LISTENER
    brokers: KafkaFacts = BROKERS
    extra: dict[str, Any] = field(default_factory=dict)

    def findings(self) -> list[Finding]:
        report = check_without_position(self.facts, self.expected)
        found: list[Finding] = [*report.errors, *report.warnings, *check_actions(self.facts)]
        if self.facts.slot is None:
            found += check_slot_capacity(self.facts)
        checks: tuple[Iterable[Finding], ...] = (
            check_role(self.role),
            check_listener(self.listener, self.wanted),
            check_brokers(self.brokers, self.wanted),
            check_topics(self.brokers, self.wanted),
            check_refusals(self.brokers, self.wanted),
        )
        for findings in checks:
            found += findings
        return found


def server(**change: Any) -> World:
    return World(facts=with_server(**change))


def slot(**change: Any) -> World:
    return World(facts=with_slot(**change))


def role(**change: Any) -> World:
    return World(role=replace(ROLE, **change))


def listener(wanted: KafkaExpected = WANTED, **change: Any) -> World:
    return World(listener=replace(LISTENER, **change), wanted=wanted)


def wanted(**change: Any) -> KafkaExpected:
    return replace(WANTED, **change)


def broker(count: int = 3, setting: KafkaExpected = WANTED, **config: str) -> World:
    return World(
        brokers=replace(
            BROKERS, broker_count=count, config={**CONFIG, **{k.replace("_", "."): v for k, v in config.items()}}
        ),
        wanted=setting,
    )


def topic(name: str, *, partitions: int | None = None, replicas: int = 3, leaderless: int = 0, **config: str) -> World:
    known = TOPICS[name]
    changed = replace(
        known,
        partitions=known.partitions if partitions is None else partitions,
        replicas=replicas,
        leaderless=leaderless,
        config={**known.config, **{k.replace("_", "."): v for k, v in config.items()}},
    )
    return World(brokers=replace(BROKERS, topics={**TOPICS, name: changed}))


def new_topic(**config: str) -> World:
    name = "cdc.shop.items"
    changed = {"max.message.bytes": str(16 << 20), "retention.ms": "-1"} | {
        k.replace("_", "."): v for k, v in config.items()
    }
    return World(brokers=replace(BROKERS, new_topics={name: TopicFacts(name, 3, 3, config=changed, is_new=True)}))


def refused(operation: str, on: str, error: str, reason: str = "") -> World:
    return World(brokers=replace(BROKERS, refusals=(Refused(operation, on, error, reason),)))


def published(relation: Any) -> World:
    return World(facts=with_publication(relations=(relation,)))


def for_an_hour(topic: TopicFacts) -> TopicFacts:
    return replace(topic, config={**topic.config, "retention.ms": "3600000"})


STOP, SLOW, WARN = StopForOperator, RetrySlowly, OperatorWarning
MISTAKES: list[tuple[str, World, type, str, str]] = [
    # the server
    ("too old", server(version_num=130010), STOP, "PostgreSQL 13.10 is too old", "14.3 or newer"),
    ("adds tables", server(version_num=170004), WARN, "ADD TABLE commits", "17.6 or newer"),
    ("may not decode", server(version_num=170005), WARN, "invalid memory alloc request size", "17.6 or newer"),
    ("too new", server(version_num=190000), WARN, "PostgreSQL 19 is newer", "newer gateway"),
    ("wal_level", server(wal_level="replica"), SLOW, "wal_level is replica", "ALTER SYSTEM SET wal_level = logical"),
    ("encoding", server(encoding="SQL_ASCII"), STOP, "SQL_ASCII", "ENCODING 'UTF8'"),
    ("senders", server(used_senders=10), SLOW, "all 10 WAL senders", "max_wal_senders = 15"),
    (
        "slots",
        World(facts=replace(with_server(used_slots=10), slot=None)),
        SLOW,
        "all 10 replication slots",
        "max_replication_slots = 15",
    ),
    (
        "keep size",
        server(max_slot_wal_keep_mb=100),
        WARN,
        "max_slot_wal_keep_size is 100 MB",
        "max_slot_wal_keep_size = '...'; SELECT pg_reload_conf()",
    ),
    (
        "budget above the server's limit",
        World(facts=with_server(max_slot_wal_keep_mb=100), expected=replace(EXPECTED, advance_bytes=101 << 20)),
        WARN,
        "the slot is invalidated before source.on_wal_budget = advance can advance it",
        f"less than {100 << 20}",
    ),
    ("idle timeout", server(idle_slot_timeout_s=60.0), WARN, "idle_replication_slot_timeout is 60 s", "= 0; SELECT"),
    (
        "two-phase version",
        World(facts=replace(with_server(version_num=140019), slot=None), expected=replace(EXPECTED, two_phase=True)),
        STOP,
        "two_phase needs PostgreSQL 15",
        "source.two_phase = false",
    ),
    (
        "two-phase off",
        World(
            facts=replace(with_server(max_prepared_transactions=0), slot=None),
            expected=replace(EXPECTED, two_phase=True),
        ),
        WARN,
        "max_prepared_transactions is 0",
        "max_prepared_transactions = 100",
    ),
    (
        "failover version",
        World(facts=replace(with_server(version_num=160010), slot=None), expected=replace(EXPECTED, failover=True)),
        STOP,
        "failover needs PostgreSQL 17",
        "source.failover = false",
    ),
    (
        "a standby's slot that is not there",
        World(
            facts=replace(
                with_server(synchronized_standby_slots='one, "two",three', physical_slots=("two", "three")), slot=None
            ),
            expected=replace(EXPECTED, failover=True),
        ),
        WARN,
        "not physical replication slots of this server: one. PostgreSQL sends no changes",
        "SELECT pg_create_physical_replication_slot('one')",
    ),
    # the slot
    (
        "physical slot",
        slot(slot_type="physical", plugin=None, database=None),
        STOP,
        "not logical",
        "another source.slot",
    ),
    ("plugin", slot(plugin="wal2json"), STOP, "wal2json", "another source.slot"),
    ("slot's database", slot(database="other"), STOP, "belongs to database other", "another source.slot"),
    ("slot in use", slot(active_pid=99), WARN, "in use by process 99", "pg_terminate_backend(99)"),
    ("slot's failover", slot(failover=True), WARN, "failover = true", "FAILOVER false"),
    (
        "slot about to be lost",
        slot(wal_status="unreserved"),
        WARN,
        "about to be invalidated",
        "max_slot_wal_keep_size = -1",
    ),
    ("slot extended", slot(wal_status="extended"), WARN, "retains more WAL", "keeping up"),
    # the publications
    (
        "no publication",
        World(facts=replace(FACTS, publications={})),
        SLOW,
        "publication p does not exist",
        'CREATE PUBLICATION "p"',
    ),
    ("no table", World(facts=with_publication(all_tables=False, relations=())), WARN, "has no tables", "ADD TABLE"),
    (
        "no table in this database",
        World(facts=with_publication(all_tables=True, relations=())),
        WARN,
        "has no tables",
        "source.dsn",
    ),
    (
        "all tables excluded",
        World(facts=with_publication(relations=(), excluded=(ORDERS, ITEMS))),
        WARN,
        "source.excluded_tables leaves out all tables of publication p: nothing will be sent (shop.items, shop.orders)",
        "source.excluded_tables",
    ),
    (
        "a foreign partition",
        World(facts=with_publication(foreign=(("shop.root", "shop.far"),))),
        WARN,
        "shop.far. PostgreSQL does not publish foreign tables",
        "publish_via_partition_root = true",
    ),
    (
        "a foreign partition of a root",
        World(facts=with_publication(via_root=True, foreign=(("shop.the root", "shop.far"),))),
        WARN,
        "shop.far. A snapshot reads their rows",
        "walgate snapshot start 'shop.the root', for example",
    ),
    (
        "a child that is not published",
        World(facts=with_publication(inherited=(("shop.orders", 'shop."Old 1"'),))),
        WARN,
        'and their rows are not sent: shop."Old 1"',
        'ALTER PUBLICATION "p" ADD TABLE shop."Old 1"',
    ),
    (
        "no identity",
        published(replace(ITEMS, replica_identity="NOTHING", identity_columns=())),
        WARN,
        "without a replica identity",
        "REPLICA IDENTITY FULL",
    ),
    (
        "half a key",
        published(replace(ORDERS, identity_columns=("id", "part"))),
        STOP,
        "leaves out part",
        "add these columns to the column list",
    ),
    (
        "no key in the list",
        published(replace(ORDERS, identity_columns=("part",), has_column_list=True)),
        WARN,
        "a column list that does not contain the replica identity, as publication p publishes them: shop.orders",
        'ALTER PUBLICATION "p" DROP TABLE',
    ),
    (
        "a list with FULL",
        published(replace(ORDERS, replica_identity="FULL", has_column_list=True)),
        WARN,
        "a column list that does not contain the replica identity, as publication p publishes them: shop.orders",
        "REPLICA IDENTITY DEFAULT first",
    ),
    (
        "generated columns with FULL",
        published(replace(ORDERS, replica_identity="FULL", generated_identity=("twice",))),
        WARN,
        "REPLICA IDENTITY FULL and generated columns, as publication p publishes them: shop.orders",
        "publish_generated_columns = stored",
    ),
    (
        "a filter by other columns",
        published(replace(ORDERS, filter_leaves_identity=True)),
        WARN,
        "a row filter that uses columns outside of the replica identity, as publication p publishes them: shop.orders",
        "REPLICA IDENTITY FULL",
    ),
    (
        "no updates",
        World(facts=with_publication(actions=frozenset({"insert", "truncate"}))),
        WARN,
        "publication p does not publish update, delete: these changes do not reach Kafka",
        "ALTER PUBLICATION \"p\" SET (publish = 'insert, update, delete, truncate')",
    ),
    (
        "column lists",
        World(
            facts=replace(
                FACTS,
                publications={
                    "p": PUBLICATION,
                    "q": replace(
                        PUBLICATION, name="q", relations=(replace(ORDERS, columns=(ID,), has_column_list=True),)
                    ),
                },
            ),
            expected=replace(EXPECTED, publications=("p", "q")),
        ),
        SLOW,
        "different column lists",
        "the same column list in both publications",
    ),
    # the role and the way
    (
        "no REPLICATION",
        role(may_replicate=False),
        SLOW,
        "lacks the REPLICATION attribute",
        'ALTER ROLE "walgate" REPLICATION',
    ),
    (
        "no REPLICATION at Amazon",
        role(may_replicate=False, provider="aws"),
        SLOW,
        "lacks the REPLICATION attribute",
        "GRANT rds_replication",
    ),
    ("no statistics", role(reads_statistics=False), WARN, "other roles' sessions", "GRANT pg_read_all_stats"),
    ("pooler", role(is_pooled=True), STOP, "connection pooler", "5432"),
    ("plain text", role(is_encrypted=False), WARN, "not encrypted", "sslmode=verify-full"),
    ("role's limit", role(connection_limit=3, used_by_role=1), WARN, "is limited to 3 connections", "CONNECTION LIMIT"),
    (
        "database's limit",
        role(database="shop", database_limit=3, used_in_database=1),
        WARN,
        "database shop is limited to 3 connections, 1 of them in use: the gateway needs 9",
        'ALTER DATABASE "shop" CONNECTION LIMIT 15',
    ),
    (
        "no connections left",
        role(max_connections=100, reserved_connections=3, used_connections=97),
        WARN,
        "97 of the 97 connections",
        "max_connections = 120",
    ),
    ("clock", role(server_ahead_s=-4000.0), WARN, "4000 s behind", "synchronize"),
    ("no USAGE", role(closed_schemas=("shop",)), WARN, "lacks USAGE on schema shop", "GRANT USAGE ON SCHEMA shop"),
    ("no SELECT", role(unreadable=("shop.orders",)), WARN, "cannot read shop.orders", "GRANT SELECT ON shop.orders"),
    (
        "no ctid",
        role(read_at_once=("shop.orders",)),
        WARN,
        "published columns of shop.orders, but not ctid",
        "GRANT SELECT (ctid) ON shop.orders",
    ),
    (
        "row-level security",
        role(filtered=("shop.orders",)),
        WARN,
        "row-level security applies to role walgate on shop.orders",
        'ALTER ROLE "walgate" BYPASSRLS',
    ),
    # the listeners
    ("dns", listener(failure="dns"), SLOW, "host name of k1:9092 cannot be resolved", "bootstrap_servers"),
    ("refused", listener(failure="refused"), SLOW, "connection to k1:9092 refused", "bootstrap_servers"),
    ("silent", listener(failure="timeout"), SLOW, "does not answer", "firewall"),
    (
        "advertised name",
        listener(failure="dns", advertised=True),
        SLOW,
        "advertise this address to clients",
        "advertised.listeners",
    ),
    (
        "advertised localhost",
        World(listener=ListenerFacts("localhost:9092", advertised=True, failure="refused")),
        SLOW,
        "for each client it is the client's own computer",
        "set the broker's advertised.listeners to the name of its host",
    ),
    (
        "localhost of a container",
        listener(
            failure="refused",
            detail="localhost is this container itself: use the name of the server's host; otherwise, ",
        ),
        SLOW,
        "connection to k1:9092 refused",
        "localhost is this container itself",
    ),
    (
        "TLS where none is set",
        listener(tls=True),
        STOP,
        "requires TLS, but kafka.security_protocol is PLAINTEXT",
        "= SSL",
    ),
    (
        "TLS and a login where a login is set",
        listener(wanted(sasl=True), tls=True),
        STOP,
        "is SASL_PLAINTEXT",
        "= SASL_SSL",
    ),
    ("no TLS where it is set", listener(wanted(tls=True)), STOP, "does not use TLS", "= PLAINTEXT"),
    (
        "unknown authority",
        listener(wanted(tls=True), tls=True, tls_failure="self-signed certificate"),
        STOP,
        "self-signed",
        "kafka.ssl_ca_file",
    ),
    (
        "another name",
        listener(wanted(tls=True), tls=True, tls_failure="Hostname mismatch, certificate is not valid for 'k1'"),
        STOP,
        "Hostname mismatch",
        "use a host name from the certificate",
    ),
    ("expired", listener(wanted(tls=True), tls=True, tls_failure="certificate has expired"), STOP, "expired", "renew"),
    (
        "client certificate",
        listener(wanted(tls=True), tls=True, wants_certificate=True),
        STOP,
        "requires a client certificate",
        "kafka.ssl_cert_file",
    ),
    (
        "controller's port",
        listener(is_controller=True),
        STOP,
        "the port of a KRaft controller",
        "port of a broker's listener",
    ),
    ("another service", listener(is_kafka=False), STOP, "answers, but not with Kafka's protocol", "another service"),
    (
        "login where none is set",
        listener(mechanisms=("SCRAM-SHA-512",)),
        STOP,
        "requires SASL (SCRAM-SHA-512)",
        "= SASL_PLAINTEXT",
    ),
    ("no login where it is set", listener(wanted(sasl=True)), STOP, "does not use SASL", "= PLAINTEXT"),
    (
        "mechanism",
        listener(wanted(sasl=True, mechanism="PLAIN"), mechanisms=("SCRAM-SHA-256",)),
        STOP,
        "does not support kafka.sasl_mechanism = PLAIN",
        "a mechanism that the listener supports: SCRAM-SHA-256",
    ),
    # the brokers
    (
        "replicas",
        broker(2, wanted(replication_factor=3), transaction_state_log_replication_factor="2"),
        SLOW,
        "is 3, but there are 2 brokers",
        "kafka.replication_factor = 2",
    ),
    (
        "replicas on one broker",
        broker(1, wanted(replication_factor=3), transaction_state_log_replication_factor="1"),
        SLOW,
        "is 3, but there is 1 broker",
        "kafka.replication_factor = 1",
    ),
    (
        "one replica",
        broker(3, wanted(replication_factor=1), min_insync_replicas="1"),
        WARN,
        "have only 1 replica, although there are 3 brokers",
        "kafka.replication_factor = 3",
    ),
    (
        "never in sync",
        broker(min_insync_replicas="4"),
        WARN,
        "4, but new topics have 3 replicas: Kafka then requires only 3",
        "kafka.replication_factor = 4",
    ),
    ("one in sync", broker(min_insync_replicas="1"), WARN, "min.insync.replicas is 1", "min.insync.replicas=2"),
    (
        "transactions' log",
        broker(transaction_state_log_replication_factor="5"),
        SLOW,
        "no Kafka transaction can begin",
        "transaction.state.log.replication.factor=3",
    ),
    (
        "transaction timeout",
        broker(transaction_max_timeout_ms="60000"),
        STOP,
        "allows a transaction timeout of at most 60 s",
        "kafka.transaction_timeout_s = 60",
    ),
    (
        "request size",
        broker(socket_request_max_bytes="1000000"),
        STOP,
        "requests of at most 1000000 bytes",
        "socket.request.max.bytes",
    ),
    (
        "replicas by the brokers' default",
        broker(2, wanted(replication_factor=-1), transaction_state_log_replication_factor="2"),
        SLOW,
        "default.replication.factor is 3, but there are 2 brokers",
        "kafka.replication_factor = 2",
    ),
    (
        "retention that is asked for",
        broker(setting=wanted(retention_ms=3_600_000)),
        WARN,
        "new topics keep records for 1 h",
        "kafka.retention_ms",
    ),
    (
        "retention of both",
        World(brokers=replace(BROKERS, topics={name: for_an_hour(topic) for name, topic in TOPICS.items()})),
        WARN,
        "topic cdc.shop.orders keeps records for 1 h: a mirror",
        "--add-config retention.ms=-1",
    ),
    ("unclean", broker(unclean_leader_election_enable="true"), WARN, "unclean.leader.election.enable", "=false"),
    ("retention of new topics", broker(log_retention_hours="24"), WARN, "keep records for 24 h", "kafka.retention_ms"),
    # the topics
    (
        "positions in parts",
        topic("walgate.position", partitions=3),
        STOP,
        "walgate.position has 3 partitions",
        "a new source.slot, a new kafka.prefix and a new snapshot",
    ),
    (
        "markers in parts",
        topic("cdc.transaction", partitions=6),
        STOP,
        "cdc.transaction has 6 partitions",
        "another kafka.prefix",
    ),
    (
        "positions deleted",
        topic("walgate.position", cleanup_policy="delete"),
        STOP,
        "retention would delete the resume LSNs",
        "cleanup.policy=compact",
    ),
    (
        "states in parts",
        topic("walgate.snapshot", partitions=3),
        STOP,
        "walgate.snapshot has 3 partitions",
        "start the incomplete snapshots again",
    ),
    (
        "states deleted",
        topic("walgate.snapshot", cleanup_policy="delete"),
        STOP,
        "retention would delete the progress of snapshots",
        "--entity-name walgate.snapshot --add-config cleanup.policy=compact",
    ),
    (
        "markers compacted",
        topic("cdc.transaction", cleanup_policy="compact"),
        STOP,
        "cdc.transaction is compacted",
        "cleanup.policy=delete",
    ),
    (
        "rows compacted",
        topic("cdc.shop.orders", cleanup_policy="compact,delete"),
        WARN,
        "cdc.shop.orders is compacted: Kafka removes records that the markers count",
        "cleanup.policy=delete",
    ),
    (
        "record size",
        topic("cdc.shop.orders", max_message_bytes="1048588"),
        WARN,
        "accepts record batches of at most 1048588 bytes",
        "max.message.bytes=16777216",
    ),
    (
        "rows die before markers",
        topic("cdc.shop.orders", retention_ms="3600000"),
        WARN,
        "keeps records for 1 h, but cdc.transaction keeps them forever",
        "retention.ms=-1",
    ),
    (
        "markers die by size",
        topic("cdc.transaction", retention_bytes="100000"),
        WARN,
        "cdc.transaction keeps only about 100000 bytes",
        "--entity-name cdc.transaction --add-config retention.bytes=-1",
    ),
    (
        "record size of a new topic",
        new_topic(max_message_bytes="2000"),
        WARN,
        "cdc.shop.items accepts record batches of at most 2000 bytes",
        'in kafka.topics, set "max.message.bytes" = "16777216" for cdc.shop.items',
    ),
    (
        "rows of a new topic compacted",
        new_topic(cleanup_policy="compact"),
        WARN,
        "cdc.shop.items is compacted",
        'in kafka.topics, set "cleanup.policy" = "delete"',
    ),
    (
        "rows of a new topic die before markers",
        new_topic(retention_ms="3600000"),
        WARN,
        "cdc.shop.items keeps records for 1 h, but cdc.transaction keeps them forever",
        'in kafka.topics, set "retention.ms" = "-1"',
    ),
    (
        "no leader",
        topic("cdc.shop.orders", leaderless=2),
        SLOW,
        "2 partitions without a leader",
        "unavailable-partitions",
    ),
    (
        "topic never in sync",
        topic("cdc.shop.orders", replicas=1),
        WARN,
        "1 replica, but its min.insync.replicas is 2",
        "min.insync.replicas=1",
    ),
    # what we may do
    (
        "no Create",
        refused("Create", "cdc.shop.orders", "TopicAuthorizationFailedError"),
        SLOW,
        "does not allow Create",
        "--topic cdc. --resource-pattern-type prefixed",
    ),
    (
        "no Write",
        refused("Write", "cdc.transaction", "TopicAuthorizationFailedError"),
        SLOW,
        "does not allow Write",
        "--topic cdc.transaction",
    ),
    (
        "no transactional id",
        refused("Write", "walgate.1.5.s", "TransactionalIdAuthorizationFailed"),
        SLOW,
        "does not allow Write on walgate.1.5.s",
        "--transactional-id",
    ),
    (
        "no look at positions",
        refused("DescribeConfigs", "walgate.position", "TopicAuthorizationFailedError"),
        SLOW,
        "does not allow DescribeConfigs",
        "--topic walgate.position",
    ),
    (
        "no look at brokers",
        refused("DescribeConfigs", "the cluster", "ClusterAuthorizationFailedError"),
        WARN,
        "does not allow DescribeConfigs",
        "--cluster",
    ),
    (
        "policy",
        refused("Create", "cdc.shop.orders", "PolicyViolationError", "at least 6 partitions"),
        STOP,
        "at least 6 partitions",
        "change kafka.partitions, kafka.replication_factor or kafka.topics",
    ),
    (
        "the same policy for all topics",
        World(
            brokers=replace(
                BROKERS, refusals=tuple(Refused("Create", f"t{n}", "PolicyViolationError") for n in range(7))
            )
        ),
        STOP,
        "create t0, t1, t2, t3, t4 and 2 more (PolicyViolationError)",
        "change kafka.partitions, kafka.replication_factor or kafka.topics",
    ),
    (
        "a broker that is fenced",
        refused("Create", "cdc.shop.orders", "InvalidReplicationFactorError", "only 2 brokers are registered"),
        SLOW,
        "only 2 brokers are registered",
        "start the brokers that are down",
    ),
    (
        "too few brokers, who say so too",
        World(
            brokers=replace(
                broker(1, transaction_state_log_replication_factor="1").brokers,
                refusals=(Refused("Create", "t", "InvalidReplicationFactorError"),),
            ),
            wanted=wanted(replication_factor=3),
        ),
        SLOW,
        "is 3, but there is 1 broker",
        "kafka.replication_factor = 1",
    ),
]


def test_a_world_that_is_well_has_no_findings() -> None:
    assert World().findings() == []
    assert World(facts=without_slot()).findings() == []


@pytest.mark.parametrize(
    ("world", "kind", "said", "remedy"), [pytest.param(*mistake[1:], id=mistake[0]) for mistake in MISTAKES]
)
def test_a_mistake_is_named_with_its_remedy_and_nothing_else_is(
    world: World, kind: type, said: str, remedy: str
) -> None:
    found = world.findings()
    matching = [finding for finding in found if said in finding.message]
    assert len(matching) == 1, found
    assert isinstance(matching[0], kind) and remedy in matching[0].hint
    assert len(found) == 1, found


def test_whoever_is_not_let_in_finds_the_message_in_the_index() -> None:
    known = [re.compile(".*".join(map(re.escape, message.split("...")))) for message in messages_of_the_index()]
    unreachable = listener(failure="other", detail="no route to host")
    said = set()
    for world in [unreachable, *(mistake[1] for mistake in MISTAKES)]:
        said |= {finding.message for finding in check_listener(world.listener, world.wanted)}
        said |= {finding.message for finding in check_refusals(world.brokers, world.wanted)}
        said |= {finding.message for finding in check_role(world.role) if world.role.is_pooled}
    assert len(said) > 15
    assert [message for message in said if not any(pattern.match(message) for pattern in known)] == []


def test_there_are_many() -> None:
    assert len(MISTAKES) >= 45 and len({name for name, *_ in MISTAKES}) == len(MISTAKES)


def test_a_new_cluster_whose_configuration_is_not_ours_to_see_has_no_findings() -> None:
    assert World(brokers=KafkaFacts(3, {}, {})).findings() == []
    assert World(brokers=KafkaFacts(3, {}, {}), wanted=wanted(replication_factor=-1)).findings() == []
    (found,) = World(brokers=KafkaFacts(2, {}, {})).findings()
    assert "kafka.replication_factor is 3, but there are 2 brokers" in found.message
    days_kept = {"cdc.transaction": 5, "cdc.shop.orders": 9}
    longer = TOPICS | {
        name: replace(TOPICS[name], config={**TOPICS[name].config, "retention.ms": str(days * 86_400_000)})
        for name, days in days_kept.items()
    }
    assert World(brokers=replace(BROKERS, topics=longer)).findings() == []
    unseen = replace(TOPICS["cdc.shop.orders"], config={})
    assert World(brokers=KafkaFacts(3, CONFIG, {unseen.name: unseen})).findings() == []


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("aws", "rds.logical_replication = 1"),
        ("google", "cloudsql.logical_decoding = on"),
        ("azure", "server parameter wal_level = LOGICAL"),
        ("neon", "enable logical replication"),
    ],
)
def test_a_managed_server_is_told_its_own_remedy(provider: str, said: str) -> None:
    (finding,) = server(wal_level="replica").findings()
    told = for_provider(finding, provider)
    assert said in told.hint and "ALTER SYSTEM" not in told.hint and type(told) is type(finding)
    (warning,) = server(max_slot_wal_keep_mb=100).findings()
    assert "max_slot_wal_keep_size = '...'" in for_provider(warning, provider).hint
    assert "ALTER SYSTEM" not in for_provider(warning, provider).hint
    assert for_provider(warning, "") is warning


@pytest.mark.parametrize(("policy", "is_said"), [("delete", True), ("compact,delete", True), ("compact", False)])
def test_retention_counts_only_where_records_are_deleted_by_it(policy: str, is_said: bool) -> None:
    world = topic("cdc.shop.orders", retention_ms="3600000", cleanup_policy=policy)
    world = replace(world, wanted=wanted(counts_records=False))  # compaction is no mistake there
    assert bool(world.findings()) is is_said


@pytest.mark.parametrize(
    ("name", "partitions", "is_said"),
    [
        ("cdc.shop.orders", 2, True),
        ("cdc.shop.orders", 1, False),
        ("cdc.transaction", 3, False),
        ("cdc.message", 3, False),
    ],
)
@pytest.mark.parametrize("is_new", [False, True])
def test_truncates_are_warned_of_where_tables_have_several_partitions(
    name: str, partitions: int, is_said: bool, is_new: bool
) -> None:
    found = {name: TopicFacts(name, partitions, 3, config=TOPIC_CONFIG, is_new=is_new)}
    brokers = KafkaFacts(3, CONFIG, {}, new_topics=found) if is_new else KafkaFacts(3, CONFIG, found)
    said = World(brokers=brokers, wanted=wanted(counts_records=False, writes_truncates=True)).findings()
    assert [type(each) for each in said] == [OperatorWarning] * is_said
    assert all("has no key" in each.message and "kafka.partitions = 1" in each.hint for each in said)
    assert World(brokers=brokers, wanted=wanted(counts_records=False)).findings() == []


def test_one_bootstrap_address_that_is_well_is_enough() -> None:
    dead = replace(LISTENER, address="k0:9092", failure="refused")
    (found,) = check_bootstrap([dead, LISTENER], WANTED)
    assert isinstance(found, OperatorWarning) and "connection to k0:9092 refused" in found.message
    assert "uses the other addresses" in found.message and "kafka.bootstrap_servers" in found.hint
    assert [type(each) for each in check_bootstrap([dead, dead], WANTED)] == [RetrySlowly, RetrySlowly]
    assert list(check_bootstrap([LISTENER], WANTED)) == []


@pytest.mark.parametrize(("sent", "mechanism"), [("password", "PLAIN"), ("token", "OAUTHBEARER"), ("", "PLAIN")])
def test_a_login_in_cleartext_is_warned_of(sent: str, mechanism: str) -> None:
    found = check_cleartext_login(sent, mechanism)
    assert len(found) == bool(sent) and all(f"{mechanism} sends the {sent} in" in warning.message for warning in found)
    assert all(("SCRAM" in warning.hint) == (mechanism == "PLAIN") for warning in found)


def test_the_hint_to_log_in_without_tls_names_what_is_sent_in_cleartext() -> None:
    (plain,) = listener(mechanisms=("PLAIN",)).findings()
    (encrypted,) = listener(wanted(tls=True), tls=True, mechanisms=("PLAIN",)).findings()
    assert "cleartext" in plain.hint and "cleartext" not in encrypted.hint


def test_row_level_security_is_nothing_to_a_gateway_that_reads_no_rows() -> None:
    assert list(check_role(replace(ROLE, filtered=("shop.orders",)), takes_snapshots=False)) == []


@pytest.mark.parametrize(("takes_snapshots", "readers", "needed"), [(True, 1, 9), (True, 16, 23), (False, 16, 9)])
def test_each_reader_of_tables_needs_a_connection(takes_snapshots: bool, readers: int, needed: int) -> None:
    def findings(free: int) -> list[Finding]:
        limits = replace(ROLE, connection_limit=free, max_connections=50, used_connections=50 - (free - 1))
        return list(check_role(limits, takes_snapshots=takes_snapshots, readers=readers))

    assert not findings(needed)
    limit, maximum = findings(needed - 1)
    assert f"needs {needed} that are free" in limit.message and f"needs {needed - 1} that are free" in maximum.message


def test_what_either_of_two_publications_publishes_is_sent() -> None:
    some = replace(PUBLICATION, actions=frozenset({"insert", "update"}))
    others = replace(PUBLICATION, name="q", actions=frozenset({"delete", "truncate"}))
    expected = replace(EXPECTED, publications=("p", "q"))
    assert World(facts=replace(FACTS, publications={"p": some, "q": others}), expected=expected).findings() == []


def test_a_gap_is_not_judged_without_a_position() -> None:
    assert not any(isinstance(finding, DataGap) for finding in slot(wal_status="lost").findings())
