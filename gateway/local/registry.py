"""Apicurio Registry with the Confluent API, on 127.0.0.1. Its data is kept in a file when the
registry is restarted."""

from __future__ import annotations

import asyncio
import http.client
import logging
import signal
from pathlib import Path

from gateway.local.artifacts import fetched, locked_version, unpacked
from gateway.local.guard import Guard
from gateway.local.java import java
from gateway.local.ports import HOST, free_port
from gateway.local.server import Server

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0


class Registry(Server):
    """A registry. `url` is the address of the Confluent API. Compatibility is not enforced until a
    client sets it."""

    def __init__(self, *, heap_mb: int = 384) -> None:
        super().__init__()
        self.version = locked_version("registry", "apicurio-registry-app")
        self.port = free_port()
        self._management_port = free_port()
        self._heap_mb = heap_mb
        self._program = Path()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    @property
    def log_path(self) -> Path:
        return self.folder / "registry.log"

    async def start(self) -> None:
        """Start the registry and wait until it reports that it is healthy. Raises `PartFailed` with
        the log's tail."""
        if self.pid is not None:
            return
        if self._guard is None:
            await fetched("registry")
            self._program = unpacked("registry") / "quarkus-run.jar"
            self._guard = await Guard.open("registry")
        self._process = await self._guard.start("registry", [java(), *self._options(), "-jar", self._program])
        await self._process.ready(lambda: asyncio.to_thread(self._healthy), START_TIMEOUT_S)
        _log.info("%s %s answers on port %d", "Apicurio", self.version, self.port)

    def _options(self) -> list[str]:
        assert self._guard is not None
        properties = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port,
            "quarkus.management.host": HOST,
            "quarkus.management.port": self._management_port,
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": f"jdbc:h2:file:{self._guard.folder / 'registry'}",
            "java.util.logging.manager": "org.jboss.logmanager.LogManager",
            "java.io.tmpdir": self._guard.folder,  # it unpacks libraries there and does not remove them
        }
        # The serial collector and only the C1 compiler start fastest, and suffice for a few
        # requests a second.
        memory = [f"-Xmx{self._heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        return [*memory, *(f"-D{name}={value}" for name, value in properties.items())]

    def _healthy(self) -> bool:
        # http.client, because it uses no proxy.
        connection = http.client.HTTPConnection(HOST, self._management_port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    async def stop(self) -> None:
        """Stop the registry and keep its schemas."""
        await self._stop(signal.SIGTERM, STOP_TIMEOUT_S)
