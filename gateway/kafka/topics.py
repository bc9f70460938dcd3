"""Topics: made by the gateway itself, checked where they exist."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from gateway.kafka.producer import classify
from gateway.operate.errors import DataGap, StopForOperator
from gateway.operate.failpoints import failpoint
from gateway.operate.settings import KafkaSettings
from schemas.names import POSITION_TOPIC

log = structlog.get_logger()
_COMPACTED = {
    "cleanup.policy": "compact",
    # Every Kafka transaction writes a position, and a start reads them all: let the compaction keep up.
    "segment.ms": "600000",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
LOGS_POLL_S = 0.02
LOGS_TIMEOUT_S = 30.0
_NO_REPLICA, _END = -1, -1
"""ListOffsets: the one who asks is a client; the end of the log."""
_TOPIC_EXISTS = TopicAlreadyExistsError.errno
_UNKNOWN_TOPIC = UnknownTopicOrPartitionError.errno


def deleted_topics(topics: Iterable[str]) -> DataGap:
    return DataGap(
        f"topic {', '.join(topics)} was deleted: what it held is lost to its readers, also where it is made anew",
        hint="if that was meant, make the topic yourself and start again: the gateway goes on with it. Else start anew with "
        "another slot and another kafka.prefix, and load the tables anew",
    )


def refused_topic(topic: str, error: str, reason: str) -> StopForOperator:
    """What the broker says to CreateTopics."""
    if "collides with existing topic" in reason:
        hint = (
            "Kafka adds no topic whose name differs from another's in '.' and '_' only, as those of sales.order_items and "
            "sales_order.items do: rename one of the two tables or schemas, or take one out of the publication"
        )
    else:
        hint = "make it by hand, or let the gateway: it needs Create on the cluster or on the prefix"
    return StopForOperator(f"topic {topic} could not be made: {error}: {reason}".rstrip(": "), hint=hint)


class Topics:
    """Makes sure of topics; knows the partition count of each one that it saw.

    `seen` outlives this object: a topic in it that is not there any more was deleted under way and is not made anew.
    """

    def __init__(self, settings: KafkaSettings, marker_topic: str, seen: set[str]) -> None:
        self._settings = settings
        self._seen = seen
        self._single = {marker_topic, POSITION_TOPIC}
        self._admin = AIOKafkaAdminClient(
            **settings.client_options(), request_timeout_ms=settings.request_timeout_s * 1000
        )
        self._partition_counts: dict[str, int] = {}

    async def start(self) -> None:
        async with self._asking("connecting to Kafka"):
            await self._admin.start()

    @asynccontextmanager
    async def _asking(self, doing: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._settings.delivery_timeout_s):
                yield
        except (KafkaError, OSError, TimeoutError) as error:
            raise classify(error, doing) from error

    async def close(self) -> None:
        await self._admin.close()

    async def ensure(self, topics: Iterable[str]) -> dict[str, int]:
        """Make those that are missing; return the partition count of each. Raises StopForOperator, Retry."""
        wanted = list(dict.fromkeys(topics))
        if any(topic not in self._partition_counts for topic in wanted):
            async with self._asking("making topics"):
                made = await self._make_missing(wanted)
            await self._wait_for_logs(made)
        return {topic: self._partition_counts[topic] for topic in wanted}

    async def missing(self, topics: Iterable[str]) -> list[str]:
        """Those that do not exist."""
        unknown = [topic for topic in dict.fromkeys(topics) if topic not in self._partition_counts]
        if unknown:
            async with self._asking("listing topics"):
                existing = await self._existing(unknown)
            unknown = [topic for topic in unknown if topic not in existing]
        return unknown

    async def _existing(self, topics: list[str]) -> dict[str, int]:
        """Partition counts. Asked for by name: a list of all leaves out what we may not describe, as if it were missing."""
        request = MetadataRequest(topics, allow_auto_topic_creation=False)  # describe_topics would make them
        found = (await self._admin._send_request(request)).to_object()["topics"]
        for facts in found:
            if facts["error_code"] not in (0, _UNKNOWN_TOPIC):
                raise for_code(facts["error_code"])(facts["topic"])
        return {facts["topic"]: len(facts["partitions"]) for facts in found if not facts["error_code"]}

    async def _make_missing(self, wanted: list[str]) -> list[str]:
        """Those that were made."""
        existing = await self._existing(wanted)
        missing = [topic for topic in wanted if topic not in existing]
        deleted = [topic for topic in missing if topic in self._seen]
        if deleted:
            raise deleted_topics(deleted)
        if missing:
            failpoint("before_topic_creation")
            factor = await self._replication_factor()
            response = await self._admin.create_topics([self._new_topic(topic, factor) for topic in missing])
            for topic, code, reason in (error[:3] for error in response.topic_errors):
                if code not in (0, _TOPIC_EXISTS):
                    raise refused_topic(topic, for_code(code).__name__, reason or "")
                log.info("topic_created", topic=topic)
            failpoint("after_topic_creation")
        for topic in wanted:
            count = existing.get(topic) or self._new_topic(topic, 1).num_partitions
            self._check(topic, count)
            self._partition_counts[topic] = count
            self._seen.add(topic)
        return missing

    async def _wait_for_logs(self, made: list[str]) -> None:
        """A topic takes no records before its leaders have made its logs: some milliseconds, for a thousand topics many
        seconds. The producer would try each batch again every 0.1 s, and ask for the metadata of all its topics each time.
        A broker that takes still longer is left to it."""
        begun = asked = time.monotonic()
        while made and asked - begun < LOGS_TIMEOUT_S:
            async with self._asking("waiting for new topics"):
                made = await self._without_logs(made)
            answered = time.monotonic()
            if made:
                # Many topics: leave the broker half of its time.
                await asyncio.sleep(max(LOGS_POLL_S, answered - asked))
            asked = time.monotonic()

    async def _without_logs(self, topics: list[str]) -> list[str]:
        """Those of which a partition does not tell its end."""
        request = MetadataRequest(topics, allow_auto_topic_creation=False)
        found = (await self._admin._send_request(request)).to_object()["topics"]
        waiting = {facts["topic"] for facts in found if facts["error_code"]}
        by_leader: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for facts in found:
            for partition in facts["partitions"]:
                if partition["leader"] < 0:
                    waiting.add(facts["topic"])
                else:
                    places = by_leader.setdefault(partition["leader"], {})
                    places.setdefault(facts["topic"], []).append((partition["partition"], _END))
        for leader, places in by_leader.items():
            ends = await self._admin._send_request(OffsetRequest(_NO_REPLICA, 0, list(places.items())), leader)
            waiting |= {topic for topic, partitions in ends.topics if any(code for _, code, *_ in partitions)}
        return sorted(waiting)

    def _new_topic(self, topic: str, replication_factor: int) -> NewTopic:
        settings = self._settings
        config: dict[str, str] = {"max.message.bytes": str(settings.max_record_bytes)}
        partitions = 1 if topic in self._single else settings.partitions
        if topic == POSITION_TOPIC:
            config |= _COMPACTED
        elif settings.retention_ms is not None:
            config["retention.ms"] = str(settings.retention_ms)
        for override in settings.topics:
            if re.fullmatch(override.pattern, topic):
                config |= override.config
                if override.partitions is not None and topic not in self._single:
                    partitions = override.partitions
        return NewTopic(topic, partitions, replication_factor, topic_configs=config)

    def _check(self, topic: str, partition_count: int) -> None:
        if topic in self._single and partition_count != 1:
            raise StopForOperator(
                f"topic {topic} has {partition_count} partitions; its order is commit order, so it must have one",
                hint="use another kafka.prefix, or delete the topic if nothing needs it",
            )

    async def _replication_factor(self) -> int:
        """The setting, or the broker's default: aiokafka's version of the request can not leave it to the broker."""
        if self._settings.replication_factor > 0:
            return self._settings.replication_factor
        node = (await self._admin.describe_cluster())["brokers"][0]["node_id"]
        return int((await self._describe(ConfigResourceType.BROKER, str(node)))["default.replication.factor"])

    async def _describe(self, kind: ConfigResourceType, name: str) -> dict[str, str]:
        responses: list[Any] = await self._admin.describe_configs([ConfigResource(kind, name, configs=None)])
        items = [item for response in responses for item in response.resources]
        for code, reason in (item[:2] for item in items):
            if code:  # a topic that was just made is not known to every broker yet
                raise for_code(code)(reason)
        return {entry[0]: entry[1] for item in items for entry in item[4]}

    async def check_position_topic(self) -> None:
        """A position that retention may delete is no durable position."""
        async with self._asking(f"reading the configuration of {POSITION_TOPIC}"):
            policy = (await self._describe(ConfigResourceType.TOPIC, POSITION_TOPIC)).get("cleanup.policy", "")
        if policy != "compact":
            raise StopForOperator(
                f"topic {POSITION_TOPIC} has cleanup.policy={policy}: retention would delete positions",
                hint=f"kafka-configs.sh --alter --topic {POSITION_TOPIC} --add-config cleanup.policy=compact",
            )
