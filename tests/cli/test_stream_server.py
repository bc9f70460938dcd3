"""Which host of the DSN a command asks; with real servers in
tests/postgres/test_old_primary_first.py."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace

import pytest
from pydantic import SecretStr

from gateway.cli import stream_server
from gateway.cli.stream_server import Primary, choose, stream_login
from gateway.config.source import SourceSettings
from gateway.postgres.credentials import Credentials

LOGIN = Credentials("postgresql://a,b/shop")
FIRST, SECOND = replace(LOGIN, server=("a", 5432)), replace(LOGIN, server=("b", 5432))


def test_the_primary_of_the_stream_is_asked_then_that_of_the_newest_timeline_then_the_first() -> None:
    assert choose(LOGIN, [Primary(FIRST, 1, is_read=False), Primary(SECOND, 2, is_read=False)]) == SECOND
    assert choose(LOGIN, [Primary(FIRST, 1, is_read=True), Primary(SECOND, 2, is_read=False)]) == FIRST
    assert choose(LOGIN, [Primary(FIRST, 1, is_read=True), Primary(SECOND, 2, is_read=True)]) == SECOND
    assert choose(LOGIN, [Primary(FIRST, 2, is_read=False), Primary(SECOND, 2, is_read=False)]) == FIRST


def test_without_a_primary_every_host_is_left_to_the_caller() -> None:
    assert choose(LOGIN, []) == LOGIN


async def test_one_host_is_not_asked() -> None:
    source = SourceSettings(dsn=SecretStr("postgresql://127.0.0.1:1/shop"))
    assert (await stream_login(source)).server is None


async def test_hosts_that_do_not_answer_are_no_primaries() -> None:
    source = SourceSettings(dsn=SecretStr("postgresql://127.0.0.1:1,127.0.0.1:2/shop"))
    assert (await stream_login(source)).server is None


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_host_that_never_answers_delays_a_command_little(
    monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    look_at = stream_server._look_at

    async def look(login: Credentials, slot: str, timeout_s: float) -> Primary | None:
        if login.server == silent.getsockname():
            return await look_at(login, slot, timeout_s)
        await asyncio.sleep(0.1)
        return Primary(login, 1, is_read)

    monkeypatch.setattr(stream_server, "_look_at", look)
    monkeypatch.setattr(stream_server, "_OTHERS_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = SourceSettings(dsn=SecretStr(f"postgresql://127.0.0.1:{silent.getsockname()[1]},127.0.0.1:1/shop"))
        begun = time.monotonic()
        login = await stream_login(source, timeout_s=20)
        assert login.server == ("127.0.0.1", 1)
        assert (time.monotonic() - begun > 1) is not is_read
        assert time.monotonic() - begun < 5
