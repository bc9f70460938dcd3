"""Random faults for a site: each is a coroutine that breaks something, heals it, waits until it is
whole, and says what it did.

Faults of one lane never overlap, those of different lanes do.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.exactly_once.site import WITNESS, ProxiedBroker, Site, send

Break = Callable[[Site, random.Random], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`begun` and `ended` in seconds of the monotonic clock."""

    lane: str
    what: str
    begun: float
    ended: float


async def a_while(generator: random.Random, longest_s: float) -> float:
    seconds = generator.uniform(1.0, longest_s)
    await asyncio.sleep(seconds)
    return seconds


# -- brokers
# ------------------------------------------------------------------------------------------------------------


async def _broker_killed(site: Site, generator: random.Random) -> str:
    broker = generator.choice(site.brokers)
    await broker.kill()
    seconds = await a_while(generator, 10)
    await broker.start()
    await site.cluster.in_sync(site.prefix)
    return f"broker {broker.number}: kill -9, {seconds:.0f} s down"


async def _broker_frozen(site: Site, generator: random.Random) -> str:
    broker = generator.choice(site.brokers)
    broker.freeze()
    seconds = await a_while(generator, 25)
    broker.thaw()
    await site.cluster.in_sync(site.prefix)
    return f"broker {broker.number}: SIGSTOP for {seconds:.0f} s"


async def _partition(brokers: list[ProxiedBroker], generator: random.Random, longest_s: float) -> str:
    for broker in brokers:
        broker.proxy.black_hole()
    seconds = await a_while(generator, longest_s)
    for broker in brokers:
        broker.proxy.heal()
        broker.proxy.cut()
    return f"for {seconds:.0f} s"


async def _one_broker_out_of_reach(site: Site, generator: random.Random) -> str:
    broker = generator.choice(site.brokers)
    return f"gateways and broker {broker.number}: partition {await _partition([broker], generator, 20)}"


async def _all_brokers_out_of_reach(site: Site, generator: random.Random) -> str:
    return f"gateways and all brokers: partition {await _partition(site.brokers, generator, 10)}"


async def _broker_connections_cut(site: Site, generator: random.Random) -> str:
    for _ in range(count := generator.randint(1, 5)):
        for broker in site.brokers:
            broker.proxy.cut()
        await a_while(generator, 2)
    return f"gateways and all brokers: connections cut {count} times"


async def _brokers_restarted(site: Site, generator: random.Random) -> str:
    for broker in generator.sample(site.brokers, len(site.brokers)):
        await broker.stop()
        await broker.start()
        await site.cluster.in_sync(site.prefix)
    return "brokers: rolling restart"


# -- PostgreSQL
# ---------------------------------------------------------------------------------------------------------


async def _primary_killed(site: Site, generator: random.Random) -> str:
    await site.pair.for_work.refuse()
    await site.pair.primary.kill()
    seconds = await a_while(generator, 4)
    await site.pair.restart()
    await site.pair.standby_follows()
    return f"primary: kill -9, {seconds:.0f} s down"


async def _primary_restarted(site: Site, _: random.Random) -> str:
    await site.pair.for_work.refuse()
    await site.pair.primary.stop("fast")
    await site.pair.restart()
    await site.pair.standby_follows()
    return "primary: restart"


async def _primary_frozen(site: Site, generator: random.Random) -> str:
    send(site.pair.primary, signal.SIGSTOP)
    seconds = await a_while(generator, 12)
    send(site.pair.primary, signal.SIGCONT)
    await site.pair.standby_follows()
    return f"primary: SIGSTOP for {seconds:.0f} s"


async def _standby_killed(site: Site, generator: random.Random) -> str:
    await site.pair.standby.kill()
    seconds = await a_while(generator, 10)
    await site.pair.standby.start()
    await site.pair.standby_follows()
    return f"standby: kill -9, {seconds:.0f} s down"


async def _standby_frozen(site: Site, generator: random.Random) -> str:
    send(site.pair.standby, signal.SIGSTOP)
    seconds = await a_while(generator, 12)
    send(site.pair.standby, signal.SIGCONT)
    await site.pair.standby_follows()
    return f"standby: SIGSTOP for {seconds:.0f} s"


async def _primary_out_of_reach(site: Site, generator: random.Random) -> str:
    proxy = site.pair.for_gateways
    proxy.black_hole()
    seconds = await a_while(generator, 15)
    proxy.heal()
    proxy.cut()
    return f"gateways and primary: partition for {seconds:.0f} s"


async def _primary_cut_within_a_message(site: Site, generator: random.Random) -> str:
    for _ in range(count := generator.randint(1, 5)):
        site.pair.for_gateways.cut_after(generator.randint(1, 20_000), "to_client")
        await a_while(generator, 2)
    site.pair.for_gateways.heal()
    return f"gateways and primary: cut within a message {count} times"


async def _promotion(site: Site, generator: random.Random) -> str:
    """The primary is lost under load; what it had committed and not yet sent to the standby is lost
    with it."""
    await site.pair.synced(site.slot, WITNESS)
    await site.pair.for_work.refuse()
    await site.pair.primary.kill()
    seconds = await a_while(generator, 3)
    await site.pair.promote()
    await site.pair.standby_follows()
    return f"primary: kill -9, and {seconds:.0f} s later the standby is promoted and gets a standby of its own"


# -- gateways and registry
# ----------------------------------------------------------------------------------------------


async def _gateway_killed(site: Site, generator: random.Random) -> str:
    gateway = generator.choice(site.gateways)
    site.down.add(gateway)
    await gateway.kill()
    seconds = await a_while(generator, 5)
    gateway.start()
    site.down.discard(gateway)
    return f"gateway {site.gateways.index(gateway) + 1}: kill -9, {seconds:.0f} s down"


async def _both_gateways_killed(site: Site, generator: random.Random) -> str:
    for gateway in site.gateways:
        site.down.add(gateway)
        await gateway.kill()
    seconds = await a_while(generator, 3)
    for gateway in site.gateways:
        gateway.start()
        site.down.discard(gateway)
    return f"both gateways: kill -9, {seconds:.0f} s down, then started at once"


async def _gateway_frozen(site: Site, generator: random.Random) -> str:
    gateway = generator.choice(site.gateways)
    gateway.signal(signal.SIGSTOP)
    seconds = await a_while(generator, 20)
    gateway.signal(signal.SIGCONT)
    return f"gateway {site.gateways.index(gateway) + 1}: SIGSTOP for {seconds:.0f} s"


async def _gateways_restarted(site: Site, generator: random.Random) -> str:
    for gateway in site.gateways:
        site.down.add(gateway)
        assert await gateway.stop() == 0, gateway.log_tail()
        gateway.start()
        site.down.discard(gateway)
        await a_while(generator, 5)
    return "gateways: rolling restart"


async def _registry_out_of_reach(site: Site, generator: random.Random) -> str:
    site.registry_proxy.black_hole()
    seconds = await a_while(generator, 15)
    site.registry_proxy.heal()
    site.registry_proxy.cut()
    return f"gateways and registry: partition for {seconds:.0f} s"


# -- lanes
# --------------------------------------------------------------------------------------------------------------

LANES: Mapping[str, tuple[Break, ...]] = {
    "Kafka": (
        _broker_killed,
        _broker_frozen,
        _one_broker_out_of_reach,
        _all_brokers_out_of_reach,
        _broker_connections_cut,
        _brokers_restarted,
    ),
    "PostgreSQL": (
        _primary_killed,
        _primary_restarted,
        _primary_frozen,
        _standby_killed,
        _standby_frozen,
        _primary_out_of_reach,
        _primary_cut_within_a_message,
        _promotion,
    ),
    "gateways": (
        _gateway_killed,
        _both_gateways_killed,
        _gateway_frozen,
        _gateways_restarted,
        _registry_out_of_reach,
    ),
}


async def break_at_random(site: Site, seed: int, seconds: float) -> list[Fault]:
    """Every lane at once, until the time is over; ends when all is whole again. A promotion is
    among the first faults."""
    done: list[Fault] = []
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as lanes:
        for lane in LANES:
            lanes.create_task(_in_lane(site, lane, random.Random(f"{seed}/{lane}"), until, done))
    return sorted(done, key=lambda fault: fault.begun)


async def _in_lane(site: Site, lane: str, generator: random.Random, until: float, done: list[Fault]) -> None:
    for break_something in _in_random_order(LANES[lane], generator):
        await a_while(generator, 6)
        if time.monotonic() > until:
            return
        site.check_gateways()
        begun = time.monotonic()
        what = await break_something(site, generator)
        done.append(Fault(lane, what, begun, time.monotonic()))


def _in_random_order(breaks: tuple[Break, ...], generator: random.Random) -> Iterator[Break]:
    """Each once, then each once again in another order."""
    first = generator.sample(breaks, len(breaks))
    if _promotion in first:
        first.remove(_promotion)
        first.insert(generator.randint(1, 2), _promotion)
    yield from first
    while True:
        yield from generator.sample(breaks, len(breaks))
