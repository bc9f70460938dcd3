"""The position is read to the true end of its topic, whatever other gateways have left open
there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from gateway.config.kafka import KafkaSettings
from gateway.errors import Retry, StopForOperator
from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker, encode_markers
from gateway.kafka.last_commit import newest_commit_lsn
from gateway.kafka.position_topic import read_positions
from gateway.kafka.topics import Topics
from gateway.local import Kafka, Registry
from gateway.runtime.stored_positions import refuse_lost_schemas
from gateway.transactions.position import Position, decode_position, encode_position
from schemas.lsn import Lsn
from schemas.records import POSITION
from schemas.registry_client import RegistryClient
from schemas.topic_names import POSITION_TOPIC, transaction_topic, value_subject
from schemas.used_schemas import UsedSchema
from schemas.wire_format import frame

pytestmark = pytest.mark.integration


def transactional_producer(kafka: Kafka, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    return producer


def send(producer: Producer, position: Position, schema_id: int) -> None:
    """With the true schema id: other tests read the same topic."""
    producer.begin_transaction()
    producer.produce(POSITION_TOPIC, encode_position(frame(schema_id), position), position.key)
    producer.flush(30)


async def test_an_open_transaction_of_another_gateway_does_not_hide_our_newest_position(
    kafka: Kafka, registry: Registry, topic_prefix: str
) -> None:
    client = RegistryClient(registry.url)
    schema_id = await client.register(value_subject(POSITION_TOPIC), POSITION)
    await client.close()
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, prefix=topic_prefix)
    markers = transaction_topic(topic_prefix)
    topics = Topics(settings, markers, set(), print)
    await topics.start()
    await topics.ensure([POSITION_TOPIC, markers])
    await topics.close()
    ours = Position("1", 1, topic_prefix, "ours", topic_prefix, ("walgate",), "0", "ACTIVE", 1, Lsn(100))
    mine, other = (transactional_producer(kafka, f"{topic_prefix}.{name}") for name in ("ours", "other"))
    try:
        await asyncio.to_thread(send, mine, ours, schema_id)
        await asyncio.to_thread(mine.commit_transaction)
        await asyncio.to_thread(send, other, replace(ours, slot="other"), schema_id)  # and dies here, before it commits
        await asyncio.to_thread(send, mine, replace(ours, resume_lsn=Lsn(200)), schema_id)
        await asyncio.to_thread(mine.commit_transaction)
        with pytest.raises(Retry, match="could not be read to its end") as unread:
            await read_positions(settings, markers, 3)
        assert f"find-hanging --topic {POSITION_TOPIC} " in unread.value.hint
        assert f"abort --topic {POSITION_TOPIC} --partition 0 --start-offset " in unread.value.hint
        values, _ = await read_positions(settings, markers, 3, waits=False)
        assert decode_position(ours.key, values[ours.key], POSITION).resume_lsn == 100
    finally:
        await asyncio.to_thread(other.abort_transaction)
    values, used = await read_positions(settings, markers, 30)
    assert decode_position(ours.key, values[ours.key], POSITION).resume_lsn == 200
    assert not used


async def test_a_schema_that_is_lost_stops_the_start_unless_its_topic_was_deleted_too(
    kafka: Kafka, registry: Registry, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schemas.registry_client._PAUSES_S", (0.0,))
    topics = Topics(
        KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, prefix=topic_prefix), "markers", set(), print
    )
    await topics.start()
    await topics.ensure([f"{topic_prefix}.public.there"])
    clients = [RegistryClient(registry.url) for _ in range(3)]
    ours = Position("1", 1, topic_prefix, "ours", topic_prefix, ("walgate",), "0")
    there, gone = (
        replace(ours, newest_schema=UsedSchema(2**31 - 1, f"{topic_prefix}.public.{name}-value", "public.Change"))
        for name in ("there", "gone")
    )
    try:
        with pytest.raises(StopForOperator, match="has lost schemas.*does not have this id"):
            await refuse_lost_schemas([ours, there], topic_prefix, clients[0], topics.missing)
        await refuse_lost_schemas([ours, gone], topic_prefix, clients[1], topics.missing)
        await refuse_lost_schemas([replace(there, prefix="other")], topic_prefix, clients[2], topics.missing)
    finally:
        await topics.close()
        for client in clients:
            await client.close()


async def test_what_the_marker_topic_shows_is_what_was_committed(kafka: Kafka, topic_prefix: str) -> None:
    """It is used by records, not by what an abort leaves behind; and its newest commit is known
    unless something hides it."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, prefix=topic_prefix)
    markers = transaction_topic(topic_prefix)
    topics = Topics(settings, markers, set(), print)
    await topics.start()
    await topics.ensure([POSITION_TOPIC, markers])
    await topics.close()
    producer = transactional_producer(kafka, f"{topic_prefix}.ours")

    def send(*values: bytes) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(markers, value)
        producer.flush(30)

    async def known() -> tuple[bool, int | None]:
        return (await read_positions(settings, markers, 30))[1], await newest_commit_lsn(settings, markers, 30)

    def encoded(*those: Marker) -> list[bytes]:
        return list(encode_markers(frame(1), those, 1))

    await asyncio.to_thread(send, b"a marker")
    await asyncio.to_thread(producer.abort_transaction)
    assert await known() == (False, 0)
    manifest = Manifest(1)
    commits = encoded(Marker("EPOCH", 0, 90), Marker("COMMIT", 5, 100, end_lsn=110, manifest=manifest))
    await asyncio.to_thread(send, *commits, *encoded(Marker("COMMIT_PREPARED", 6, 120, gid="g", manifest=manifest)))
    await asyncio.to_thread(producer.commit_transaction)
    assert await known() == (True, 120)
    # More markers that end nothing than are looked at first.
    await asyncio.to_thread(send, *encoded(*(Marker("STREAM_STOP", 7, 130) for _ in range(1200))))
    assert await known() == (True, None)
    await asyncio.to_thread(producer.commit_transaction)
    assert await known() == (True, 120)
    await asyncio.to_thread(send, b"a marker of a later version")
    await asyncio.to_thread(producer.commit_transaction)
    assert await known() == (True, None)
