"""The true lag, from outside: when each transaction committed, and when a stock reader could read
that it had.

A transaction is durable in Kafka at some moment between `appended` (the timestamp of its last
marker, before the Kafka transaction ends) and `seen` (a read_committed consumer has it). At a
moment `t` the lag is the age of the oldest transaction that committed before `t` and is durable
after `t`, or 0. So each answer of the gateway lies between two bounds, whatever happened meanwhile.
All servers are on this computer: there is one clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import asyncpg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from gateway.observe.http_client import ask_status
from tests.support.delivered import Decoder
from tests.support.markers import COMMITTING

COMMIT_EVERY_S: Final = 0.2
ASK_EVERY_S: Final = 0.2
DELIVERED_S: Final = 30.0
FEWEST_ANSWERS: Final = 10
_INSERT: Final = "INSERT INTO work.plain VALUES (nextval('work.key'), 0, 'x')"


@dataclass(frozen=True, slots=True)
class Commit:
    """Unix times."""

    committed: float
    appended: float
    seen: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The gateway said `lag_s` at some moment between the two."""

    asked: float
    answered: float
    lag_s: float


def bounds(commits: list[Commit], answer: Answer) -> tuple[float, float]:
    """The least and the most that the lag can have been."""
    surely = (one.committed for one in commits if one.committed <= answer.asked and one.appended > answer.answered)
    perhaps = (one.committed for one in commits if one.committed <= answer.answered and one.seen > answer.asked)
    oldest_surely, oldest_perhaps = min(surely, default=None), min(perhaps, default=None)
    return (
        0.0 if oldest_surely is None else answer.asked - oldest_surely,
        0.0 if oldest_perhaps is None else answer.answered - oldest_perhaps,
    )


@dataclass
class LagTruth:
    """Answers are kept by situation: `during`."""

    port: int
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    _during: str = ""
    _ending: threading.Event = field(default_factory=threading.Event)

    def during(self, situation: str) -> None:
        """From now on; "": what is said now is not judged."""
        self._during = situation

    def worst(self) -> dict[str, tuple[float, float, int]]:
        """Situation -> by how much the lag was wrong, how large it was, how many answers."""
        found = {}
        for situation, answers in self.answers.items():
            judged = [(one, *bounds(self.commits, one)) for one in answers]
            wrong = max(max(low - one.lag_s, one.lag_s - high, 0.0) for one, low, high in judged)
            found[situation] = wrong, max(low for _, low, _ in judged), len(answers)
        return found

    def is_within(self, true_s: float) -> None:
        """Raises AssertionError."""
        found = self.worst()
        for situation, (wrong_s, most_s, count) in found.items():
            print(f"{situation:<24} lag off by {wrong_s:.3f} s at most; it rose to {most_s:.1f} s; {count} answers")
        for situation, (wrong_s, _, count) in found.items():
            assert wrong_s <= true_s, f"{situation}: off by {wrong_s:.3f} s"
            assert count >= FEWEST_ANSWERS, situation

    def end(self) -> None:
        self._ending.set()

    async def ask(self) -> None:
        """Until cancelled."""
        while True:
            asked, situation = time.time(), self._during
            found = await asyncio.to_thread(ask_status, "127.0.0.1", self.port) if situation else None
            if found is not None and situation == self._during:
                assert found["lag_seconds"] is not None, situation
                self.answers.setdefault(situation, []).append(Answer(asked, time.time(), found["lag_seconds"]))
            await asyncio.sleep(max(asked + ASK_EVERY_S - time.time(), 0.0))

    def follow(self, bootstrap_servers: str, registry_url: str, prefix: str) -> None:
        """In a thread, until `_ending` is set: one of the commits is then the last."""
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": "truth", "enable.auto.commit": False}
        consumer = Consumer({**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 10})
        try:
            with Decoder(registry_url) as decoder:
                consumer.assign([TopicPartition(f"{prefix}.transaction", 0, 0)])
                while not self._ending.is_set():
                    for message in consumer.consume(1000, timeout=0.02):
                        seen, payload = time.time(), message.value()
                        if message.error() is not None or payload is None:
                            continue
                        _, value = decoder.decode(payload)
                        if value["kind"] in COMMITTING:
                            _, appended_ms = message.timestamp()
                            self.commits.append(Commit(value["time"].timestamp(), appended_ms / 1000, seen))
        except KafkaException as error:
            raise AssertionError(f"following the markers of {prefix}: {error}") from error
        finally:
            consumer.close()

    async def seen_all(self, connection: asyncpg.Connection) -> None:
        """One more transaction is committed, and seen."""
        last, deadline = time.time(), time.monotonic() + DELIVERED_S
        await connection.execute(_INSERT)
        while not any(one.committed >= last for one in self.commits[-1:]):
            assert time.monotonic() < deadline, f"no marker in {DELIVERED_S} s"
            await asyncio.sleep(0.05)


async def commit_again_and_again(connection: asyncpg.Connection, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        await connection.execute(_INSERT)
        await asyncio.sleep(COMMIT_EVERY_S)


@asynccontextmanager
async def lag_truth(
    dsn: str, port: int, bootstrap_servers: str, registry_url: str, prefix: str
) -> AsyncIterator[LagTruth]:
    """Addresses are the servers' own, not those of proxies. `is_within` is asked behind it."""
    truth = LagTruth(port)
    connection, stopping = await asyncpg.connect(dsn), asyncio.Event()
    following = asyncio.create_task(asyncio.to_thread(truth.follow, bootstrap_servers, registry_url, prefix))
    asking = asyncio.create_task(truth.ask())
    committing = asyncio.create_task(commit_again_and_again(connection, stopping))
    try:
        yield truth
        for task in (following, asking, committing):
            if task.done():
                task.result()
        stopping.set()
        await committing
        await truth.seen_all(connection)
    finally:
        stopping.set()
        asking.cancel()
        await asyncio.gather(asking, committing, return_exceptions=True)
        truth.end()
        await following
        await connection.close()
