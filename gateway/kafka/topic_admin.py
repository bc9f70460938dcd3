"""Requests about topics, in batches of a size that brokers accept and that does not block the event
loop for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KafkaError,
    NoError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from gateway.config.kafka import KafkaSettings
from gateway.errors import Retry
from gateway.kafka.aiokafka_internals.admin import Admin
from gateway.kafka.classify_errors import CREATING, DESCRIBING, WRITING, classify
from gateway.startup.kafka_checks import unknown_replication_factor
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC

log = structlog.get_logger()

ASKED_TOPICS: Final = 1000
"""The number of topics in one metadata request; decoding the answer takes 0.2 s."""
CREATED_RECORDS: Final = 2000
"""The maximum number of metadata records that one creation request may cause: one for each topic,
partition and configuration. A controller refuses a request that causes more than 10,000. With a
fifth of that number, a request takes a second, and progress is logged after each batch."""
LOGS_POLL_S = 0.02
LOGS_TIMEOUT_S = 30.0
_TOPIC_EXISTS: Final = TopicAlreadyExistsError.errno
_UNKNOWN_TOPIC: Final = UnknownTopicOrPartitionError.errno
REFUSALS: Final = frozenset(
    error.errno
    for error in (
        InvalidConfigurationError,
        InvalidPartitionsError,
        InvalidReplicationFactorError,
        InvalidTopicError,
        PolicyViolationError,
    )
)
"""Answers that refuse the creation of a topic that does not exist. If it exists, the answer is
TOPIC_ALREADY_EXISTS. Other errors, such as NOT_CONTROLLER, say nothing about the topic."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The code and the text of an answer because of which a topic was not created."""

    topic: str
    code: int
    reason: str

    @property
    def error(self) -> str:
        return str(for_code(self.code).__name__)

    @property
    def is_transient(self) -> bool:
        """Whether the answer says nothing about the topic, as while the controller moves."""
        return self.code not in REFUSALS and not self.is_denied

    @property
    def is_about_settings(self) -> bool:
        return self.code in (InvalidConfigurationError.errno, PolicyViolationError.errno)

    @property
    def collides(self) -> bool:
        """Whether the name differs from another topic's name only in '.' and '_'. (All names used
        here are valid otherwise.)"""
        return bool(self.code == InvalidTopicError.errno)

    @property
    def is_too_few_brokers(self) -> bool:
        return bool(self.code == InvalidReplicationFactorError.errno)

    @property
    def is_denied(self) -> bool:
        return self.code in (TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno)


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic that exists. `copies` is the number of replicas of the partition that has the
    fewest."""

    partition_count: int
    copies: int


def without_settings(topics: Iterable[NewTopic], refused: Mapping[str, Refusal]) -> dict[str, NewTopic]:
    """Return, by name, the topics of positions and snapshots whose settings Kafka has refused, with
    their cleanup.policy alone. Some managed Kafkas refuse the others, which keep a topic small."""
    plain: dict[str, NewTopic] = {}
    for topic in topics:
        if (
            topic.name in (POSITION_TOPIC, SNAPSHOT_TOPIC)
            and topic.name in refused
            and refused[topic.name].is_about_settings
        ):
            config = {"cleanup.policy": topic.topic_configs["cleanup.policy"]}
            plain[topic.name] = NewTopic(
                topic.name, topic.num_partitions, topic.replication_factor, topic_configs=config
            )
    return plain


class TopicAdmin:
    """A client that creates and describes topics. Methods raise Retry, RetrySlowly or
    StopForOperator."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = Admin(**settings.client_options(), request_timeout_ms=settings.request_timeout_s * 1000)
        self._replication_factor = settings.replication_factor
        self._broker_config: dict[str, str] = {}

    async def start(self) -> None:
        async with self._asking("connecting to Kafka"):
            await self._admin.start()

    async def close(self) -> None:
        await self._admin.close()

    @asynccontextmanager
    async def _asking(self, doing: str, right: str = WRITING) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._settings.delivery_timeout_s):
                yield
        except (KafkaError, OSError, TimeoutError) as error:
            raise classify(error, doing, right) from error

    async def existing(self, topics: Sequence[str]) -> dict[str, ExistingTopic]:
        """Return those of `topics` that exist. The request names the topics, because a list of all
        topics omits those that the client may not describe, as if they did not exist."""
        there: dict[str, ExistingTopic] = {}
        for some in _chunks(topics, ASKED_TOPICS):
            async with self._asking("listing topics"):
                found = await self._admin.metadata(some)
                for facts in found:
                    if facts["error_code"] not in (0, _UNKNOWN_TOPIC):
                        raise for_code(facts["error_code"])(facts["topic"])
            for facts in found:
                if not facts["error_code"]:
                    partitions = facts["partitions"]
                    copies = min((len(partition["replicas"]) for partition in partitions), default=0)
                    there[facts["topic"]] = ExistingTopic(len(partitions), copies)
        return there

    async def names(self) -> list[str]:
        """Return the names of all topics that the client may describe."""
        async with self._asking("listing all topics"):
            names: list[str] = await self._admin.list_topics()
        return names

    @property
    def broker_count(self) -> int:
        """The number of brokers that were alive when the metadata was last read."""
        return self._admin.broker_count

    async def create(self, topics: Sequence[NewTopic]) -> list[Refusal]:
        """Create topics and return those that were refused. A topic that exists already is not
        refused.

        Wait until the other topics accept records, but at most LOGS_TIMEOUT_S for each batch of
        topics.
        """
        refusals: list[Refusal] = []
        done = 0
        for batch in _batches(topics):
            async with self._asking("creating topics"):
                response = await self._admin.create_topics(batch)
            errors = [
                Refusal(topic, code, reason or "") for topic, code, reason in (e[:3] for e in response.topic_errors)
            ]
            refused = [error for error in errors if error.code not in (0, _TOPIC_EXISTS)]
            refusals += refused
            await self._wait_for_logs([error.topic for error in errors if error not in refused])
            done += len(batch)
            if len(topics) > len(batch):
                log.info("creating_topics", done=done, of=len(topics))
        return refusals

    async def unknown_to_controller(self, topics: Sequence[NewTopic]) -> list[str]:
        """Return those of `topics` that do not exist. Under load, a broker may learn of a topic
        only minutes after the controller. Therefore the controller itself is asked, by a creation
        request that is only validated."""
        unknown: list[str] = []
        for batch in _batches(topics):
            async with self._asking("asking the controller for topics", CREATING):
                response = await self._admin.create_topics(batch, validate_only=True)
                unknown += _unknown(response.topic_errors)
        return unknown

    async def _wait_for_logs(self, topics: list[str]) -> None:
        """Wait until new topics accept records. A topic accepts none until its leaders have created
        its logs, which takes milliseconds for one topic and many seconds for a thousand. Meanwhile
        the producer would retry each batch every 0.1 s, and request the metadata of all its topics
        each time. If a broker takes longer than LOGS_TIMEOUT_S, the producer's retries take
        over."""
        begun = asked = time.monotonic()
        while topics and asked - begun < LOGS_TIMEOUT_S:
            async with self._asking("waiting for new topics"):
                topics = await self._without_logs(topics)
            answered = time.monotonic()
            if topics:
                # With many topics, leave the broker half of its time for other work.
                await asyncio.sleep(max(LOGS_POLL_S, answered - asked))
            asked = time.monotonic()

    async def _without_logs(self, topics: list[str]) -> list[str]:
        """Return the topics that have a partition whose end is not known yet."""
        found = await self._admin.metadata(topics)
        waiting = {facts["topic"] for facts in found if facts["error_code"]}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for facts in found:
            for partition in facts["partitions"]:
                if partition["leader"] < 0:
                    waiting.add(facts["topic"])
                else:
                    led = by_leader.setdefault(partition["leader"], {})
                    led.setdefault(facts["topic"], []).append(partition["partition"])
        for leader, led in by_leader.items():
            waiting |= await self._admin.without_log(leader, led)
        return sorted(waiting)

    async def replication_factor(self) -> int:
        """Return the configured replication factor, or else the broker's default. The version of
        the request that aiokafka uses cannot leave the choice to the broker."""
        if self._replication_factor < 0:
            factor = (await self.broker_config()).get("default.replication.factor")
            if factor is None:
                raise unknown_replication_factor()
            self._replication_factor = int(factor)
        return self._replication_factor

    async def broker_config(self) -> dict[str, str]:
        """Return the configuration of one broker, which topics inherit. It is read once."""
        if not self._broker_config:
            async with self._asking("reading the configuration of a broker"):
                nodes = [str(broker["node_id"]) for broker in (await self._admin.describe_cluster())["brokers"]]
            self._broker_config = await self._config_of_one(nodes)
        return self._broker_config

    async def _config_of_one(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the configuration of the first broker that can be reached: each broker only
        answers for itself."""
        for node in nodes[:-1]:
            try:
                return (await self._configs(ConfigResourceType.BROKER, [node], None))[node]
            except Retry as error:
                log.debug("broker_config_unknown", broker=node, reason=error.message)
        return (await self._configs(ConfigResourceType.BROKER, nodes[-1:], None))[nodes[-1]]

    async def topic_configs(self, topics: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the named configurations of topics, including inherited values."""
        found: dict[str, dict[str, str]] = {}
        for some in _chunks(topics, ASKED_TOPICS):
            found |= await self._configs(ConfigResourceType.TOPIC, some, names)
        return found

    async def _configs(
        self, kind: ConfigResourceType, resources: Sequence[str], names: Sequence[str] | None
    ) -> dict[str, dict[str, str]]:
        what = resources[0] if len(resources) == 1 else f"{len(resources)} of them"
        async with self._asking(f"reading the configuration of {kind.name.lower()} {what}", DESCRIBING):
            asked = [ConfigResource(kind, name, configs=names and dict.fromkeys(names)) for name in resources]
            responses: list[Any] = await self._admin.describe_configs(asked)
            items = [item for response in responses for item in response.resources]
            for code, _, _, name, _ in items:
                if code:  # not every broker knows a new topic yet
                    raise for_code(code)(name)
        return {name: {entry[0]: entry[1] for entry in entries} for _, _, _, name, entries in items}


def _unknown(answers: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the topics that do not exist. Raises the answer's error if it does not show whether the
    topic exists."""
    for topic, code, *_ in answers:
        if code == NoError.errno or code in REFUSALS:
            yield topic
        elif code != _TOPIC_EXISTS:
            raise for_code(code)(topic)


def _batches(topics: Iterable[NewTopic]) -> Iterator[list[NewTopic]]:
    batch: list[NewTopic] = []
    records = 0
    for topic in topics:
        needed = 1 + topic.num_partitions + len(topic.topic_configs)
        if batch and records + needed > CREATED_RECORDS:
            yield batch
            batch, records = [], 0
        batch.append(topic)
        records += needed
    if batch:
        yield batch


def _chunks(items: Sequence[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
