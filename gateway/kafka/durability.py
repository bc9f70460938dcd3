"""Warnings about topics whose records are on fewer disks than the cluster allows, although
PostgreSQL is told that these records are durable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.startup.findings import OperatorWarning
from schemas.topic_names import counted

COPIES: Final = 3
"""The wanted number of replicas. If two of three must be in sync, one broker can be down and the
disk of another can be lost."""
IN_SYNC: Final = 2
MIN_IN_SYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Durability:
    """Durability settings of one topic. `min_in_sync` and `unclean` are None if describing the
    configuration was denied."""

    copies: int
    min_in_sync: int | None
    unclean: bool | None


def durability_of(copies: int, config: Mapping[str, str]) -> Durability:
    """Return the durability settings of a topic with this number of replicas."""
    least, unclean = config.get(MIN_IN_SYNC), config.get(UNCLEAN)
    return Durability(copies, int(least) if least else None, unclean == "true" if unclean else None)


def cautions(topics: Mapping[str, Durability], broker_count: int) -> Iterator[OperatorWarning]:
    """Yield warnings about `topics`. Too few replicas are not reported if the cluster has too few
    brokers for more."""
    few = [topic for topic, found in topics.items() if found.copies < min(COPIES, broker_count)]
    if few and broker_count >= COPIES:
        least = min(topics[topic].copies for topic in few)
        yield OperatorWarning(
            f"{_named(few)}: only {counted(least, 'replica')}, although there are {broker_count} brokers; changes that "
            f"were confirmed to PostgreSQL are lost if {('that replica is' if least == 1 else 'those replicas are')} lost",
            f"run kafka-reassign-partitions.sh to give existing topics {COPIES} replicas, and set "
            f"kafka.replication_factor = {COPIES} for new ones",
        )
    weak = [
        topic
        for topic, found in topics.items()
        if found.copies >= COPIES and found.min_in_sync is not None and found.min_in_sync < IN_SYNC
    ]
    if weak:
        yield OperatorWarning(
            f"{_named(weak)}: min.insync.replicas is 1: a record is acknowledged even if only one broker has it",
            f"kafka-configs.sh --bootstrap-server ... --alter --topic ... --add-config min.insync.replicas={IN_SYNC}",
        )
    unclean = [topic for topic, found in topics.items() if found.copies > 1 and found.unclean]
    if unclean:
        yield OperatorWarning(
            f"{_named(unclean)}: unclean.leader.election.enable is on: a replica that lacks acknowledged "
            "records may become leader, and these records are then lost",
            "kafka-configs.sh --bootstrap-server ... --alter --topic ... "
            "--add-config unclean.leader.election.enable=false",
        )


def _named(topics: list[str]) -> str:
    shown = ", ".join(sorted(topics)[:_NAMED])
    more = len(topics) - _NAMED
    return f"topic {shown}" if len(topics) == 1 else f"topics {shown}" + (f" and {more} more" if more > 0 else "")
