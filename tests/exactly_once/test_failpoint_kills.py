"""SIGKILL at failpoints, one after the other, under a mixed load: the checker judges them all at the
end. The lanes share the failpoints. `make long` kills at every one, `make test` not at those that
are `ALIKE`.

Some points are only reached when something happens: `PROVOKED` says what. Those of the first start
have a slot of their own.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Mapping

import pytest

from gateway.failpoints import FAILPOINTS
from tests.exactly_once.lanes import LANE_COUNT, Lane, in_each
from tests.support.scene import Scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

FIRST_START = (
    ("before_topic_creation", "after_topic_creation"),
    ("before_slot_intent", "after_slot_intent"),
    ("before_slot_creation", "after_slot_creation"),
)
"""In the order in which a first start comes to them."""
ALIKE = (
    *("before_preflight", "after_preflight", "after_producer_start", "before_position_read", "after_position_read"),
    *("after_epoch_marker", "socket_read", "keepalive_received", "begin_received", "commit_received"),
    *("before_catalog_query", "after_catalog_query", "relation_registered", "before_periodic_check"),
    *("stream_start_received", "prepare_received", "truncate_received", "transaction_closed", "batch_acked"),
    *("all_acked", "position_sent", "flush_lsn_moved", "before_standby_status", "before_idle_advance"),
    *("after_periodic_check", "shutdown_requested"),
)
"""Outside the process, nothing is different there from what it is at another failpoint: a kill leaves
the same behind."""
SELDOM = (
    "stream",
    "prepare",
    "truncate",
    "message",
    "slot",
    "start",
    "position_read",
    "epoch",
    "preflight",
    "shutdown",
)
"""Points with such a word in their name are hit on the first time; the others on one of the first
five."""
OF_OTHERS = ("chunk_", "snapshot_", "gap_")
"""Hit in tests/snapshot/test_truth.py and tests/exactly_once/test_wal_budget.py."""
STREAMING = '"streaming"'


async def _end_the_walsender(scene: Scene) -> None:
    """Not where the kill was before: an attempt that finds the slot still held by the one before
    comes to `reconnect` too."""
    streams = scene.gateway.log().count(STREAMING)
    while scene.gateway.is_running:
        if scene.gateway.log().count(STREAMING) > streams:
            await scene.end_the_walsender()
            return
        await asyncio.sleep(0.02)


async def _ask_to_stop(scene: Scene) -> None:
    await scene.gateway.logged(STREAMING, times=scene.gateway.log().count(STREAMING) + 1)
    scene.gateway.signal(signal.SIGTERM)


async def _write_much(scene: Scene) -> None:
    """One row is more than may be in flight to Kafka."""
    await scene.workload.one_large_row("large", 4 << 20)


async def _write_what_is_not_published(scene: Scene) -> None:
    """20 MB of WAL at a time, while nothing is published."""
    await scene.workload.finish()
    while scene.gateway.is_running:
        await scene.connection.execute(
            "INSERT INTO history.noise SELECT repeat('x', 2000) FROM generate_series(1, 10000)"
        )
        await asyncio.sleep(1)
    scene.workload.start()


PROVOKED: Mapping[str, Callable[[Scene], Awaitable[None]]] = {
    "reconnect": _end_the_walsender,
    "producer_abandoned": _end_the_walsender,
    "shutdown_requested": _ask_to_stop,
    "shutdown_drained": _ask_to_stop,
    "reading_paused": _write_much,
    "before_idle_advance": _write_what_is_not_published,
    "after_idle_advance": _write_what_is_not_published,
}


async def _kill_at(scene: Scene, name: str, nth: int) -> None:
    scene.gateway.start(f"{name}:kill:{nth}")
    provoke = PROVOKED.get(name)
    if provoke is not None:
        await provoke(scene)
    try:
        code = await scene.gateway.wait(180)
    except TimeoutError as error:
        raise TimeoutError(f"{name} was not reached {nth} times") from error
    assert code == -signal.SIGKILL, f"{name}: ended with {code}:\n{scene.gateway.log_tail()}"


async def _kill_at_all(scene: Scene, names: list[str], rounds: int, generator: random.Random) -> None:
    for _ in range(rounds):
        generator.shuffle(names)
        for name in names:
            seldom = name in PROVOKED or any(word in name for word in SELDOM)
            await _kill_at(scene, name, 1 if seldom else generator.randint(1, 5))


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
async def test_a_kill_at_any_failpoint_loses_doubles_and_invents_nothing(lanes: list[Lane], rounds: int) -> None:
    async def run(lane: Lane) -> None:
        seed = rounds + lane.number
        async with lane.scene(seed=seed, kafka__memory_bytes=1 << 20, source__check_interval_s=0.5) as scene:
            await scene.streaming()
            scene.workload.start()
            await scene.gateway.kill()
            here = names[lane.number :: LANE_COUNT]
            await _kill_at_all(scene, here, rounds, random.Random(seed))
            scene.gateway.start()
            verdict = await scene.finish()
            print(f"{rounds * len(here)} kills at {len(here)} failpoints: {verdict}")

    assert FAILPOINTS.keys() >= {*ALIKE}
    others = {name for pair in FIRST_START for name in pair} | ({*ALIKE} if rounds == 1 else set())
    names = [name for name in FAILPOINTS if name not in others and not name.startswith(OF_OTHERS)]
    await in_each(lanes, run)


async def test_a_first_start_that_is_killed_repairs_itself(lanes: list[Lane]) -> None:
    """Each next start gets past what the one before has left, and is killed at the next point."""

    async def run(lane: Lane) -> None:
        async with lane.scene(pause_s=0.05) as scene:
            for pair in FIRST_START:
                await _kill_at(scene, pair[lane.number], 1)
            await scene.streaming()
            await scene.workload.run_transactions(20)
            verdict = await scene.finish()
            assert verdict.epoch_count == 1

    await in_each(lanes, run)
