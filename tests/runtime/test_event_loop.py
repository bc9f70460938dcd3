"""The gateway's event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.runtime.event_loop import ANSWER_S, EventLoop
from tests.support.tls import certificate

NOWHERE = "nowhere.invalid"
"""A name that no resolver knows (RFC 6761)."""
DEAD, LIVING, REFUSING = "127.0.0.2", "127.0.0.3", "127.0.0.4"


async def _cancelled_while_a_name_is_resolved() -> list[dict[str, Any]]:
    loop, noted = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: noted.append(context))
    for _ in range(8):
        connecting = asyncio.create_task(asyncio.open_connection(NOWHERE, 9092))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
    for _ in range(8):  # resolutions end in their order, but for the few that run at the same time
        await asyncio.gather(asyncio.open_connection(NOWHERE, 9092), return_exceptions=True)
    gc.collect()
    await asyncio.sleep(0)
    return noted


def test_a_connection_that_is_cancelled_leaves_no_exception_behind() -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(_cancelled_while_a_name_is_resolved()) == []


def test_uvloop_needs_the_correction() -> None:
    """When this fails, EventLoop need not resolve names before it connects."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_cancelled_while_a_name_is_resolved())


SUFFIX = ".many.test"


def _name(*addresses: str) -> str:
    return ".".join(address.replace(".", "-") for address in addresses) + SUFFIX


class _Resolving(EventLoop):
    """A loop that resolves `_name` of some addresses to them, in this order."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if not host.endswith(SUFFIX):
            return await super().getaddrinfo(host, port, **options)
        addresses = host.removesuffix(SUFFIX).split(".")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each.replace("-", "."), port)) for each in addresses]


@contextmanager
def _dead_at(address: str) -> Iterator[int]:
    """The port of a listener that drops further connections, because its backlog is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((address, 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        time.sleep(0.1)
        yield listener.getsockname()[1]


def _sockets() -> int:
    """Return the number of sockets that this process has open."""
    return sum(os.readlink(path).startswith("socket:") for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


def _run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on the loop, and assert that no socket stays open."""
    with asyncio.Runner(loop_factory=_Resolving) as runner:
        runner.run(asyncio.sleep(0))
        before = _sockets()
        runner.run(scenario())
        assert _sockets() == before


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_an_address_that_drops_packets_does_not_hide_the_next_one(is_encrypted: bool, tmp_path: Path) -> None:
    names: list[str] = []
    to_client = to_server = None
    if is_encrypted:
        certificate(tmp_path)
        to_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        to_client.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
        to_client.sni_callback = lambda _, name, __: names.append(name)
        to_server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        to_server.check_hostname, to_server.verify_mode = False, ssl.CERT_NONE

    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        async with await asyncio.start_server(serve, LIVING, port, ssl=to_client):
            begun = time.monotonic()
            async with asyncio.timeout(ANSWER_S - 1):
                reader, writer = await asyncio.open_connection(name, port, ssl=to_server)
            assert time.monotonic() - begun > 0.4
            assert writer.get_extra_info("peername")[0] == LIVING
            assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.write(b"answer\n")
            assert await reader.read() == b"answer\n"
            writer.close()
            await writer.wait_closed()

    name = _name(DEAD, LIVING)
    with _dead_at(DEAD) as port:
        _run(scenario)
    assert names == [name] * is_encrypted


def test_an_error_names_each_address_and_why_it_was_not_reached() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionRefusedError) as refused:
            await asyncio.open_connection(_name(REFUSING, LIVING), port)
        assert refused.value.strerror == f"{REFUSING}: Connection refused, {LIVING}: Connection refused"
        with pytest.raises(TimeoutError, match=f"{DEAD}: Connection timed out, {REFUSING}: Connection refused"):
            await asyncio.open_connection(_name(DEAD, REFUSING), port)

    with _dead_at(DEAD) as port:
        _run(scenario)


def test_a_caller_may_stop_waiting_for_the_addresses() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError) as timed_out:
            async with asyncio.timeout(0.7):
                await asyncio.open_connection(_name(DEAD, DEAD), port)
        assert timed_out.value.errno is None

    with _dead_at(DEAD) as port:
        _run(scenario)
