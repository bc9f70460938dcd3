"""`walgate check`: check every requirement on PostgreSQL, Kafka, the registry, privileges and
settings, without changing anything.

The checks are those that the gateway makes when it starts (gateway/startup); this module only
collects the facts in the right order and reports the results. If a server does not answer, the
others are still checked. The report states what cannot be checked without changes: whether the
registry would accept a schema, and whether the WAL that the slot needs can still be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

import asyncpg

from gateway.cli.check_report import CheckReport, CheckResult
from gateway.cli.pattern_checks import check_patterns
from gateway.cli.stream_server import stream_login
from gateway.config.settings import Settings
from gateway.errors import DataGap, RetrySlowly, StopForOperator, WalgateError
from gateway.kafka.cluster_facts import advertised_addresses, kafka_facts
from gateway.kafka.durability import cautions, durability_of
from gateway.kafka.last_commit import newest_commit_lsn
from gateway.kafka.listener_probe import probe_listener
from gateway.kafka.position_topic import read_positions
from gateway.kafka.topics import Topics, deleted_topics
from gateway.names import transactional_id
from gateway.observe.http_client import ask_status
from gateway.observe.http_socket import listen
from gateway.postgres.connection import address_text, connect_replication, sql_session
from gateway.postgres.credentials import Credentials
from gateway.postgres.publication import filters_that_can_fail, publication_names
from gateway.postgres.role import role_facts
from gateway.postgres.server import load_facts
from gateway.postgres.wal_retention import retention_causes
from gateway.runtime.source_catalog import expected_of
from gateway.runtime.stored_positions import (
    decode_positions,
    fresh_position,
    refuse_lost_schemas,
    refuse_other_dialect,
)
from gateway.schema_errors import open_registry, topics_with_schema
from gateway.startup.facts import Facts, Stored
from gateway.startup.findings import Finding, OperatorWarning, report_of
from gateway.startup.kafka_checks import KafkaExpected, KafkaFacts, check_brokers, check_refusals, check_topics
from gateway.startup.listener_checks import check_bootstrap, check_cleartext_login, check_listener
from gateway.startup.position_checks import (
    after_rename,
    check_first_start,
    check_prefix,
    check_progress,
    position_before_rename,
)
from gateway.startup.publication_checks import check_actions, excluded_names, some_names
from gateway.startup.role_checks import RoleFacts, check_role
from gateway.startup.server_checks import check_left_behind, check_slot_capacity
from gateway.startup.slot_checks import check_slot
from gateway.startup.start import check_without_position
from gateway.startup.timeline_checks import parse_history, position_at_fork
from gateway.transactions.position import Position
from schemas.lsn import Lsn
from schemas.registry_client import RegistryClient
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC, counted, message_topic, transaction_topic, value_subject

_TIMEOUT_S: Final = 10.0
_LOOKED_AT_TABLES: Final = 200


async def run_check(settings: Settings) -> list[CheckResult]:
    return await _Check(settings).run()


class _Check:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._report = CheckReport()
        self._facts: Facts | None = None
        self._login: Credentials | None = None
        self._left_at: dict[int, Lsn] = {}
        self._registry_answers = False
        self._moment = 0
        self._table_topics: list[str] = []
        self._expected = expected_of(settings)

    async def run(self) -> list[CheckResult]:
        self._report.ok("settings", "all settings are valid")
        await self._http()
        await self._postgresql()
        kafka = await self._kafka()
        await self._registry()
        is_primary = self._facts is not None and not self._facts.server.in_recovery
        if kafka is not None and is_primary and self._registry_answers:
            await self._position(kafka)
        return self._report.results

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment

    async def _http(self) -> None:
        """Check that the port is free, or used by a gateway of this slot, which must end before
        another one starts."""
        http, slot = self._settings.http, self._settings.source.slot
        if not http.port:
            return
        try:
            listen(http.host, http.port).close()
        except WalgateError as error:
            running = await asyncio.to_thread(ask_status, http.host, http.port)
            if running is not None and running.get("slot_name") == slot:
                self._report.ok("settings", f"a gateway of slot {slot} answers on http.port {http.port}")
            else:
                self._report.add("settings", [error])

    # -- PostgreSQL

    async def _stream_login(self) -> Credentials:
        if self._login is None:
            self._login = await stream_login(self._settings.source, timeout_s=_TIMEOUT_S)
        return self._login

    async def _look(self, sql: asyncpg.Connection) -> Facts:
        source = self._settings.source
        return await load_facts(
            sql, source.slot, source.publications, self._next_moment(), excluded=source.excluded_tables
        )

    async def _postgresql(self) -> None:
        try:
            async with sql_session(await self._stream_login(), timeout_s=_TIMEOUT_S) as sql:
                role = await role_facts(
                    sql, self._settings.source.publications, excluded=self._settings.source.excluded_tables
                )
                # First, because problems of the role explain why later checks fail.
                takes_snapshots, readers = self._settings.takes_snapshots, self._settings.snapshot.readers
                found = check_role(role, takes_snapshots=takes_snapshots, readers=readers)
                self._report.add("postgresql", found, role.provider)
                facts = self._facts = await self._look(sql)
                self._say_server(sql, facts, role)
                self._report.add("settings", check_patterns(self._settings, facts))
                start = check_without_position(facts, self._expected)
                await self._suggest_publications(sql, start.errors)
                self._report.add("postgresql", (*start.errors, *start.warnings, *check_actions(facts)), role.provider)
                self._report.add("postgresql", await filters_that_can_fail(sql, facts.publications), role.provider)
                if facts.slot is None:
                    self._report.add("postgresql", check_slot_capacity(facts), role.provider)
                    await self._retention_causes(sql)
                else:
                    self._report.ok(
                        "postgresql", f"slot {facts.slot.name} is confirmed up to {facts.slot.confirmed_flush_lsn}"
                    )
                if role.may_replicate and not role.is_pooled and facts.server.decodes:
                    await self._replication(facts)
        except WalgateError as error:
            self._report.add("postgresql", [error])

    async def _suggest_publications(self, sql: asyncpg.Connection, errors: Iterable[WalgateError]) -> None:
        """Suggest for each missing publication a similar name, or another database that may be
        meant."""
        assert self._facts is not None
        missing = [name for name in self._settings.source.publications if name not in self._facts.publications]
        if not missing:
            return
        names = {name.lower(): name for name in await publication_names(sql)}
        for name in missing:
            near = get_close_matches(name.lower(), names, 1)
            suggestion = f"did you mean {names[near[0]]}? " if near else ""
            if not names:
                database = self._facts.server.database
                suggestion = f"database {database} has no publication at all: is it the right one? "
            for error in errors:
                if error.message == f"publication {name} does not exist":
                    error.hint = suggestion + error.hint

    def _say_server(self, sql: asyncpg.Connection, facts: Facts, role: RoleFacts) -> None:
        at = address_text(sql)
        major, minor = divmod(facts.server.version_num, 10000)
        self._report.ok(
            "postgresql", f"PostgreSQL {major}.{minor} at {at}, database {facts.server.database}, role {role.name}"
        )
        tables = {r.relation_oid for p in facts.publications.values() for r in p.relations}
        if tables:
            self._report.ok(
                "postgresql", f"{counted(len(tables), 'table')} published by {', '.join(facts.publications)}"
            )
        excluded = excluded_names(facts)
        if excluded:
            self._report.ok(
                "postgresql",
                f"{counted(len(excluded), 'published table')} left out by source.excluded_tables: {some_names(excluded)}",
            )

    async def _retention_causes(self, sql: asyncpg.Connection) -> None:
        """Report the transactions for which the creation of the slot would wait: all open or
        prepared transactions that have written data."""
        found = [cause for cause in await retention_causes(sql, self._expected.slot) if cause.kind != "slot"]
        for cause in found:
            who = (
                f"prepared transaction {cause.name!r}"
                if cause.kind == "prepared"
                else f"open transaction of process {cause.pid}"
            )
            of = f" of {cause.user}" if cause.user else ""
            self._report.add(
                "postgresql",
                [OperatorWarning(f"the creation of the slot will wait for the {who}{of}", cause.remedy)],
            )

    async def _replication(self, facts: Facts) -> None:
        """Check that the server accepts a replication connection, and that this connection reaches
        the same server."""
        stream = await connect_replication(await self._stream_login(), timeout_s=_TIMEOUT_S)
        try:
            identity = await stream.identify()
            has_history = identity.timeline > 1
            history = parse_history(await stream.timeline_history(identity.timeline)) if has_history else {}
        finally:
            await stream.close()
        if identity.system_identifier != facts.server.system_identifier:
            self._report.add(
                "postgresql",
                [
                    RetrySlowly(
                        "the replication connection and the regular connection reached different servers",
                        hint="use one host in source.dsn, or add target_session_attrs=primary",
                    )
                ],
            )
        else:
            self._report.ok("postgresql", "the server accepts replication connections")
            self._left_at = history

    # -- Kafka

    def _kafka_expected(self) -> KafkaExpected:
        kafka, facts = self._settings.kafka, self._facts
        server = (facts.server.system_identifier, facts.server.database_oid) if facts else ("0", 0)
        return KafkaExpected(
            prefix=kafka.prefix,
            position_topic=POSITION_TOPIC,
            marker_topic=transaction_topic(kafka.prefix),
            transactional_id=transactional_id(*server, self._settings.source.slot),
            tls=kafka.security_protocol.endswith("SSL"),
            sasl=kafka.security_protocol.startswith("SASL"),
            mechanism=kafka.sasl_mechanism,
            own_certificate=kafka.ssl_cert_file is not None,
            replication_factor=kafka.replication_factor,
            retention_ms=kafka.retention_ms,
            max_record_bytes=kafka.max_record_bytes,
            transaction_timeout_ms=kafka.transaction_timeout_s * 1000,
            exactly_once=kafka.delivery == "exactly_once",
            counts_records=not self._settings.writes_debezium,
            writes_truncates=self._settings.writes_truncates,
        )

    async def _kafka(self) -> KafkaFacts | None:
        kafka, expected = self._settings.kafka, self._kafka_expected()
        self._report.add("kafka", check_cleartext_login(kafka.sent_in_cleartext, kafka.sasl_mechanism))
        addresses = [part.strip() for part in kafka.bootstrap_servers.split(",")]
        listeners = [await probe_listener(address, kafka) for address in addresses]
        if not self._report.add("kafka", check_bootstrap(listeners, expected)):
            return None
        compacted = self._settings.debezium.compacted_topics
        topics = Topics(kafka, expected.marker_topic, set(), lambda _: None, compacted=compacted)
        own = [POSITION_TOPIC, expected.marker_topic, message_topic(kafka.prefix)]
        if self._settings.takes_snapshots:
            own.append(SNAPSHOT_TOPIC)
        possible = [topics.possible_names(relation) for relation in self._relations()]
        tables = self._table_topics = [names[0] for names in possible]
        try:
            if not await self._advertised(addresses, expected):
                return None
            facts = await kafka_facts(kafka, expected, own, possible, topics.new_topic)
        except WalgateError as error:
            self._report.add("kafka", [error])
            return None
        for check in (check_refusals, check_brokers, check_topics):
            self._report.add("kafka", check(facts, expected))
        durability = {name: durability_of(topic.replicas, topic.config) for name, topic in facts.topics.items()}
        self._report.add("kafka", cautions(durability, facts.broker_count))
        known = [name for name in (*own, *tables) if name in facts.topics]
        self._report.ok(
            "kafka", f"{counted(facts.broker_count, 'broker')}; {len(known)} of {len(own) + len(tables)} topics exist"
        )
        return facts

    async def _advertised(self, addresses: list[str], expected: KafkaExpected) -> bool:
        """Check the addresses that the brokers advertise, to which all further requests go. Return
        False if none of them can be used."""
        advertised = await advertised_addresses(self._settings.kafka)
        usable = [address in addresses for address in advertised]
        for address in (address for address in advertised if address not in addresses):
            listener = await probe_listener(address, self._settings.kafka, advertised=True)
            usable.append(self._report.add("kafka", check_listener(listener, expected)))
        return any(usable)

    def _relations(self) -> list[tuple[str, str]]:
        if self._facts is None:
            return []
        found = {(r.namespace, r.name) for p in self._facts.publications.values() for r in p.relations}
        return sorted(found)[:_LOOKED_AT_TABLES]

    # -- the registry and the position

    async def _registry(self) -> None:
        try:
            async with open_registry(self._settings.registry, _TIMEOUT_S) as client:
                await client.latest(value_subject(POSITION_TOPIC))
                self._registry_answers = True
                if (mode := await client.mode()).startswith("READONLY"):
                    message = f"the schema registry is in mode {mode}, so that no new schema can be registered"
                    remedy = "set its mode to READWRITE (PUT /mode of its API): a first start waits until then"
                    self._report.add("registry", [OperatorWarning(message, remedy)])
                await refuse_other_dialect(client, self._settings.kafka)
        except WalgateError as error:
            self._report.add("registry", [error])
        else:
            self._report.ok("registry", f"{self._settings.registry.url} answers as a schema registry")

    async def _position(self, kafka: KafkaFacts) -> None:
        """Check the stored position. The slot is read before it and the end of the WAL after it:
        facts in another order prove nothing. A position that could not be read is not taken as
        missing: it is not checked further."""
        facts = self._facts
        assert facts is not None
        fresh = fresh_position(self._settings, facts)
        stored = await self._stored(kafka, fresh)
        if stored is None:
            return
        try:
            async with sql_session(await self._stream_login(), timeout_s=_TIMEOUT_S) as sql:
                after = await self._look(sql)
        except WalgateError as error:
            self._report.add("resume_lsn", [error])
            return
        self._report.add("resume_lsn", self._judge(facts, stored, after, fresh))
        known = stored.positions.get(fresh.key)
        if known is not None and known.state == "ACTIVE":
            await self._deleted_topics(kafka)

    async def _deleted_topics(self, kafka: KafkaFacts) -> None:
        """Report topics that are missing although their schemas exist, which means that they were
        deleted."""
        missing = [name for name in self._table_topics if name not in kafka.topics and name not in kafka.unseen]
        try:
            async with open_registry(self._settings.registry, _TIMEOUT_S) as client:
                deleted = await topics_with_schema(client, missing)
        except WalgateError as error:
            self._report.add("registry", [error])
            return
        self._report.add("kafka", [deleted_topics(deleted)] if deleted else [])

    async def _stored(self, kafka: KafkaFacts, fresh: Position) -> Stored | None:
        """Read the stored position; return None if that failed, which a finding reports."""
        marker = transaction_topic(self._settings.kafka.prefix)
        if not kafka.unseen.isdisjoint((POSITION_TOPIC, marker)):
            return None
        if POSITION_TOPIC not in kafka.topics:
            return Stored({}, False, self._next_moment())
        has_markers = marker in kafka.topics
        try:
            values, is_used = await read_positions(
                self._settings.kafka, marker if has_markers else POSITION_TOPIC, _TIMEOUT_S
            )
            newest = None
            if has_markers and self._settings.kafka.dialect == "walgate":
                newest = await newest_commit_lsn(self._settings.kafka, marker, _TIMEOUT_S)
            async with open_registry(self._settings.registry, _TIMEOUT_S) as client:
                positions = await decode_positions(values, fresh, client)
                await self._lost_schemas(positions.values(), client, kafka)
        except WalgateError as error:
            self._report.add("resume_lsn", [error])
            return None
        at_least_once = self._settings.kafka.delivery == "at_least_once"
        return Stored(positions, has_markers and is_used, self._next_moment(), newest, at_least_once)

    async def _lost_schemas(self, positions: Iterable[Position], client: RegistryClient, kafka: KafkaFacts) -> None:
        """Report schemas that the registry has lost. A topic that was not looked at counts as
        deleted, with its schema."""

        async def missing(topics: Iterable[str]) -> set[str]:
            return {topic for topic in topics if topic not in kafka.topics}

        try:
            await refuse_lost_schemas(positions, self._settings.kafka.prefix, client, missing)
        except StopForOperator as error:
            self._report.add("registry", [error])

    def _judge(self, before: Facts, stored: Stored, after: Facts, fresh: Position) -> Iterator[Finding]:
        former = position_before_rename(stored, fresh, after)
        if former is not None:
            stored = after_rename(stored, former, fresh)
        refused = list(check_prefix(stored.positions, fresh, after))
        if refused:  # a start judges nothing else then
            yield from refused
            return
        of_slot = report_of(check_slot(after, self._expected)).errors
        lost = [error for error in of_slot if isinstance(error, DataGap)]  # the others were reported with PostgreSQL
        known = stored.positions.get(fresh.key)
        if known is None or known.state != "ACTIVE":
            adopts = self._settings.source.adopt_slot
            is_first = known is None and not of_slot
            obstacles = list(check_first_start(stored, fresh, after, adopt_slot=adopts)) if is_first else lost
            yield from obstacles
            if not obstacles and not of_slot:
                self._report.ok(
                    "resume_lsn",
                    f"nothing has been delivered from slot {fresh.slot} yet: this would be the first start",
                )
            return
        self._report.ok(
            "resume_lsn",
            f"changes of slot {known.slot} have been delivered up to {known.resume_lsn}, epoch {known.epoch}",
        )
        if after.slot is not None and after.slot.active_pid is not None:
            return  # a gateway reads the slot: its position advances during the check
        expected = replace(self._expected, timeline=known.timeline)
        left_behind = list(check_left_behind(after, expected))
        known = position_at_fork(known, self._left_at.get(known.timeline))
        yield from left_behind or (*lost, *check_progress(before, stored, after, known))
