"""A Kafka broker that is its own controller (KRaft), on 127.0.0.1, with new data."""

from __future__ import annotations

import base64
import logging
import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from gateway.local.artifacts import fetched, jars, locked_version
from gateway.local.guard import Guard
from gateway.local.java import java
from gateway.local.ports import HOST, answers, free_port
from gateway.local.server import Server

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
QUICK_START = "-XX:TieredStopAtLevel=1"

_LOG4J = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""

_SETTINGS: dict[str, str | int] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # An index is a file that is mapped at this size. With a large read-ahead of the disk (such as
    # 8 MB), Linux 6.18 zeroes that much of it at its first write, for two indexes per partition:
    # 2.3 ms of CPU at the default of 10 MB, 0.01 ms at this size. A full index ends its segment, at
    # 5.6 MB of small batches at the earliest.
    "log.index.size.max.bytes": 16_384,
    "log.cleaner.dedupe.buffer.size": 2_097_152,
    # By default, the controller writes an empty record twice a second if metadata does not change,
    # which takes a third of an idle broker's CPU time (2.3 % of a core); only controllers that
    # follow others need it.
    "metadata.max.idle.interval.ms": 0,
    "message.max.bytes": 33_554_432,
}


class Kafka(Server):
    """A broker. `settings` are broker properties that override the defaults above; `heap_mb` is
    -Xmx; `jvm_options` precede the class on the command line.

    `QUICK_START` as an option saves 40 % of the start's CPU time (1.8 s instead of 3.0 s) at the
    expense of speed later.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str | int] | None = None,
        heap_mb: int = 512,
        jvm_options: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.version = locked_version("kafka", "kafka_2.13")
        self.port = free_port()
        self.controller_port = free_port()
        self._settings: dict[str, str | int] = {**_SETTINGS, **(settings or {})}
        self._heap_mb = heap_mb
        self._jvm_options = tuple(jvm_options)
        self._class_path = ""

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.folder / "broker.log"

    async def start(self) -> None:
        """Start the broker and wait until it answers an API request. The first start creates the
        data; later ones keep it. Raises `PartFailed` with the log's tail."""
        if self.pid is not None:
            return
        if self._guard is None:
            await fetched("kafka")
            self._class_path = ":".join(map(str, jars("kafka")))
            self._guard = await Guard.open("kafka")
            self._lay_out(self._guard.folder)
        folder = self._guard.folder
        self._process = await self._guard.start(
            "broker", [java(), *self._options(folder), folder / "server.properties"]
        )
        await self._process.ready(self._answers, START_TIMEOUT_S)
        _log.info("%s %s answers on port %d", "Kafka", self.version, self.port)

    def _options(self, folder: Path) -> list[str]:
        return [
            "-Xms256m",
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={folder}",  # it unpacks libraries there and does not remove them
            *self._jvm_options,
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            "-cp",
            self._class_path,
            "kafka.Kafka",
        ]

    def _lay_out(self, folder: Path) -> None:
        """Write the properties, and format the storage without kafka.tools.StorageTool, which would
        start Java once more.

        With static controller voters and a meta.properties, a broker starts at the newest metadata
        version automatically (KIP-631; BootstrapDirectory.readFromConfiguration).
        """
        properties: dict[str, str | int] = {
            **self._settings,
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "log.dirs": str(folder / "data"),
        }
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        (folder / "data").mkdir()
        (folder / "data" / "meta.properties").write_text(
            f"version=1\ncluster.id={cluster_id}\nnode.id=1\ndirectory.id={directory_id}\n"
        )
        (folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        (folder / "log4j2.properties").write_text(_LOG4J)

    async def _answers(self) -> bool:
        if not await answers(self.port):
            return False
        client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5_000)
        try:
            await client.start()
            return bool((await client.describe_cluster())["brokers"])
        except (KafkaError, OSError):
            return False
        finally:
            await client.close()

    async def stop(self) -> None:
        """Shut the broker down in a controlled way, and keep its data."""
        await self._stop(signal.SIGTERM, STOP_TIMEOUT_S)
