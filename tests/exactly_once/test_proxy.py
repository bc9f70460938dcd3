"""The fault proxy: transparent without a fault, and each fault does what its name says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.local.ports import HOST
from tests.support.proxy import FaultProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[FaultProxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, HOST, 0)
    async with server, FaultProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def connect(proxy: FaultProxy) -> Streams:
    return await asyncio.open_connection(HOST, proxy.port)


async def is_silent(reader: asyncio.StreamReader, seconds: float = 0.2) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), seconds)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_unchanged_and_in_order_when_no_fault_is_set() -> None:
    generator = random.Random(5)
    async with echo_behind_proxy() as proxy:

        async def round_trip(seed: int) -> None:
            data = random.Random(seed).randbytes(2_000_000)
            reader, writer = await connect(proxy)
            position = 0
            received = bytearray()

            async def collect() -> None:
                while piece := await reader.read(1 << 16):
                    received.extend(piece)

            task = asyncio.create_task(collect())
            while position < len(data):
                step = generator.randint(1, 200_000)
                writer.write(data[position : position + step])
                await writer.drain()
                position += step
            writer.write_eof()
            await task
            writer.close()
            assert bytes(received) == data

        await asyncio.gather(*(round_trip(seed) for seed in range(4)))
        assert proxy.moved_bytes("to_client") == 8_000_000


async def test_cut_resets_what_is_open_and_a_new_connection_works() -> None:
    async with echo_behind_proxy() as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        reader, writer = await connect(proxy)
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        writer.close()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
async def test_a_black_hole_of_one_way_holds_the_bytes_until_it_is_healed(direction: str) -> None:
    async with echo_behind_proxy() as proxy:
        reader, writer = await connect(proxy)
        proxy.black_hole(direction)  # type: ignore[arg-type]
        writer.write(b"held")
        assert await is_silent(reader)
        assert (proxy.moved_bytes("to_server") > 0) == (direction == "to_client")
        proxy.heal()
        assert await asyncio.wait_for(reader.readexactly(4), 5) == b"held"
        writer.close()


async def test_cut_after_lets_exactly_that_many_bytes_pass() -> None:
    async with echo_behind_proxy() as proxy:
        for count in (1, 7, 4096):
            reader, writer = await connect(proxy)
            proxy.cut_after(count, "to_client")
            writer.write(bytes(10_000))
            assert await reader.readexactly(count) == bytes(count)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)


async def test_delay_and_throttle_slow_the_bytes_down() -> None:
    async with echo_behind_proxy() as proxy:
        reader, writer = await connect(proxy)
        loop = asyncio.get_running_loop()
        proxy.delay(0.2, "to_client")
        begun = loop.time()
        writer.write(b"x")
        await reader.readexactly(1)
        assert loop.time() - begun >= 0.2
        proxy.heal()
        proxy.throttle(50_000, "to_client")
        begun = loop.time()
        writer.write(bytes(20_000))
        await reader.readexactly(20_000)
        assert 0.3 <= loop.time() - begun <= 3
        writer.close()


async def test_refuse_closes_the_port_until_accept() -> None:
    async with echo_behind_proxy() as proxy:
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await connect(proxy)
        await proxy.accept()
        reader, writer = await connect(proxy)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.close()


async def test_what_is_frozen_arrives_late_while_new_connections_work() -> None:
    async with echo_behind_proxy() as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.freeze()
        writer.write(b"late")
        assert await is_silent(reader)
        other_reader, other_writer = await connect(proxy)
        other_writer.write(b"y")
        assert await other_reader.readexactly(1) == b"y"
        proxy.thaw()
        assert await asyncio.wait_for(reader.readexactly(4), 5) == b"late"
        writer.close()
        other_writer.close()
