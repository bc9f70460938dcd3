"""Checks of Kafka: the brokers' settings, the gateway's topics, and its permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.errors import RetrySlowly, StopForOperator
from gateway.startup.findings import Finding, OperatorWarning
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC, counted, message_topic

CLUSTER: Final = "the cluster"
_POLICY: Final = "cleanup.policy"
_DAY_MS: Final = 24 * 3600 * 1000
_MIRROR_MS: Final = 3 * _DAY_MS
"""Retention below three days is reported: a mirror that is down for a long weekend would have to
start again with a new snapshot."""
_TOO_FEW_BROKERS: Final = "InvalidReplicationFactorError"
_LISTED: Final = 5
_AUTHORIZATION: Final = (
    "kafka-acls.sh --bootstrap-server ... --add --allow-principal User:<principal> --operation {operations} {resource} "
    "(complete list: docs/checklist.md)"
)
_ALTER_TOPIC: Final = (
    "kafka-configs.sh --bootstrap-server ... --alter --entity-type topics --entity-name {} --add-config "
)


@dataclass(frozen=True, slots=True)
class KafkaExpected:
    """Values from the settings. `tls` and `sasl` are derived from kafka.security_protocol."""

    prefix: str
    position_topic: str
    marker_topic: str
    transactional_id: str
    tls: bool = False
    sasl: bool = False
    mechanism: str = "PLAIN"
    own_certificate: bool = False
    replication_factor: int = -1
    retention_ms: int | None = None
    max_record_bytes: int = 16 << 20
    transaction_timeout_ms: int = 900_000
    exactly_once: bool = True
    counts_records: bool = True
    """Whether markers count the records of tables: in Debezium's dialect they do not."""
    writes_truncates: bool = False
    """Whether truncates are records in the topics of tables."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    name: str
    partitions: int
    replicas: int
    """The smallest number of replicas of any of its partitions."""
    leaderless: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    is_new: bool = False
    """Whether the topic does not exist. The gateway would create it with this configuration, which
    does not contain what it inherits from the brokers."""

    def remedy(self, name: str, value: object) -> str:
        """Return how to give a configuration of the topic this value."""
        if self.is_new:
            return f'in kafka.topics, set "{name}" = "{value}" for {self.name}'
        return f"{_ALTER_TOPIC.format(self.name)}{name}={value}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that the broker refuses. `operation` is Create, Configure, Write, Describe or
    DescribeConfigs; `on` is a topic, the transactional id, or CLUSTER. With Configure, the topic
    would be created without its settings."""

    operation: str
    on: str
    error: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """Facts about the cluster. `config` is the configuration of a broker; it is empty if the
    gateway may not see it."""

    broker_count: int
    config: Mapping[str, str]
    topics: Mapping[str, TopicFacts]
    refusals: tuple[Refused, ...] = ()
    new_topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    """Topics that the gateway would create. Of the tables' topics with the same configuration, only
    one is here."""

    @property
    def unseen(self) -> frozenset[str]:
        """Topics that may or may not exist, because Kafka does not allow Describe on them."""
        return frozenset(refused.on for refused in self.refusals if refused.operation == "Describe")


def check_brokers(facts: KafkaFacts, expected: KafkaExpected) -> Iterator[Finding]:
    """Check the brokers' settings against those of the gateway."""
    yield from _replication(facts, expected)
    config = facts.config
    longest = _number(config, "transaction.max.timeout.ms")
    if longest is not None and expected.exactly_once and longest < expected.transaction_timeout_ms:
        yield StopForOperator(
            f"the broker allows a transaction timeout of at most {longest // 1000} s, but kafka.transaction_timeout_s "
            f"is {expected.transaction_timeout_ms // 1000}",
            hint=f"set kafka.transaction_timeout_s = {longest // 1000}, or raise the brokers' "
            "transaction.max.timeout.ms",
        )
    request = _number(config, "socket.request.max.bytes")
    if request is not None and expected.max_record_bytes >= request:
        yield StopForOperator(
            f"kafka.max_record_bytes is {expected.max_record_bytes}, but the brokers accept requests of at "
            f"most {request} bytes",
            hint="lower kafka.max_record_bytes, or raise the brokers' socket.request.max.bytes",
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield OperatorWarning(
            "unclean.leader.election.enable is true: acknowledged records may be lost when a broker fails",
            "kafka-configs.sh --bootstrap-server ... --alter --entity-type brokers --entity-default "
            "--add-config unclean.leader.election.enable=false",
        )


def _replication(facts: KafkaFacts, expected: KafkaExpected) -> Iterator[Finding]:
    """Check replication factors. Settings that the gateway may not see are skipped."""
    config, brokers = facts.config, facts.broker_count
    factor, source = _replication_factor(facts, expected)
    if factor is None:
        if config:
            yield unknown_replication_factor()
        return
    if factor > brokers:
        yield RetrySlowly(
            f"{source} is {factor}, but there {_brokers_there(brokers)}",
            hint=f"set kafka.replication_factor = {brokers}, or start more brokers",
        )
    elif factor < min(brokers, 3):
        yield OperatorWarning(
            f"new topics have only {counted(factor, 'replica')}, although there {_brokers_there(brokers)}: changes that were "
            f"confirmed to PostgreSQL are lost if {('that replica is' if factor == 1 else 'those replicas are')} lost",
            f"set kafka.replication_factor = {min(brokers, 3)} before the first start",
        )
    least = _number(config, "min.insync.replicas")
    if least is not None and least > factor:
        yield OperatorWarning(
            f"min.insync.replicas is {least}, but new topics have {counted(factor, 'replica')}: {_fewer_replicas(factor)}",
            f"set kafka.replication_factor = {least} or more",
        )
    elif least is not None and factor >= 3 and least < 2:
        yield OperatorWarning(
            "min.insync.replicas is 1: a record is acknowledged even if only one broker has it",
            "kafka-configs.sh --bootstrap-server ... --alter --entity-type brokers --entity-default "
            "--add-config min.insync.replicas=2",
        )
    state = _number(config, "transaction.state.log.replication.factor")
    if state is not None and state > brokers:
        yield RetrySlowly(
            f"transaction.state.log.replication.factor is {state}, but there {_brokers_there(brokers)}: no Kafka "
            "transaction can begin",
            hint=f"set transaction.state.log.replication.factor={brokers} and "
            "transaction.state.log.min.isr=1 in server.properties, or start more brokers",
        )


def _replication_factor(facts: KafkaFacts, expected: KafkaExpected) -> tuple[int | None, str]:
    """Return the replication factor of new topics, and the setting from which it comes. The factor
    is None if the gateway may not see that setting."""
    if expected.replication_factor >= 0:
        return expected.replication_factor, "kafka.replication_factor"
    return _number(facts.config, "default.replication.factor"), "default.replication.factor"


def refused_settings(topic: str, error: str, reason: str) -> OperatorWarning:
    """Return the warning about a topic of positions or snapshots that is created without the
    settings that keep it small."""
    return OperatorWarning(
        f"Kafka rejects the settings of topic {topic} ({error}{reason and f': {reason}'}): the topic is created with "
        "cleanup.policy=compact alone",
        "it grows larger between two compactions, and a start takes longer to read it. Set those of its settings that "
        "Kafka accepts (docs/checklist.md, Kafka)",
    )


def unknown_replication_factor() -> StopForOperator:
    return StopForOperator(
        "the configuration that the broker shows does not contain default.replication.factor",
        hint="set kafka.replication_factor",
    )


def _fewer_replicas(count: int) -> str:
    """Describe how brokers behave if min.insync.replicas exceeds the number of replicas."""
    return f"Kafka then requires only {counted(count, 'in-sync replica')}; older versions of Kafka do not acknowledge any record"


def _brokers_there(count: int) -> str:
    return f"{'is' if count == 1 else 'are'} {counted(count, 'broker')}"


def check_topics(facts: KafkaFacts, expected: KafkaExpected) -> Iterator[Finding]:
    """Check the gateway's topics as they are, and as the gateway would create them."""
    for topic in facts.topics.values():
        is_compacted = topic.name in (expected.position_topic, SNAPSHOT_TOPIC)
        if is_compacted or (topic.name == expected.marker_topic and expected.counts_records):
            yield from check_single_partition(topic.name, topic.partitions)
        if is_compacted and topic.config:
            yield from check_compacted(topic.name, topic.config)
    topics = (*facts.topics.values(), *facts.new_topics.values())
    for topic in topics:
        yield from _topic(topic, expected)
    if expected.writes_truncates:
        others = {expected.position_topic, expected.marker_topic, SNAPSHOT_TOPIC, message_topic(expected.prefix)}
        yield from check_truncates(max((each.partitions for each in topics if each.name not in others), default=0))
    yield from _retention(facts, expected)


def check_single_partition(name: str, partitions: int) -> Iterator[Finding]:
    if partitions == 1:
        return
    if name == POSITION_TOPIC:
        yield StopForOperator(
            f"topic {name} has {partitions} partitions; it must have exactly one",
            hint="delete the topic only if no gateway has stored a resume LSN in it, or if you accept the consequence: each "
            "gateway that has stored one then needs a new source.slot, a new kafka.prefix and a new snapshot of its tables, and "
            "its old slot must be dropped. The gateway creates the topic again, with one partition",
        )
    elif name == SNAPSHOT_TOPIC:
        yield StopForOperator(
            f"topic {name} has {partitions} partitions; it must have exactly one",
            hint="delete the topic: the gateway creates it with one partition. Then start the incomplete snapshots again: "
            "walgate snapshot start",
        )
    else:
        yield StopForOperator(
            f"topic {name} has {partitions} partitions; it must have exactly one, because its records must be in "
            "commit order",
            hint="use another kafka.prefix (and another source.slot, if the current slot has already been used). If (and only "
            "if) nothing has been delivered from the current slot, and no consumer needs the records of the topic, you can "
            "instead delete the topic: the gateway creates it with one partition",
        )


def check_truncates(partitions: int) -> Iterator[OperatorWarning]:
    """Warn if truncates are written to a topic with several partitions."""
    if partitions > 1:
        yield OperatorWarning(
            "truncates are sent (debezium.skipped_operations), and topics of tables have several partitions: a truncate has no "
            "key, so it is in the first partition only. A consumer that applies it, such as a JDBC sink with truncate.enabled, "
            "may keep rows that were truncated, or remove rows that were inserted afterwards",
            "if a consumer applies truncates, give the topics of its tables one partition: set kafka.partitions = 1, or "
            "partitions in kafka.topics, before they are created. Otherwise include t in debezium.skipped_operations",
        )


def check_compacted(name: str, config: Mapping[str, str]) -> Iterator[Finding]:
    """Refuse a topic of positions or snapshots that is not compacted: retention would delete their
    states, which must be durable."""
    policy = config.get(_POLICY, "")
    if policy == "compact":
        return
    if name == SNAPSHOT_TOPIC:
        yield StopForOperator(
            f"topic {name} has cleanup.policy={policy}: retention would delete the progress of snapshots",
            hint="kafka-configs.sh --bootstrap-server ... --alter --entity-type topics "
            f"--entity-name {name} --add-config cleanup.policy=compact (if retention has deleted progress already, also take a "
            "new snapshot of the unfinished tables: walgate snapshot start)",
        )
    else:
        yield StopForOperator(
            f"topic {name} has cleanup.policy={policy}: retention would delete the resume LSNs",
            hint="kafka-configs.sh --bootstrap-server ... --alter --entity-type topics "
            f"--entity-name {name} --add-config cleanup.policy=compact",
        )


def _topic(topic: TopicFacts, expected: KafkaExpected) -> Iterator[Finding]:
    config = topic.config
    alter = _ALTER_TOPIC.format(topic.name)
    if topic.leaderless:
        yield RetrySlowly(
            f"topic {topic.name} has {counted(topic.leaderless, 'partition')} without a leader",
            hint="start the brokers that hold the replicas (kafka-topics.sh "
            "--bootstrap-server ... --describe --unavailable-partitions)",
        )
    least = _number(config, "min.insync.replicas")
    if least is not None and least > topic.replicas:
        yield OperatorWarning(
            f"topic {topic.name} has {counted(topic.replicas, 'replica')}, but its min.insync.replicas is {least}: "
            f"{_fewer_replicas(topic.replicas)}",
            "add replicas (kafka-reassign-partitions.sh), or lower the minimum: "
            + topic.remedy("min.insync.replicas", max(topic.replicas - 1, 1)),
        )
    if topic.name == expected.position_topic:
        return
    policy = config.get(_POLICY, "delete")
    removes_counted = topic.name != SNAPSHOT_TOPIC and expected.counts_records and "compact" in policy
    if removes_counted and topic.name == expected.marker_topic:
        yield StopForOperator(
            f"topic {topic.name} is compacted: markers have no key, so Kafka would reject them",
            hint=f"{alter}cleanup.policy=delete",
        )
    elif removes_counted:
        yield OperatorWarning(
            f"topic {topic.name} is compacted: Kafka removes records that the markers count, and a consumer that misses one "
            "stops; records without a key are rejected",
            topic.remedy(_POLICY, "delete"),
        )
    largest = _number(config, "max.message.bytes")
    if largest is not None and largest < expected.max_record_bytes:
        yield OperatorWarning(
            f"topic {topic.name} accepts record batches of at most {largest} bytes, but kafka.max_record_bytes is "
            f"{expected.max_record_bytes}: a row larger than the topic's limit stops the gateway",
            topic.remedy("max.message.bytes", expected.max_record_bytes),
        )
    kept = _number(config, "retention.bytes")
    if kept is not None and 0 <= kept < expected.max_record_bytes and "delete" in policy:
        yield OperatorWarning(
            f"topic {topic.name} keeps only about {kept} bytes of each partition, less than one record may have "
            f"(kafka.max_record_bytes = {expected.max_record_bytes}): a consumer that falls behind misses records, and stops",
            topic.remedy("retention.bytes", -1),
        )


def _retention(facts: KafkaFacts, expected: KafkaExpected) -> Iterator[Finding]:
    of_new = expected.retention_ms
    if of_new is None:
        of_new = _broker_retention_ms(facts.config)
    if of_new is not None and 0 <= of_new < _MIRROR_MS:
        yield OperatorWarning(
            f"new topics keep records {_hours(of_new)}: a mirror that is down for longer stops, and must be replaced by a new "
            "mirror with a new snapshot of its tables",
            "before the first start, set kafka.retention_ms to -1, or to the longest time (in ms) that a consumer may be down",
        )
    topics = {**facts.new_topics, **facts.topics}
    marker = topics.get(expected.marker_topic)
    kept = _own_retention_ms(marker, of_new) if marker is not None else None
    for topic in topics.values():
        own = _own_retention_ms(topic, of_new)
        is_read_by_marker = topic.name not in (expected.marker_topic, expected.position_topic, SNAPSHOT_TOPIC)
        if (
            not is_read_by_marker
            or own is None
            or own < 0
            or "delete" not in topic.config.get("cleanup.policy", "delete")
        ):
            continue
        if kept is not None and (kept < 0 or own < kept):
            yield OperatorWarning(
                f"topic {topic.name} keeps records {_hours(own)}, but {expected.marker_topic} keeps them "
                f"{_hours(kept)}: a consumer that starts at the oldest marker misses records, and stops",
                topic.remedy("retention.ms", kept),
            )
        elif own < _MIRROR_MS and not (topic.is_new and own == of_new):
            yield OperatorWarning(
                f"topic {topic.name} keeps records {_hours(own)}: a mirror that is down for longer stops, and must be replaced "
                "by a new mirror with a new snapshot of its tables",
                f"to keep them forever: {topic.remedy('retention.ms', -1)}. Or set, instead of -1, the longest time (in ms) that "
                "a consumer may be down",
            )


def _own_retention_ms(topic: TopicFacts, of_new: int | None) -> int | None:
    own = _number(topic.config, "retention.ms")
    return of_new if own is None and topic.is_new else own


def _broker_retention_ms(config: Mapping[str, str]) -> int | None:
    for name, factor in (
        ("log.retention.ms", 1),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    ):
        found = _number(config, name)
        if found is not None:
            return found * factor
    return None


def check_refusals(facts: KafkaFacts, expected: KafkaExpected) -> Iterator[Finding]:
    """Classify the brokers' refusals of requests that change nothing. Requests that are refused for
    the same reason are reported as one finding."""
    rejected: dict[tuple[str, str, str], list[str]] = {}
    for refused in facts.refusals:
        if refused.operation == "DescribeConfigs" and not _must_see(refused.on, expected):
            yield OperatorWarning(
                f"Kafka does not allow DescribeConfigs on {refused.on}: its configuration is not checked",
                _AUTHORIZATION.format(operations=refused.operation, resource=_resource(refused.on, expected)),
            )
        elif refused.operation == "Configure":
            yield refused_settings(refused.on, refused.error, refused.reason)
        elif "Authorization" in refused.error:
            yield RetrySlowly(
                f"Kafka does not allow {refused.operation} on {refused.on}",
                hint=_AUTHORIZATION.format(operations=refused.operation, resource=_resource(refused.on, expected)),
            )
        else:
            rejected.setdefault((refused.operation, refused.error, refused.reason), []).append(refused.on)
    factor, _ = _replication_factor(facts, expected)
    for (operation, error, text), names in rejected.items():
        reason = f": {text}" if text else ""
        topics = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
        if error != _TOO_FEW_BROKERS:
            yield StopForOperator(
                f"Kafka would reject the request to {operation.lower()} {topics} ({error}{reason})",
                hint="change kafka.partitions, kafka.replication_factor or kafka.topics",
            )
        elif factor is None or factor <= facts.broker_count:  # otherwise _replication reports it
            yield RetrySlowly(
                f"Kafka would reject the request to {operation.lower()} {topics} ({error}{reason})",
                hint="start the brokers that are down, or set kafka.replication_factor to at most the number of brokers",
            )


def _must_see(on: str, expected: KafkaExpected) -> bool:
    """Return whether a start, not only this check, needs to see the configuration."""
    return on in (expected.position_topic, SNAPSHOT_TOPIC) or (on == CLUSTER and expected.replication_factor < 0)


def _resource(on: str, expected: KafkaExpected) -> str:
    if on == expected.transactional_id:
        return f"--transactional-id {on}"
    if on.startswith(f"{expected.prefix}.") and on != expected.marker_topic:  # also topics that are created later
        return f"--topic {expected.prefix}. --resource-pattern-type prefixed"
    return "--cluster" if on == CLUSTER else f"--topic {on}"


def _number(config: Mapping[str, str], name: str) -> int | None:
    try:
        return int(config[name])
    except (KeyError, ValueError, TypeError):
        return None


def _hours(milliseconds: int) -> str:
    return "forever" if milliseconds < 0 else f"for {milliseconds / 3_600_000:.3g} h"
