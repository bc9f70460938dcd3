"""A password that changes while the gateway runs, as tokens of cloud logins do: right, expired,
wrong."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from tests.support.gateway_process import GatewayProcess
from tests.support.tls import ROLE, TlsPostgres, tls_postgres
from tests.support.topics import Topics

NewGateway = Callable[..., GatewayProcess]


@pytest_asyncio.fixture(scope="module")
async def tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsPostgres]:
    async with tls_postgres(tmp_path_factory.mktemp("tls")) as made:
        yield made


@pytest.fixture
def settings(tls: TlsPostgres, kafka: Kafka, registry: Registry, topic_prefix: str) -> dict[str, str]:
    return {
        "source__dsn": tls.dsn(tls.verified).replace(":secret", ""),
        "source__slot": topic_prefix,
        "source__publications": topic_prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": topic_prefix,
        "registry__url": registry.url,
    }


async def end_walsender(sql: asyncpg.Connection, slot: str) -> None:
    await sql.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active", slot
    )


# How each is read: tests/postgres/test_credentials.py.
@pytest.mark.parametrize("how", [pytest.param("file", marks=pytest.mark.long), "command"])
async def test_a_token_that_expires_is_renewed_without_a_gap(
    tls: TlsPostgres, new_gateway: NewGateway, topics: Topics, topic_prefix: str, tmp_path: Path, how: str
) -> None:
    sql = await tls.server.connect()
    await sql.execute(f"CREATE TABLE {topic_prefix} (id int PRIMARY KEY)")
    await sql.execute(f"CREATE PUBLICATION {topic_prefix} FOR TABLE {topic_prefix}")

    async def renew(token: str, *, known_to_gateway: bool = True) -> None:
        await sql.execute(f"ALTER ROLE {ROLE} PASSWORD '{token}'")
        if known_to_gateway:
            (tmp_path / "token").write_text(f"{token}\n")

    await renew("token1")
    command = shlex.join([sys.executable, "-c", f"print(open({str(tmp_path / 'token')!r}).read(), end='')"])
    source = (
        {"source__password_file": str(tmp_path / "token")} if how == "file" else {"source__password_command": command}
    )
    gateway = new_gateway(**source)
    await gateway.streaming()
    await sql.execute(f"INSERT INTO {topic_prefix} VALUES (1)")
    await renew("token2")
    await sql.execute(f"INSERT INTO {topic_prefix} VALUES (2)")  # the connection that is there goes on
    await end_walsender(sql, topic_prefix)
    await gateway.logged('"streaming"', times=2)
    await renew("token3", known_to_gateway=False)
    await end_walsender(sql, topic_prefix)
    await sql.execute(f"INSERT INTO {topic_prefix} VALUES (3)")
    await gateway.logged("28P01")
    refused = gateway.events("restarting")[-1]
    assert (
        f"at 127.0.0.1:{tls.server.port}" in refused["reason"] and refused["delay_s"] >= 1
    )  # 2 s, and up to half of it less
    await renew("token3")
    await gateway.logged('"streaming"', times=3)
    rows = await asyncio.to_thread(
        topics.read, f"{topic_prefix}.public.{topic_prefix}", until=lambda found: len(found) >= 3
    )
    assert sorted(value["after"]["id"] for _, value in rows) == [1, 2, 3]
    assert not any(f"token{number}" in gateway.log() for number in (1, 2, 3))
    await sql.close()
