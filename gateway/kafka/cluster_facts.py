"""The facts about Kafka that `walgate check` needs, found by requests that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from gateway.config.kafka import KafkaSettings
from gateway.kafka.aiokafka_internals.admin import Admin
from gateway.kafka.classify_errors import classify
from gateway.kafka.durability import COPIES
from gateway.kafka.producer import STOP_TIMEOUT_S
from gateway.kafka.shutdown import close_with_timeout
from gateway.kafka.topic_admin import Refusal, without_settings
from gateway.startup.kafka_checks import CLUSTER, KafkaExpected, KafkaFacts, Refused, TopicFacts

TIMEOUT_S: Final = 15.0
_UNKNOWN_TOPIC: Final = 3
_TOPIC_EXISTS: Final = 36
_AUTHORIZATION: Final = {29: "Topic", 31: "Cluster", 53: "TransactionalId"}
T = TypeVar("T")


async def advertised_addresses(settings: KafkaSettings) -> list[str]:
    """Return host:port of each broker as the brokers advertise it to clients in the answer to the
    first request. Raises WalgateError."""
    admin = Admin(**settings.client_options(), request_timeout_ms=int(TIMEOUT_S * 1000))
    try:
        await _limited(admin.start(), "connecting to Kafka")
        return admin.addresses
    finally:
        await close_with_timeout(admin.close(), STOP_TIMEOUT_S)


async def kafka_facts(
    settings: KafkaSettings,
    expected: KafkaExpected,
    own: Iterable[str],
    tables: Iterable[Sequence[str]],
    new_topic: Callable[[str, int], NewTopic],
) -> KafkaFacts:
    """Return facts about the brokers, about the gateway's own topics and those of tables, and about
    requests that would be refused. `tables` has the possible names of each table's topic.

    One such request is the creation of the topics that do not exist; of those of tables with the
    same configuration, only one is looked at. `new_topic` describes a new topic, given its name and
    replication factor. Raises WalgateError."""
    admin = Admin(**settings.client_options(), request_timeout_ms=int(TIMEOUT_S * 1000))
    try:
        await _limited(admin.start(), "connecting to Kafka")
        return await _limited(
            _look(admin, expected, list(own), list(tables), new_topic), "reading the cluster's metadata"
        )
    finally:
        await close_with_timeout(admin.close(), STOP_TIMEOUT_S)


async def _limited(awaitable: Awaitable[T], doing: str) -> T:
    try:
        async with asyncio.timeout(2 * TIMEOUT_S):
            return await awaitable
    except (KafkaError, OSError, TimeoutError) as error:
        raise classify(error, doing) from error


async def _look(
    admin: Admin,
    expected: KafkaExpected,
    own: list[str],
    tables: list[Sequence[str]],
    new_topic: Callable[[str, int], NewTopic],
) -> KafkaFacts:
    brokers = (await admin.describe_cluster())["brokers"]
    found = await admin.metadata([*own, *chain.from_iterable(tables)])
    other_names = set(chain.from_iterable(names[1:] for names in tables))
    refusals = [
        Refused("Describe", facts["topic"], for_code(facts["error_code"]).__name__)
        for facts in found
        if facts["error_code"] not in (0, _UNKNOWN_TOPIC) and facts["topic"] not in other_names
    ]
    there = {facts["topic"]: facts for facts in found if facts["error_code"] == 0}
    config, refused = await _config(admin, ConfigResourceType.BROKER, [str(brokers[0]["node_id"])])
    configs, refused_topics = await _config(admin, ConfigResourceType.TOPIC, list(there))
    refusals += refused + refused_topics
    of_broker = next(iter(config.values()), {})
    factor = expected.replication_factor
    if factor < 0:
        factor = int(of_broker.get("default.replication.factor", "1"))
    new = [new_topic(name, factor) for name in own if name not in there]
    of_tables = [new_topic(names[0], factor) for names in reversed(tables) if there.keys().isdisjoint(names)]
    new += {(topic.num_partitions, str(topic.topic_configs)): topic for topic in of_tables}.values()
    with_other_name = {names[0] for names in tables if len(names) > 1}
    refused_new = await _would_refuse(admin, new)
    plain = without_settings(new, refused_new)
    refused_plain = await _would_refuse(admin, list(plain.values()))
    refusals += [_refused("Configure", refused_new[name]) for name in plain if name not in refused_plain]
    refusals += [
        _refused("Create", refusal)
        for name, refusal in {**refused_new, **refused_plain}.items()
        if (name not in plain or name in refused_plain) and not (refusal.collides and name in with_other_name)
    ]
    new = [plain.get(topic.name, topic) for topic in new]
    refusals += await _may_not_write(admin, expected.transactional_id, list(there))
    topics = {name: _topic(facts, configs.get(name, {})) for name, facts in there.items()}
    unknown = {facts["topic"] for facts in found if facts["error_code"] == _UNKNOWN_TOPIC}
    copies = max(factor, min(COPIES, len(brokers)))
    new_topics = {
        topic.name: TopicFacts(
            topic.name,
            topic.num_partitions,
            copies if topic.name in own else factor,
            config=topic.topic_configs,
            is_new=True,
        )
        for topic in new
        if topic.name in unknown
    }
    return KafkaFacts(len(brokers), of_broker, topics, tuple(refusals), new_topics)


def _topic(facts: Mapping[str, Any], config: Mapping[str, str]) -> TopicFacts:
    partitions = facts["partitions"]
    return TopicFacts(
        facts["topic"],
        len(partitions),
        min((len(partition["replicas"]) for partition in partitions), default=0),
        sum(partition["leader"] < 0 for partition in partitions),
        config,
    )


async def _config(
    admin: Admin, kind: ConfigResourceType, names: list[str]
) -> tuple[dict[str, dict[str, str]], list[Refused]]:
    """Return the configurations by name, and a refusal for each one that the client may not
    read."""
    if not names:
        return {}, []
    configs: dict[str, dict[str, str]] = {}
    refusals = []
    for response in await admin.describe_configs([ConfigResource(kind, name, configs=None) for name in names]):
        for code, reason, _, name, entries in (item[:5] for item in response.resources):
            if code:
                on = CLUSTER if kind is ConfigResourceType.BROKER else name
                refusals.append(Refused("DescribeConfigs", on, for_code(code).__name__, reason or ""))
            else:
                configs[name] = {entry[0]: entry[1] for entry in entries}
    return configs, refusals


async def _would_refuse(admin: Admin, new: list[NewTopic]) -> dict[str, Refusal]:
    """Return a refusal for each topic that CreateTopics would refuse to create. The request is only
    validated. Raises KafkaError for an answer that says nothing about the topic."""
    if not new:
        return {}
    response = await admin.create_topics(new, validate_only=True)
    refusals = {
        topic: Refusal(topic, code, reason or "")
        for topic, code, reason in (error[:3] for error in response.topic_errors)
        if code not in (0, _TOPIC_EXISTS)
    }
    for refusal in refusals.values():
        if refusal.is_transient:
            raise for_code(refusal.code)(refusal.topic)
    return refusals


def _refused(operation: str, refusal: Refusal) -> Refused:
    return Refused(operation, refusal.topic, refusal.error, refusal.reason)


async def _may_not_write(admin: Admin, transactional_id: str, topics: list[str]) -> list[Refused]:
    """Return a refusal for each topic that the client may not write to. AddPartitionsToTxn with a
    producer id that does not exist is refused in any case, but the broker checks the client's
    permissions first."""
    codes = await admin.add_to_no_transaction(transactional_id, topics)
    refused = []
    for topic, code in codes.items():
        kind = _AUTHORIZATION.get(code)
        if kind == "TransactionalId":
            return [Refused("Write", transactional_id, for_code(code).__name__)]
        if kind is not None:
            refused.append(Refused("Write", topic, for_code(code).__name__))
    return refused
