"""All topics of the gateway, not only those of relations. This module creates topics, warns of
those that the loss of a disk could destroy, and detects deleted ones. It also chooses the names of
the topics of relations.

The name of a relation's topic depends only on the settings and on Kafka, so that every start
chooses the same name, whichever relation comes first:

1. the name that `kafka.topic_names` gives the topic; else
2. the first of its possible names (schemas/topic_names.py) whose topic exists; else
3. the first name under which Kafka creates a topic. Kafka refuses a name that differs from another
   topic's name only in '.' and '_'.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import structlog
from aiokafka.admin import NewTopic
from aiokafka.errors import for_code

from gateway.config.kafka import KafkaSettings
from gateway.errors import NEW_PREFIX, DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.failpoints import failpoint
from gateway.kafka.classify_errors import CREATING, classify
from gateway.kafka.durability import COPIES, IN_SYNC, MIN_IN_SYNC, UNCLEAN, Durability, cautions, durability_of
from gateway.kafka.topic_admin import Refusal, TopicAdmin, without_settings
from gateway.startup.findings import OperatorWarning, report_of
from gateway.startup.kafka_checks import check_compacted, check_single_partition, check_truncates, refused_settings
from schemas.schema_metadata import recorded_relation
from schemas.topic_names import (
    POSITION_TOPIC,
    SNAPSHOT_TOPIC,
    avro_namespace,
    collision_name,
    debezium_topic,
    format_relation,
    message_topic,
    relation_of_topic,
    topic_is_free,
    topic_names,
    value_subject,
)

log = structlog.get_logger()

T = TypeVar("T")

Name = tuple[str, str]
"""A relation's schema and name."""

_MANY = 100
"""From this number of new topics on, the log counts them but does not name them."""

_COMPACTED = {
    # Every Kafka transaction writes a position, and a start reads them all: compaction must keep
    # up.
    "segment.ms": "600000",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


def deleted_topics(topics: Iterable[str]) -> DataGap:
    return DataGap(
        f"these topics were deleted: {', '.join(topics)}; their records are lost to consumers, even if the topics are recreated",
        hint="if they were deleted on purpose, create the topics yourself and restart the gateway: it continues with the new "
        f"topics. Otherwise {NEW_PREFIX}",
    )


def topic_of_another(topic: str, relation: Name, holds: Name | None) -> StopForOperator:
    other = "another table" if holds is None else format_relation(*holds)
    return StopForOperator(
        f"kafka.topic_names assigns topic {topic} to {format_relation(*relation)}, but the topic contains changes of {other}",
        hint="give the table a topic that no other table has ever used: consumers identify a table by its topic",
    )


def topic_of_two(topic: str, relation: Name, other: Name) -> StopForOperator:
    return StopForOperator(
        f"{format_relation(*relation)} and {format_relation(*other)} would both have the topic {topic} under Debezium's naming",
        hint="give one of them a different topic with kafka.topic_names",
    )


def compacted_without_key(topic: str, relation: str) -> StopForOperator:
    return StopForOperator(
        f"{relation} has no key of NOT NULL columns, but with debezium.compacted_topics the topic {topic} needs one",
        hint="set cleanup.policy = delete for its topic, both with kafka-configs.sh and in kafka.topics. Adding such a "
        "key, or removing the table from the publication, is not enough: it affects only later changes",
    )


def refused_topic(refusal: Refusal) -> WalgateError:
    text = f"topic {refusal.topic} could not be created: {refusal.error}: {refusal.reason}".rstrip(": ")
    if refusal.collides:
        hint = (
            "Kafka does not create a topic if the name of an existing one is the same except for '.' and '_': set "
            "another kafka.prefix (for one table, another topic with kafka.topic_names), or delete the other "
            "topic if it is not needed"
        )
        return StopForOperator(text, hint=hint)
    if refusal.is_too_few_brokers:
        hint = "start the brokers that are down, or set kafka.replication_factor to at most the number of brokers"
        return RetrySlowly(text, hint=hint)
    if refusal.is_denied:
        return RetrySlowly(
            text,
            hint="grant Create on the cluster or on the topic (kafka-acls.sh ... --topic <topic>; for the topics of all tables: "
            "--topic <prefix>. --resource-pattern-type prefixed), or create the topic yourself",
        )
    if refusal.is_transient:
        return classify(for_code(refusal.code)(refusal.reason), f"creating topic {refusal.topic}", CREATING)
    return StopForOperator(text, hint="change the setting that the broker rejects, or create the topic yourself")


def is_of_other_prefix(settings: KafkaSettings, subject: str, schema: dict[str, Any]) -> bool:
    """Return whether a gateway with another topic prefix, which may begin with this one, wrote this
    schema of a relation. The namespace shows the prefix; in Debezium's format, it is whatever
    precedes the relation's name in the topic."""
    relation = recorded_relation(schema)
    if relation is None:
        return False
    if schema.get("name") == "Change":
        return bool(schema.get("namespace") != avro_namespace(settings.prefix, *relation))
    own = map(value_subject, (debezium_topic(settings.prefix, *relation), *settings.topic_names.values()))
    return subject.endswith(value_subject(debezium_topic("", *relation))) and subject not in own


class Topics:
    """The gateway's topics. This class creates those that are missing, and knows the partition
    count of each topic that it has seen. Methods raise WalgateError.

    `seen` outlives this object: a topic that is in `seen` but no longer exists was deleted, and is
    not recreated. `warn` is called with the topics that the loss of a disk could destroy.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        marker_topic: str,
        seen: set[str],
        warn: Callable[[tuple[OperatorWarning, ...]], None],
        *,
        compacted: bool = False,
        writes_truncates: bool = False,
    ) -> None:
        """`compacted` says whether new topics of tables are compacted; `writes_truncates`, whether
        truncates are records in topics of tables."""
        self._compacted = compacted
        self._writes_truncates = writes_truncates
        self._settings = settings
        self._warn = warn
        self._unchecked: dict[str, int] = {}
        self._seen = seen
        self._marker_topic = marker_topic
        self._single = {marker_topic, POSITION_TOPIC, SNAPSHOT_TOPIC}
        self._admin = TopicAdmin(settings)
        self._partition_counts: dict[str, int] = {}
        self._topics: dict[Name, str] = {}
        self._listed: set[str] | None = None

    async def start(self) -> None:
        await self._admin.start()

    async def close(self) -> None:
        await self._admin.close()

    async def ensure(self, topics: Iterable[str]) -> dict[str, int]:
        """Create those of `topics` that are missing; return the partition count of each topic."""
        wanted = list(dict.fromkeys(topics))
        unknown = [topic for topic in wanted if topic not in self._partition_counts]
        if unknown:
            missing = await self.missing(unknown)
            await self.refuse_deleted(topic for topic in missing if topic in self._seen)
            for refusal in await self._create(missing):
                raise refused_topic(refusal)
            await self._check_durability()
        return {topic: self._partition_counts[topic] for topic in wanted}

    async def missing(self, topics: Iterable[str]) -> list[str]:
        """Return those of `topics` that do not exist."""
        unknown = [topic for topic in dict.fromkeys(topics) if topic not in self._partition_counts]
        for topic, found in (await self._admin.existing(unknown)).items():
            self._note(topic, found.partition_count)
            self._unchecked[topic] = found.copies
        return [topic for topic in unknown if topic not in self._partition_counts]

    async def ensure_relations(self, relations: Iterable[Name]) -> None:
        """Create a topic for each relation that has none. Afterwards, `of_relation` knows the
        topics of all these relations."""
        missing = await self.without_topic(relations)
        names_of_missing = (topic for relation in missing for topic in self.possible_names(relation))
        await self.refuse_deleted(topic for topic in names_of_missing if topic in self._seen)
        names = {relation: list(self.possible_names(relation)) for relation in missing}
        taken: set[str] = set()
        for relation in missing:  # a controller does not compare the topics of one request with each other
            if len(names[relation]) > 1 and collision_name(names[relation][0]) in taken:
                del names[relation][0]
            taken.add(collision_name(names[relation][0]))
        while names:
            # Under Debezium's naming, two tables may share a topic.
            first = list(dict.fromkeys(own[0] for own in names.values()))
            refusals = {refusal.topic: refusal for refusal in await self._create(first)}
            for relation, own in list(names.items()):
                refusal = refusals.get(own[0])
                if refusal is None:
                    self._topics[relation] = own[0]
                    if relation_of_topic(self._settings.prefix, own[0]) != relation:
                        log.info("topic_named", relation=format_relation(*relation), topic=own[0])
                    del names[relation]
                elif refusal.collides and len(own) > 1:
                    del own[0]
                else:
                    raise refused_topic(refusal)
        await self._check_durability()

    async def without_topic(self, relations: Iterable[Name]) -> list[Name]:
        """Return the relations for which no topic exists."""
        unknown = [relation for relation in dict.fromkeys(relations) if relation not in self._topics]
        possible = {relation: self.possible_names(relation) for relation in unknown}
        for nth in range(max(map(len, possible.values()), default=0)):
            left = {relation: names[nth] for relation, names in possible.items() if len(names) > nth}
            absent = set(await self.missing(left.values()))
            for relation, topic in left.items():
                if topic not in absent:
                    self._topics[relation] = topic
                    del possible[relation]
        return list(possible)

    def possible_names(self, relation: Name) -> tuple[str, ...]:
        """Return the names of a relation's topic in the order in which they are tried."""
        given = self._settings.topic_names.get(format_relation(*relation))
        if given is not None:
            return (given,)
        if self._settings.dialect == "debezium":
            return (debezium_topic(self._settings.prefix, *relation),)
        return topic_names(self._settings.prefix, *relation)

    async def of_relations(self) -> list[str]:
        """Return the existing topics that may be those of relations, whatever their names are now.
        Kafka is asked once: later topics are those of `ensure_relations`."""
        if self._listed is None:
            given = set(self._settings.topic_names.values())
            names = await self._admin.names()
            self._listed = {each for each in names if each in given or each.startswith(f"{self._settings.prefix}.")}
        return sorted(self._listed.union(self._topics.values()))

    def may_be_of_others(self, topic: str) -> bool:
        """Return whether no relation has this topic by the settings, though it has the prefix:
        another application may have made it."""
        if self._settings.dialect == "debezium":
            has_free_name = "." not in topic.removeprefix(f"{self._settings.prefix}.")
        else:
            has_free_name = topic_is_free(self._settings.prefix, topic)
        return has_free_name and topic not in self._settings.topic_names.values()

    def is_given(self, relation: Name) -> bool:
        """Return whether kafka.topic_names names the relation's topic."""
        return format_relation(*relation) in self._settings.topic_names

    def of_relation(self, relation: Name) -> str:
        return self._topics[relation]

    def shared_with(self, relation: Name) -> Name | None:
        """Return another relation that has the same topic, if any. Debezium's naming allows
        this."""
        topic = self._topics[relation]
        return next((other for other, name in self._topics.items() if name == topic and other != relation), None)

    def partition_count(self, topic: str) -> int:
        return self._partition_counts[topic]

    def _note(self, topic: str, partition_count: int) -> None:
        if topic in self._single and not self._is_debeziums(topic):
            report_of(check_single_partition(topic, partition_count)).raise_errors()
        if self._writes_truncates and self._is_of_table(topic):
            self._warn(tuple(check_truncates(partition_count)))
        self._partition_counts[topic] = partition_count
        self._seen.add(topic)

    def _is_of_table(self, topic: str) -> bool:
        return topic not in self._single and topic != message_topic(self._settings.prefix)

    def _is_debeziums(self, topic: str) -> bool:
        """Return whether a Debezium connector may have created the topic earlier. Nothing depends
        on the order of the records in such a topic."""
        return self._settings.dialect == "debezium" and topic == self._marker_topic

    async def refuse_deleted(self, missing: Iterable[str]) -> None:
        """Raise an error about topics that existed earlier and that the broker does not know:
        DataGap if the controller does not know them either, otherwise Retry."""
        topics = list(missing)
        if not topics:
            return
        deleted = await self._admin.unknown_to_controller([self.new_topic(topic, 1) for topic in topics])
        if deleted:
            raise deleted_topics(deleted)
        raise Retry(
            f"the broker's metadata does not yet contain all existing topics: {topics[0]} is missing"
            + (f", and {len(topics) - 1} more" if len(topics) > 1 else ""),
            hint="the broker is overloaded or has just started: the gateway tries again. If this persists, see the broker's log",
        )

    async def _create(self, topics: list[str]) -> list[Refusal]:
        if not topics:
            return []
        failpoint("before_topic_creation")
        factor = await self._admin.replication_factor()
        new = [self.new_topic(topic, self._copies(topic, factor)) for topic in topics]
        refused = await self._refused(new)
        plain = without_settings(new, refused)
        if plain:
            again = await self._refused(list(plain.values()))
            taken = {name: refused.pop(name) for name in plain if name not in again}
            self._warn(tuple(refused_settings(name, each.error, each.reason) for name, each in taken.items()))
            refused |= again
            new = [plain.get(topic.name, topic) for topic in new]
        for topic in new:
            if topic.name not in refused:
                (log.info if len(new) < _MANY else log.debug)("topic_created", topic=topic.name)
                self._note(topic.name, topic.num_partitions)
        await self._check_new([topic for topic in new if topic.name not in refused])
        failpoint("after_topic_creation")
        return list(refused.values())

    async def _refused(self, new: list[NewTopic]) -> dict[str, Refusal]:
        return {refusal.topic: refusal for refusal in await self._admin.create(new)}

    def _copies(self, topic: str, replication_factor: int) -> int:
        """Return the replication factor of a topic. The topics of markers, positions and snapshots
        may get a higher one: everything depends on them, and their records are few."""
        return (
            max(replication_factor, min(COPIES, self._admin.broker_count))
            if topic in self._single
            else replication_factor
        )

    async def _check_durability(self) -> None:
        """Check the durability of topics that existed already, once for each topic."""
        unchecked, self._unchecked = self._unchecked, {}
        if self._admin.broker_count < 2 or not unchecked:
            return
        configs = await self._if_allowed(self._admin.topic_configs(list(unchecked), (MIN_IN_SYNC, UNCLEAN)))
        self._judge({topic: durability_of(copies, configs.get(topic, {})) for topic, copies in unchecked.items()})

    async def _check_new(self, topics: list[NewTopic]) -> None:
        """Check the durability of new topics without describing each. They have the configuration
        with which they were created, and inherit the rest from the broker."""
        if self._admin.broker_count < 2 or not topics:
            return
        inherited = await self._if_allowed(self._admin.broker_config())
        self._judge(
            {each.name: durability_of(each.replication_factor, {**inherited, **each.topic_configs}) for each in topics}
        )

    async def _if_allowed(self, asking: Awaitable[dict[str, T]]) -> dict[str, T]:
        """Return the result, or an empty dict if the client lacks the permission to ask: the check
        is not worth waiting for."""
        try:
            return await asking
        except RetrySlowly as error:
            log.info("durability_unknown", reason=error.message, hint=error.hint)
            return {}

    def _judge(self, topics: dict[str, Durability]) -> None:
        self._warn(tuple(cautions(topics, self._admin.broker_count)))

    def new_topic(self, topic: str, replication_factor: int) -> NewTopic:
        settings = self._settings
        config: dict[str, str] = {"max.message.bytes": str(settings.max_record_bytes)}
        partitions = 1 if topic in self._single else settings.partitions
        if topic in self._single and replication_factor >= COPIES:
            config[MIN_IN_SYNC] = str(IN_SYNC)
        if topic in (POSITION_TOPIC, SNAPSHOT_TOPIC):
            config |= _COMPACTED
        elif settings.retention_ms is not None:
            config["retention.ms"] = str(settings.retention_ms)
        if self._compacted and self._is_of_table(topic):
            config["cleanup.policy"] = "compact"
        for override in settings.topics:
            if re.fullmatch(override.pattern, topic):
                config |= override.config
                if override.partitions is not None and topic not in self._single:
                    partitions = override.partitions
        config |= self._required_policy(topic)
        return NewTopic(topic, partitions, replication_factor, topic_configs=config)

    def _required_policy(self, topic: str) -> dict[str, str]:
        """Return the cleanup.policy that a topic must have, whatever kafka.topics says: markers and
        logical decoding messages have no key, and a compacted topic refuses such records."""
        if topic in (POSITION_TOPIC, SNAPSHOT_TOPIC):
            return {"cleanup.policy": "compact"}
        if self._settings.dialect == "walgate" and topic in (self._marker_topic, message_topic(self._settings.prefix)):
            return {"cleanup.policy": "delete"}
        return {}

    def makes_compacted(self, topic: str) -> bool:
        """Return whether the settings make this topic compacted. Such a topic refuses records
        without a key."""
        policy: str | None = self.new_topic(topic, 1).topic_configs.get("cleanup.policy")
        return policy == "compact"

    async def check_compacted(self, topic: str) -> None:
        """Raise an error unless the topic is compacted: retention could delete a position or the
        state of a snapshot."""
        config = (await self._admin.topic_configs([topic], ["cleanup.policy"]))[topic]
        report_of(check_compacted(topic, config)).raise_errors()
