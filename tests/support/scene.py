"""One run: a source database, a workload, a gateway process, and the verdict of the checker at the
end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from gateway.local import Registry
from schemas.topic_names import POSITION_TOPIC
from tests.conftest import Database
from tests.exactly_once.checker import check, check_attempts
from tests.exactly_once.history import load_truth
from tests.exactly_once.workload import PUBLICATION, Workload, create_tables
from tests.support.delivered import Decoder, Delivered, Isolation, read_delivered
from tests.support.gateway_process import GatewayProcess
from tests.support.markers import COMMITTING
from tests.support.proxy import FaultProxy, ProxiedKafka
from tests.support.slots import until_free

DRAIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Figures of a run that was found correct."""

    transaction_count: int
    event_count: int
    record_count: int
    attempted_record_count: int
    epoch_count: int

    def __str__(self) -> str:
        return (
            f"{self.transaction_count} transactions, {self.event_count} changes, {self.record_count} records "
            f"({self.attempted_record_count} with abandoned attempts), {self.epoch_count} epochs: "
            "0 lost, 0 doubled, 0 torn, 0 ghosts, order and LSNs true, every manifest adds up"
        )


class Scene:
    """`bootstrap_servers` and `registry_url` are the direct ones, for the checker; the gateway may
    get others."""

    def __init__(
        self,
        database: Database,
        bootstrap_servers: str,
        registry_url: str,
        prefix: str,
        gateway: GatewayProcess,
        seed: int,
        pause_s: float,
    ) -> None:
        self.database = database
        self.bootstrap_servers = bootstrap_servers
        self.registry_url = registry_url
        self.prefix = prefix
        self.gateway = gateway
        self.workload = Workload(database.dsn, seed=seed, pause_s=pause_s)
        self.workload_random = random.Random(seed)
        self.connection: asyncpg.Connection

    async def streaming(self, failpoints: str = "", **settings: object) -> None:
        """Start the gateway and wait until its stream is open: from the first time on, what commits
        is to be delivered."""
        await self.gateway.streaming(failpoints, **settings)

    async def stop(self) -> int:
        """The gateway, and its walsender: the slot is free, and what it was told is confirmed.
        Returns the exit code."""
        code = await self.gateway.stop()
        await until_free(self.connection, f"slot_{self.prefix}")
        return code

    async def reconnect(self) -> None:
        """After the server was restarted."""
        self.connection.terminate()
        self.connection = await self.database.connect()

    async def ends(self, *texts: str, timeout_s: float = 60.0) -> None:
        """The gateway ends by itself with an error that a person must see, and says all of this."""
        code = await self.gateway.wait(timeout_s)
        tail = self.gateway.log_tail()
        assert code > 0, f"ended with {code}:\n{tail}"
        assert "Traceback" not in tail, tail
        for text in texts:
            assert text in tail, f"{text!r} is not in:\n{tail}"

    async def commits(self, table: str = "plain", row_count: int = 1, filling: int = 60) -> float:
        """One more transaction; the seconds until it is readable."""
        return await self.delivered(await self.workload.one_transaction(table, row_count, filling))

    async def sql(self, statement: str, *arguments: object) -> Any:
        return await self.connection.fetchval(statement, *arguments)

    async def end_the_walsender(self) -> None:
        """The one of this scene's slot: the server is shared."""
        ended = await self.sql(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
            f"slot_{self.prefix}",
        )
        assert ended, "no walsender reads the slot"

    async def delivered(self, xid: int, *, timeout_s: float = DRAIN_TIMEOUT_S) -> float:
        """Wait until the transaction's last marker is readable with read_committed; seconds that it
        took."""
        begun = time.monotonic()
        found = await asyncio.to_thread(
            wait_for_commit, self.bootstrap_servers, self.registry_url, self.prefix, xid, timeout_s
        )
        assert found, f"xid {xid} was not delivered in {timeout_s} s:\n{self.gateway.log_tail()}"
        return time.monotonic() - begun

    async def sent(self, relation: str, record_count: int, *, timeout_s: float = 60.0) -> None:
        """Wait until so many records of a relation are in its topic, whether their transaction is
        committed or not."""
        topic = f"{self.prefix}.{relation}"
        deadline = time.monotonic() + timeout_s
        while await self.end(topic) < record_count:
            assert time.monotonic() < deadline, f"{topic} has no {record_count} records:\n{self.gateway.log_tail()}"
            await asyncio.sleep(0.1)

    async def end(self, topic: str, isolation: Isolation = "read_committed") -> int:
        """Sum of the ends of a topic's partitions, where a reader of this isolation stops; -1 while
        nobody leads one of them."""
        return await asyncio.to_thread(end_offsets, self.bootstrap_servers, topic, isolation)

    async def until_nothing_is_open(self, *relations: str, timeout_s: float = 30.0) -> None:
        """Wait until no Kafka transaction keeps readers from the positions, the markers or the
        relations' records."""
        topics = [POSITION_TOPIC, *(f"{self.prefix}.{name}" for name in ("transaction", *relations))]
        deadline = time.monotonic() + timeout_s
        for topic in topics:
            while not 0 <= await self.end(topic, "read_uncommitted") <= await self.end(topic):
                assert time.monotonic() < deadline, f"a transaction is open in {topic}:\n{self.gateway.log_tail()}"
                await asyncio.sleep(0.05)

    async def finish(self, *, timeout_s: float = DRAIN_TIMEOUT_S) -> Verdict:
        """End the workload, let the gateway drain, and judge."""
        await self.delivered(await self.workload.finish(), timeout_s=timeout_s)
        return await self.judge()

    async def judge(self) -> Verdict:
        """Raises AssertionError with every finding."""
        truth = await load_truth(self.connection, PUBLICATION)
        committed = await self.read()
        attempted = await self.read("read_uncommitted", committed)
        findings = check(committed, truth, prefix=self.prefix) + check_attempts(attempted, truth)
        assert not findings, f"{len(findings)} findings:\n" + "\n".join(map(str, findings[:20]))
        return Verdict(
            sum(1 for logged in truth.transactions if logged.statements),
            truth.event_count,
            len(committed.events),
            len(attempted.events),
            sum(marker.value["kind"] == "EPOCH" for marker in committed.markers),
        )

    async def read(self, isolation: Isolation = "read_committed", known: Delivered | None = None) -> Delivered:
        return await asyncio.to_thread(
            read_delivered, self.bootstrap_servers, self.registry_url, self.prefix, isolation, known=known
        )


@asynccontextmanager
async def open_scene(
    database: Database,
    bootstrap_servers: str,
    registry_url: str,
    prefix: str,
    folder: Path,
    *,
    seed: int = 1,
    pause_s: float = 0.3,
    **settings: object,
) -> AsyncIterator[Scene]:
    """`settings` go to the gateway and may replace what is set here: `source__dsn`,
    `kafka__bootstrap_servers`.

        `pause_s`: between two transactions of a worker of the workload; short where nothing is to
        happen in between.
    """
    values: dict[str, object] = {
        "source__dsn": database.dsn,
        "source__slot": f"slot_{prefix}",
        "source__publications": PUBLICATION,
        "source__two_phase": True,
        "kafka__bootstrap_servers": bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__replication_factor": 1,
        "registry__url": registry_url,
    }
    gateway = GatewayProcess(folder / f"{prefix}.log", values | settings)
    scene = Scene(database, bootstrap_servers, registry_url, prefix, gateway, seed, pause_s)
    scene.connection = await database.connect()
    try:
        await create_tables(scene.connection)
        yield scene
    except BaseException:
        print(gateway.log_tail(60))
        raise
    finally:
        await scene.workload.cancel()
        await gateway.end()
        await scene.connection.close()


@dataclass(frozen=True, slots=True)
class Proxies:
    """In front of all three servers."""

    postgres: FaultProxy
    kafka: ProxiedKafka
    registry: FaultProxy


@asynccontextmanager
async def open_scene_behind(
    proxies: Proxies, database: Database, registry: Registry, prefix: str, folder: Path, **settings: object
) -> AsyncIterator[Scene]:
    """The gateway's ways lead through proxies, those of the test do not."""
    ways: dict[str, Any] = {
        "source__dsn": database.dsn.replace(f":{database.server.port}/", f":{proxies.postgres.port}/"),
        "kafka__bootstrap_servers": proxies.kafka.proxied_servers,
        "registry__url": registry.url.replace(f":{registry.port}", f":{proxies.registry.port}"),
    }
    servers = proxies.kafka.bootstrap_servers
    async with open_scene(database, servers, registry.url, prefix, folder, **(ways | settings)) as scene:
        yield scene


def end_offsets(bootstrap_servers: str, topic: str, isolation: Isolation) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "follower", "isolation.level": isolation})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        places = [TopicPartition(topic, partition) for partition in partitions]
        return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
    except KafkaException:
        return -1
    finally:
        consumer.close()


def wait_for_commit(bootstrap_servers: str, registry_url: str, prefix: str, xid: int, timeout_s: float) -> bool:
    """Follow the marker topic from its start until that transaction is committed there."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "follower",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 10,
        }
    )
    topic = f"{prefix}.transaction"
    deadline = time.monotonic() + timeout_s
    try:
        with Decoder(registry_url) as decoder:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while time.monotonic() < deadline:
                for message in consumer.consume(1000, timeout=0.05):
                    payload = message.value()
                    if message.error() is not None or payload is None:
                        continue
                    _, value = decoder.decode(payload)
                    if value["kind"] in COMMITTING and value["xid"] == xid:
                        return True
    except KafkaException as error:
        raise AssertionError(f"following {topic}: {error}") from error
    finally:
        consumer.close()
    return False
