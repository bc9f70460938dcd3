"""docs/security.md, TLS and passwords: its settings against servers that take nothing else."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from gateway.local import Postgres, Registry
from gateway.local.ports import HOST
from tests.kafka.test_logins import Listeners
from tests.support.oidc import oidc_provider
from tests.support.tls import certificate
from tests.walk.walk import PASSWORD as OF_ROLE
from tests.walk.walk import Walk, commands, shop, walk

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

SECTION = ("docs/security.md", "TLS and passwords")
PASSWORD = "gate-secret"
USERS = ("walgate", "mirror")
HBA = [
    "hostssl all walgate 127.0.0.1/32 scram-sha-256",
    "hostnossl all walgate 127.0.0.1/32 reject",
    "host all postgres 127.0.0.1/32 scram-sha-256",
]


@asynccontextmanager
async def guarded_registry(registry: Registry, pem: Path) -> AsyncIterator[str]:
    """URL of a proxy that takes TLS and Basic authentication only."""
    logins = [base64.b64encode(f"{user}:{PASSWORD}".encode()).lower() + b"\r\n" for user in USERS]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem / "server.crt", pem / "server.key")

    async def replication_loop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            first = await reader.readuntil(b"\r\n\r\n")
            if not any(b"authorization: basic " + login in first.lower() for login in logins):
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            else:
                there, back = await asyncio.open_connection(HOST, registry.port)
                back.write(first)
                await asyncio.gather(replication_loop(reader, back), replication_loop(there, writer))
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0, ssl=context) as server:
        yield f"https://{HOST}:{server.sockets[0].getsockname()[1]}/apis/ccompat/v7"


def credentials(kafka: Listeners) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for user in USERS:
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, scram, PASSWORD.encode())])
        made[user].result(30)


@pytest_asyncio.fixture
async def walker(tmp_path: Path) -> AsyncIterator[Walk]:
    pem = tmp_path / "pem"
    pem.mkdir(mode=0o755)
    files = certificate(pem)
    (pem / "ca.pem").write_bytes(files["server.crt"])
    (pem / "broker.pem").write_bytes(files["server.key"] + files["server.crt"])
    for name in ("kafka", "registry"):
        (pem / name).write_text(f"{PASSWORD}\n")
    async with AsyncExitStack() as parts:
        provider = parts.enter_context(oidc_provider())
        postgres, kafka, registry = await asyncio.gather(
            parts.enter_async_context(Postgres(17, files=files, hba=HBA, settings={"ssl": "on"})),
            parts.enter_async_context(Listeners(provider, pem)),
            parts.enter_async_context(Registry()),
        )
        await asyncio.to_thread(credentials, kafka)
        (pem / "pgpass").write_text(f"{HOST}:{postgres.port}:shop:walgate:{OF_ROLE}\n")
        (pem / "pgpass").chmod(0o600)
        await shop(postgres)
        made = walk(postgres, kafka, registry, tmp_path)
        del made.environment["PGPASSWORD"]
        made.replaced |= {
            "/etc/walgate": str(pem),
            "/run/secrets": str(pem),
            "kafka.example:9093": f"{HOST}:{kafka.ports['BOTH']}",
            "password=...": f"password={PASSWORD}",
            "mirror:...": f"mirror:{PASSWORD}",
            "https://registry.example": await parts.enter_async_context(guarded_registry(registry, pem)),
        }
        await made.sql(*commands("docs/own-servers.md", "Prepare PostgreSQL"))
        yield made


async def test_gateway_and_mirror_log_in_as_the_page_says(walker: Walk) -> None:
    *exports, mirror = commands(*SECTION)
    walker.export(*exports)
    for left_out in ("CA_FILE", "PASSWORD_FILE", "PGPASSFILE"):
        await is_refused_without(walker, left_out)
    await walker.run("walgate check", "the gateway would start")
    async with walker.gateway():
        await walker.run_again("walgate status", "cdc.public.orders: 1 records")
    for name in ("kafka.sasl.password", "registry.ssl.ca.location"):
        await walker.run(re.sub(rf" --option {name}=\S*", "", f"{mirror} --once"), code=1)
    await walker.run(f"{mirror} --once", "public.orders", "public.items")
    await walker.run("walgate dump --mirror /data/mirror --table public.orders", "was there before")


async def is_refused_without(walker: Walk, left_out: str) -> None:
    """The servers take nothing else."""
    settings = {name: value for name, value in walker.environment.items() if left_out not in name}
    whole, walker.environment = walker.environment, settings
    async with walker.running("walgate check") as (process, output):
        assert await process.wait() in (1, 78) and "would start" not in output(), output()
    walker.environment = whole
