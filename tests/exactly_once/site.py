"""A whole site for random faults: three brokers, a primary with a standby, two gateways, and a
proxy on every way of theirs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import asyncpg
from confluent_kafka import Consumer, TopicPartition

from gateway.local import Postgres, Registry
from gateway.local.ports import HOST, free_port
from tests.conftest import TEST_SETTINGS
from tests.exactly_once.history import Witnessed, ask_witness
from tests.exactly_once.workload import PUBLICATION, create_tables
from tests.support.clusters import Cluster, ClusterBroker, cluster
from tests.support.delivered import Decoder
from tests.support.gateway_process import GatewayProcess
from tests.support.markers import COMMITTING
from tests.support.proxy import FaultProxy

_DATABASE = "postgres"
_PHYSICAL_SLOT = "standby"
WITNESS = f"witness_{_DATABASE}"
_SETTINGS: dict[str, str | int] = {
    **TEST_SETTINGS,
    "hot_standby_feedback": "on",
    "sync_replication_slots": "on",
    "wal_sender_timeout": "5s",
    "wal_receiver_timeout": "5s",
}
SYNCED_TIMEOUT_S = 180.0
_SYNCED = """
    SELECT count(*) FROM pg_replication_slots
    WHERE slot_name = ANY ($1) AND synced AND NOT temporary AND invalidation_reason IS NULL
"""


class ProxiedBroker(ClusterBroker):
    """With a second listener, reached through `proxy`: clients that bootstrap there stay there."""

    def __init__(self, number: int, settings: Mapping[str, str | int], peers: list[ClusterBroker]) -> None:
        super().__init__(number, settings, peers)
        self._inner_port = free_port()
        self.proxy = FaultProxy(self._inner_port)

    def _lay_out(self, folder: Path) -> None:
        super()._lay_out(folder)
        path = folder / "server.properties"
        extra = {
            "listeners": f",PROXIED://{HOST}:{self._inner_port}",
            "advertised.listeners": f",PROXIED://{HOST}:{self.proxy.port}",
            "listener.security.protocol.map": ",PROXIED:PLAINTEXT",
        }
        lines = [line + extra.get(line.partition("=")[0], "") for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")

    async def start(self) -> None:
        await super().start()
        await self.proxy.start()

    async def close(self) -> None:
        await self.proxy.close()
        await super().close()


class Pair:
    """A primary and its standby, with failover slots. `for_gateways` and `for_work` always lead to
    the primary."""

    def __init__(self) -> None:
        self.primary = Postgres(settings=_SETTINGS)
        self.standby = Postgres(settings=_SETTINGS, standby_of=self.primary, physical_slot=_PHYSICAL_SLOT)
        self.for_gateways = FaultProxy(self.primary.port)
        self.for_work = FaultProxy(self.primary.port)
        self.witnessed = Witnessed()

    async def __aenter__(self) -> Self:
        await self.primary.start()
        await self._start_standby()
        for proxy in (self.for_gateways, self.for_work):
            await proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in (self.for_gateways, self.for_work):
            await proxy.close()
        for server in (self.standby, self.primary):
            send(server, signal.SIGCONT)
            await server.close()

    async def _start_standby(self) -> None:
        await self.standby.start()
        await self._wait_for_standby(f"'{_PHYSICAL_SLOT}'")

    async def _wait_for_standby(self, slots: str) -> None:
        sql = await self.primary.connect()
        await sql.execute(f"ALTER SYSTEM SET synchronized_standby_slots = {slots}")
        await sql.execute("SELECT pg_reload_conf()")
        await sql.close()

    async def sql(self) -> asyncpg.Connection:
        return await self.primary.connect(_DATABASE)

    async def create_tables(self) -> None:
        """With a witness slot that is there on the standby too."""
        sql = await self.sql()
        await create_tables(sql)
        await sql.execute(f"SELECT pg_drop_replication_slot('{WITNESS}')")
        await sql.execute(f"SELECT pg_create_logical_replication_slot('{WITNESS}', 'pgoutput', failover => true)")
        await sql.close()

    async def synced(self, *slots: str) -> None:
        """Wait until the standby has these slots for good. The witness is asked meanwhile: a slot
        is synchronized only when it has come as far as the standby was when it saw it first."""
        primary, standby = await self.sql(), await self.standby.connect()
        try:
            async with asyncio.timeout(SYNCED_TIMEOUT_S):
                while await standby.fetchval(_SYNCED, list(slots)) < len(slots):
                    await primary.execute("SELECT pg_log_standby_snapshot()")
                    await ask_witness(primary, PUBLICATION, self.witnessed, consume=True)
                    await asyncio.sleep(0.3)
        finally:
            primary.terminate()
            standby.terminate()

    async def standby_follows(self) -> None:
        sql = await self.sql()
        async with asyncio.timeout(60):
            while not await sql.fetchval(
                "SELECT active FROM pg_replication_slots WHERE slot_name = $1", _PHYSICAL_SLOT
            ):
                await asyncio.sleep(0.1)
        await sql.close()

    async def restart(self) -> None:
        """The primary, which has ended. What a lost client had prepared is committed before others
        come."""
        await self.primary.start()
        await self._commit_prepared()
        await self.for_work.accept()

    async def promote(self) -> None:
        """The primary has ended, and `for_work` is closed. The new primary gets a standby of its
        own."""
        old, self.primary = self.primary, self.standby
        sql = await self.sql()
        assert await sql.fetchval("SELECT pg_promote()")
        await sql.close()
        await self._wait_for_standby("''")
        await self._commit_prepared()
        for proxy in (self.for_gateways, self.for_work):
            proxy.target_port = self.primary.port
        self.for_gateways.cut()
        await self.for_work.accept()
        await old.close()
        self.standby = Postgres(settings=_SETTINGS, standby_of=self.primary, physical_slot=_PHYSICAL_SLOT)
        await self._start_standby()

    async def _commit_prepared(self) -> None:
        sql = await self.sql()
        for (gid,) in await sql.fetch("SELECT gid FROM pg_prepared_xacts"):
            await sql.execute(f"COMMIT PREPARED '{gid}'")
        await sql.close()


def send(server: Postgres, number: signal.Signals) -> None:
    """To the server and all of its processes."""
    if server.pid is None:
        return
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in (server.pid, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Follower:
    """Notes when each committed transaction becomes readable for a stock consumer."""

    def __init__(self, bootstrap_servers: str, registry_url: str, prefix: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._registry_url = registry_url
        self._topic = f"{prefix}.transaction"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self.seen: list[float] = []
        """Seconds of the monotonic clock."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _follow(self) -> None:
        """A broker that hangs is given up after two seconds: its gap is not the gateway's."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "follower",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "socket.timeout.ms": 2000,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        try:
            with Decoder(self._registry_url) as decoder:
                consumer.assign([TopicPartition(self._topic, 0, 0)])
                while not self._stopping.is_set():
                    for message in consumer.consume(1000, timeout=0.1):
                        payload = message.value()
                        if message.error() is None and payload and decoder.decode(payload)[1]["kind"] in COMMITTING:
                            self.seen.append(time.monotonic())
        finally:
            consumer.close()


class Site:
    """`gateways` have the same settings: one delivers, the other stands by."""

    def __init__(self, brokers: Cluster, pair: Pair, registry: Registry, prefix: str, folder: Path) -> None:
        self.cluster = brokers
        self.pair = pair
        self.registry = registry
        self.registry_proxy = FaultProxy(registry.port)
        self.prefix = prefix
        self.slot = f"slot_{prefix}"
        ways = ",".join(f"{HOST}:{broker.proxy.port}" for broker in self.brokers)
        settings = {
            "source__dsn": self._dsn(pair.for_gateways),
            "source__slot": self.slot,
            "source__publications": PUBLICATION,
            "source__two_phase": True,
            "source__failover": True,
            "kafka__bootstrap_servers": ways,
            "kafka__prefix": prefix,
            "kafka__replication_factor": 3,
            "registry__url": registry.url.replace(f":{registry.port}", f":{self.registry_proxy.port}"),
            "registry__timeout_s": 3.0,
        }
        self.gateways = [GatewayProcess(folder / f"gateway_{number}.log", settings) for number in (1, 2)]
        self.down: set[GatewayProcess] = set()
        """Ended on purpose."""

    @property
    def brokers(self) -> list[ProxiedBroker]:
        return [broker for broker in self.cluster.brokers if isinstance(broker, ProxiedBroker)]

    @property
    def work_dsn(self) -> str:
        return self._dsn(self.pair.for_work)

    def _dsn(self, proxy: FaultProxy) -> str:
        primary = self.pair.primary
        return primary.database_dsn(_DATABASE).replace(f":{primary.port}/", f":{proxy.port}/")

    def check_gateways(self) -> None:
        """Neither ends by itself: all that happens here is harmless."""
        for one in self.gateways:
            assert one in self.down or one.is_running, f"ended with {one.exit_code}:\n{one.log_tail()}"


@asynccontextmanager
async def open_site(registry: Registry, prefix: str, folder: Path) -> AsyncIterator[Site]:
    """Nothing is broken yet, one gateway streams, the other waits, and the standby has all that it
    needs to take over."""
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(cluster(kind=ProxiedBroker))
        pair = await stack.enter_async_context(Pair())
        site = Site(brokers, pair, registry, prefix, folder)
        await stack.enter_async_context(site.registry_proxy)
        await pair.create_tables()
        await pair.synced(WITNESS)
        for gateway in site.gateways:
            stack.push_async_callback(gateway.end)
        await site.gateways[0].streaming()
        site.gateways[1].start()
        yield site
