"""Log-ins to a registry that demands them: bearer tokens of an OpenID provider, and client
certificates."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.config.settings import RegistrySettings
from gateway.errors import Retry, RetrySlowly, StopForOperator
from gateway.local import Registry
from gateway.schema_errors import classified_schema_errors
from schemas.records import POSITION
from schemas.registry_client import RegistryClient
from tests.support.oidc import CLIENT, SECRET, Provider, oidc_provider
from tests.support.tls import certificate, client_certificate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

KEY_PASSWORD = "key-secret"


class TokenRegistry(Registry):
    """Takes who brings a token of the provider."""

    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self._provider = provider

    def _options(self) -> list[str]:
        properties = {
            "quarkus.oidc.tenant-enabled": "true",
            "quarkus.oidc.auth-server-url": self._provider.url,
            "quarkus.oidc.client-id": "registry",
            "quarkus.oidc.token.lifespan-grace": "0",
        }
        return [*super()._options(), *(f"-D{name}={value}" for name, value in properties.items())]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with oidc_provider() as made:
        yield made


@pytest_asyncio.fixture(scope="module")
async def guarded(provider: Provider) -> AsyncIterator[Registry]:
    async with TokenRegistry(provider) as made:
        yield made


async def ask(registry: str, **settings: Any) -> None:
    """As the start does; then write something."""
    values = RegistrySettings.model_validate({"url": registry, "timeout_s": 10, **settings})
    client = RegistryClient(values.url, **values.client_options(), timeout_s=values.timeout_s)
    try:
        with classified_schema_errors():
            await client.latest("nothing-value")
            await client.register("walgate.position-value", POSITION)
    finally:
        await client.close()


async def test_tokens_of_a_provider(guarded: Registry, provider: Provider, tmp_path: Path) -> None:
    """Right, none, wrong, of a file, ended, the provider away."""
    login = {"oauth_token_url": provider.token_url, "oauth_client_id": CLIENT, "oauth_client_secret": SECRET}
    await ask(guarded.url, **login)
    with pytest.raises(RetrySlowly, match="401"):
        await ask(guarded.url)
    with pytest.raises(RetrySlowly, match="registry.oauth_client_id") as raised:
        await ask(guarded.url, **login | {"oauth_client_secret": "wrong"})
    assert "wrong" not in str(raised.value)
    file = tmp_path / "token"
    file.write_text(provider.token(life_s=-60))
    with pytest.raises(RetrySlowly, match="401 .*"):
        await ask(guarded.url, token_file=file)
    file.write_text(provider.token())
    await ask(guarded.url, token_file=file)
    provider.is_away = True
    try:
        with pytest.raises(Retry, match="503"):
            await ask(guarded.url, **login)
    finally:
        provider.is_away = False


async def test_a_token_that_ends_while_the_client_lives_is_renewed(guarded: Registry, provider: Provider) -> None:
    provider.life_s, before = 2, provider.given_count
    values = RegistrySettings.model_validate(
        {
            "url": guarded.url,
            "oauth_token_url": provider.token_url,
            "oauth_client_id": CLIENT,
            "oauth_client_secret": SECRET,
        }
    )
    client = RegistryClient(values.url, **values.client_options())
    try:
        for _ in range(8):
            await client.latest("nothing-value")
            await asyncio.sleep(0.6)
        assert provider.given_count - before >= 2
    finally:
        provider.life_s = 300
        await client.close()


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    certificate(tmp_path)
    command = f"openssl pkcs8 -topk8 -in server.key -out encrypted.key -passout pass:{KEY_PASSWORD}"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@contextlib.asynccontextmanager
async def behind_tls(port: int, pem: Path) -> AsyncIterator[int]:
    """A TLS server that asks for a client's certificate, in front of `port`, as an ingress is in
    front of a registry."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem / "server.crt", pem / "server.key")
    tls.load_verify_locations(pem / "server.crt")
    tls.verify_mode = ssl.CERT_REQUIRED

    async def replication_loop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(replication_loop(reader, back), replication_loop(there, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


async def test_a_client_certificate_with_an_encrypted_key(registry: Registry, pem: Path) -> None:
    own = {"cert_file": pem / "server.crt", "key_file": pem / "encrypted.key", "key_password": KEY_PASSWORD}
    async with behind_tls(registry.port, pem) as port:
        url = registry.url.replace(f"http://127.0.0.1:{registry.port}", f"https://127.0.0.1:{port}")
        trusted = {"ca_file": pem / "server.crt"}
        await ask(url, **trusted, **own)
        with pytest.raises((Retry, RetrySlowly)):
            await ask(url, **trusted)
        with pytest.raises(RetrySlowly, match="registry.ca_file"):
            await ask(url, **own)
        with pytest.raises(StopForOperator, match="registry.key_password"):
            await ask(url, **trusted, **own | {"key_password": "wrong"})


async def test_a_certificate_that_has_expired_is_waited_for_and_its_successor_is_taken(
    registry: Registry, pem: Path
) -> None:
    own = {"ca_file": pem / "server.crt", "cert_file": pem / "client.crt", "key_file": pem / "client.key"}
    async with behind_tls(registry.port, pem) as port:
        url = registry.url.replace(f"http://127.0.0.1:{registry.port}", f"https://127.0.0.1:{port}")
        client_certificate(pem, days=-1)
        with pytest.raises((Retry, RetrySlowly)):
            await ask(url, **own)
        client_certificate(pem, days=1)
        await ask(url, **own)
