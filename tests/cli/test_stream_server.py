"""Which host of the DSN a command asks; with real servers in
tests/postgres/test_old_primary_first.py."""

from __future__ import annotations

from dataclasses import replace

from pydantic import SecretStr

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
