"""The admin client and the consumer.

* `Admin`. aiokafka's admin client asks one broker at random and fails if that broker is
  unreachable. It creates the topics that it is asked to describe. It can ask neither where
  partitions end nor whether the client may write to a topic. Unnecessary if aiokafka asks any
  broker that answers, creates topics only on request, and supports `list_offsets` (KIP-396) and
  authorized operations (KIP-430).
* `Consumer.partitions_below`. aiokafka's `topics` also reads the partitions of all topics, but
  drops them; `partitions_for_topic` only knows the topics that are being read. Unnecessary if
  `topics` keeps the partitions. `Consumer` also makes the consumer's client a `Client`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest
from aiokafka.structs import TopicPartition

from gateway.kafka.aiokafka_internals.client import Client

_NO_REPLICA, _READ_UNCOMMITTED, _END = -1, 0, -1
"""Fields of ListOffsets: the request comes from a client and asks for the end of the log, open
transactions included."""


class Admin(AIOKafkaAdminClient):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._client.__class__ = Client

    @property
    def broker_count(self) -> int:
        """The number of brokers that were alive when the metadata was last read."""
        return len(self._client.cluster.brokers())

    @property
    def addresses(self) -> list[str]:
        """The addresses that the brokers advertise to clients, from the answer to the first
        request."""
        addresses: list[str] = self._client.addresses
        return addresses

    async def _send_request(self, request: Any, node_id: Any = None) -> Any:
        """Send a request to the given broker, or without one to any broker that answers; return the
        answer. aiokafka asks one broker at random: with one of three brokers unreachable, every
        third start would fail."""
        if node_id is not None:
            return await super()._send_request(request, node_id)
        answer = await self._client._ask_any(request)
        if answer is None:
            raise self._client.silence()
        return answer

    async def metadata(self, topics: list[str]) -> list[dict[str, Any]]:
        """Return a broker's metadata of these topics, with fields named as in Kafka's protocol. No
        topic is created."""
        answer = await self._send_request(MetadataRequest(topics, allow_auto_topic_creation=False))
        found: list[dict[str, Any]] = answer.to_object()["topics"]
        return found

    async def without_log(self, leader: int, partitions: Mapping[str, Iterable[int]]) -> set[str]:
        """Return the topics for which the leader cannot report where a partition ends."""
        asked = [(topic, [(partition, _END) for partition in numbers]) for topic, numbers in partitions.items()]
        answer = await self._send_request(OffsetRequest(_NO_REPLICA, _READ_UNCOMMITTED, asked), leader)
        return {topic for topic, found in answer.topics if any(code for _, code, *_ in found)}

    async def add_to_no_transaction(self, transactional_id: str, topics: Iterable[str]) -> dict[str, int]:
        """Ask the broker to add topics to a transaction of a producer that does not exist; return
        the answer's error code for each topic. Nothing is added, but the broker checks the client's
        permissions first."""
        wanted = [(topic, [0]) for topic in topics]
        if not wanted:
            return {}
        answer = await self._send_request(AddPartitionsToTxnRequest(transactional_id, 0, 0, wanted))
        return {topic: code for topic, partitions in answer.errors for _, code in partitions}


class Consumer(AIOKafkaConsumer):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._client.__class__ = Client

    async def partitions_below(self, prefix: str) -> set[TopicPartition]:
        """Return the current partitions of all topics whose names begin with `prefix`."""
        cluster = await self._client.fetch_all_metadata()
        return {
            TopicPartition(topic, partition)
            for topic in cluster.topics()
            if topic.startswith(prefix)
            for partition in cluster.partitions_for_topic(topic) or ()
        }
