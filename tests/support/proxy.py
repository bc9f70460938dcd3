"""A TCP proxy that breaks connections on purpose, between the gateway and PostgreSQL, Kafka or the
registry.

Without a fault every byte passes unchanged and in order. Faults hold for connections that are open
and for new ones, until `heal`:

    cut                  reset every open connection, as a crashed peer or a firewall does
    refuse               accept nothing any more
    black_hole           bytes of a direction stay where they are: no reset, no end, the peer just falls silent
    delay_s, rate        each piece waits, or bytes pass at so many a second
    cut_after(n)         let exactly n more bytes of a direction pass, then reset: half a message
    freeze, thaw         what is under way on the connections that are open now arrives late; new ones work

Kafka clients go where the broker's metadata send them: `ProxiedKafka` has a second listener that
advertises the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from confluent_kafka.admin import AdminClient

from gateway.local import Kafka
from gateway.local.kafka import QUICK_START
from gateway.local.ports import HOST, free_port

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, ...] = ("to_server", "to_client")
_PIECE_BYTES = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with time 0: close sends RST


@dataclass(slots=True)
class _Way:
    """One direction. `open` is cleared while it is a black hole; `left` counts bytes down to a
    cut."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    rate: float | None = None
    left: int | None = None
    moved_bytes: int = 0


class FaultProxy:
    """`port` is ours; `target_port` may be set later and changed: new connections go to the new
    one."""

    def __init__(self, target_port: int, *, port: int | None = None) -> None:
        self.target_port = target_port
        self.port = port or free_port()
        self.connection_count = 0
        self.on_piece: Callable[[Direction, bytes], None] | None = None
        self._ways: dict[Direction, _Way] = {direction: _Way() for direction in DIRECTIONS}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates: set[asyncio.Event] = set()
        self._server: asyncio.Server | None = None
        self.heal()

    # -- faults
    # -----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No fault any more; what a black hole held back goes on its way. `refuse` is undone by
        `accept`."""
        for way in self._ways.values():
            way.open.set()
            way.delay_s, way.rate, way.left = 0.0, None, None

    def cut(self) -> None:
        """Reset every open connection, to both sides."""
        for writer in list(self._writers):
            _reset(writer)

    def black_hole(self, *directions: Direction) -> None:
        """Both ways where none is named."""
        for direction in directions or DIRECTIONS:
            self._ways[direction].open.clear()

    def freeze(self) -> None:
        """Hold what comes on the connections that are open now, to the server, also when the client
        has gone."""
        for gate in self._gates:
            gate.clear()

    def thaw(self) -> None:
        for gate in self._gates:
            gate.set()

    def delay(self, seconds: float, *directions: Direction) -> None:
        for direction in directions or DIRECTIONS:
            self._ways[direction].delay_s = seconds

    def throttle(self, bytes_per_s: float | None, *directions: Direction) -> None:
        for direction in directions or DIRECTIONS:
            self._ways[direction].rate = bytes_per_s

    def cut_after(self, byte_count: int, direction: Direction) -> None:
        """Let so many bytes pass from now on, then reset everything once."""
        self._ways[direction].left = byte_count

    async def refuse(self) -> None:
        """Close the port and reset what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    async def accept(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connect, HOST, self.port)

    def moved_bytes(self, direction: Direction) -> int:
        return self._ways[direction].moved_bytes

    # -- bytes
    # ------------------------------------------------------------------------------------------------------

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            self._writers.discard(writer)
            _reset(writer)
            return
        self.connection_count += 1
        self._writers.add(server_writer)
        gate, always = asyncio.Event(), asyncio.Event()
        gate.set()
        always.set()
        self._gates.add(gate)
        pair = [
            asyncio.create_task(self._move(reader, server_writer, "to_server", gate)),
            asyncio.create_task(self._move(server_reader, writer, "to_client", always)),
        ]
        self._tasks.update(pair)
        try:
            await asyncio.gather(*pair)
        finally:
            self._gates.discard(gate)
            self._tasks.difference_update(pair)
            for task in pair:
                task.cancel()
            for one in (writer, server_writer):
                self._writers.discard(one)
                one.close()

    async def _move(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction, gate: asyncio.Event
    ) -> None:
        way = self._ways[direction]
        try:
            while piece := await reader.read(_PIECE_BYTES):
                if way.delay_s:
                    await asyncio.sleep(way.delay_s)
                await gate.wait()
                await way.open.wait()
                if way.left is not None and len(piece) >= way.left:
                    writer.write(piece[: way.left])
                    way.left = None
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(writer.drain(), 1.0)
                    self.cut()
                    return
                if way.left is not None:
                    way.left -= len(piece)
                if self.on_piece is not None:
                    self.on_piece(direction, piece)
                await self._write(writer, piece, way)
            await way.open.wait()
            if writer.can_write_eof():
                writer.write_eof()
        except (ConnectionError, OSError, RuntimeError):
            _reset(writer)

    async def _write(self, writer: asyncio.StreamWriter, piece: bytes, way: _Way) -> None:
        way.moved_bytes += len(piece)
        if way.rate is None:
            writer.write(piece)
            await writer.drain()
            return
        step = max(1, int(way.rate / 20))
        for start in range(0, len(piece), step):
            part = piece[start : start + step]
            writer.write(part)
            await writer.drain()
            if way.rate is not None:
                await asyncio.sleep(len(part) / way.rate)

    # -- life
    # -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.accept()

    async def close(self) -> None:
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


ACCOUNT = {
    "kafka__security_protocol": "SASL_PLAINTEXT",
    "kafka__sasl_mechanism": "PLAIN",
    "kafka__sasl_username": "gateway",
    "kafka__sasl_password": "secret",
}
"""Settings of a gateway that comes as `User:gateway`, who may do everything that no ACL denies."""
_AUTHORIZATION: dict[str, str | int] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
    "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.secured.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_gateway="secret";',
}


UNRESOLVABLE = "kafka.invalid:9092"
"""An address whose name no resolver knows (RFC 6761)."""


class ProxiedKafka(Kafka):
    """A broker with a second listener, reached through `proxy`: clients that bootstrap there stay
    there. A third one asks who comes, and the authorizer what he may do; whoever comes by the
    others may do everything. A fourth one advertises a name that nobody can resolve."""

    def __init__(self, *, settings: dict[str, str | int] | None = None, heap_mb: int = 512) -> None:
        super().__init__(settings=_AUTHORIZATION | (settings or {}), heap_mb=heap_mb, jvm_options=[QUICK_START])
        self._inner_port = free_port()
        self._secured_port = free_port()
        self._misnamed_port = free_port()
        self.proxy = FaultProxy(self._inner_port)

    @property
    def proxied_servers(self) -> str:
        return f"{HOST}:{self.proxy.port}"

    @property
    def secured_servers(self) -> str:
        return f"{HOST}:{self._secured_port}"

    @property
    def misnamed_servers(self) -> str:
        return f"{HOST}:{self._misnamed_port}"

    def _lay_out(self, folder: Path) -> None:
        super()._lay_out(folder)
        path = folder / "server.properties"
        lines = path.read_text().splitlines()
        extra = {
            "listeners": f",PROXIED://{HOST}:{self._inner_port},SECURED://{self.secured_servers}"
            f",MISNAMED://{self.misnamed_servers}",
            "advertised.listeners": f",PROXIED://{self.proxied_servers},SECURED://{self.secured_servers}"
            f",MISNAMED://{UNRESOLVABLE}",
            "listener.security.protocol.map": ",PROXIED:PLAINTEXT,SECURED:SASL_PLAINTEXT,MISNAMED:PLAINTEXT",
        }
        path.write_text("\n".join(line + extra.get(line.partition("=")[0], "") for line in lines) + "\n")

    def delete_topic(self, topic: str) -> None:
        """Returns when the broker takes nothing for it any more: the controller has answered
        before."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        while topic in admin.list_topics(timeout=30).topics:
            time.sleep(0.02)

    async def start(self) -> None:
        await super().start()
        await self.proxy.start()

    async def close(self) -> None:
        await self.proxy.close()
        await super().close()
