"""Ways on from stops of TLS and logins, at a server and at brokers that ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from gateway.local.ports import HOST
from tests.conftest import Database, _new_database
from tests.exactly_once.test_ways_on import _place
from tests.kafka.test_logins import Place as Brokers
from tests.kafka.test_logins import place as brokers
from tests.support.gateway_process import COMMAND
from tests.support.oidc import CLIENT, SECRET
from tests.support.tls import TlsPostgres, certificate, tls_postgres
from tests.support.written import checked

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]
__all__ = ["brokers"]


@pytest_asyncio.fixture(scope="module")
async def tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsPostgres]:
    async with tls_postgres(tmp_path_factory.mktemp("tls")) as made:
        yield made


async def test_a_server_that_cannot_be_verified_is_when_the_certificate_is_there(
    tls: TlsPostgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """A file that is missing stops the gateway; another authority may be replaced while it
    waits."""
    async with (
        asynccontextmanager(_new_database)(tls.server) as database,
        asynccontextmanager(_place)(database, kafka, registry, topic_prefix, tmp_path) as place,
    ):
        root = tmp_path / "server.crt"
        place.set(source__dsn=tls.dsn(f"sslmode=verify-full&sslrootcert={root}", database=database.name))
        said = await place.ends()
        assert "sslrootcert (source.dsn, PGSSLROOTCERT) cannot be read" in said, said
        assert "to a PEM file that the gateway can read" in said, said

        certificate(tmp_path)
        place.gateway.start()
        await place.gateway.logged("certificate verify failed")
        assert "check sslrootcert, the host name" in place.gateway.events("restarting")[-1]["hint"]
        root.write_bytes(tls.root.read_bytes())
        await place.gateway.logged('"streaming"')
        await place.insert()
        await place.stop()
        await place.streams()
        await place.stop()


@dataclass(frozen=True)
class Listener:
    """`wrong`: what is other than the listener wants; None: not set."""

    name: str
    said: str
    hint: str
    wrong: Mapping[str, Any] = field(default_factory=dict)


LISTENERS: Mapping[str, Listener] = {
    "certificate": Listener(
        "TLS",
        "cannot be verified",
        "set kafka.ssl_ca_file to a file with the certificate of the authority",
        {"ssl_ca_file": None},
    ),
    "own certificate": Listener(
        "MUTUAL",
        "requires a client certificate",
        "set kafka.ssl_cert_file to a client certificate that the broker trusts",
        {"ssl_cert_file": None, "ssl_key_file": None, "ssl_key_password": None},
    ),
    "login": Listener(
        "LOGIN",
        "requires SASL (",
        "set kafka.security_protocol = SASL_PLAINTEXT, kafka.sasl_mechanism to one of these",
        {"security_protocol": "PLAINTEXT", "sasl_username": None, "sasl_password": None},
    ),
    "mechanism": Listener(
        "LOGIN",
        "does not support kafka.sasl_mechanism = SCRAM-SHA-256",
        "a mechanism that the listener supports: PLAIN, SCRAM-SHA-512",
        {"sasl_mechanism": "SCRAM-SHA-256"},
    ),
    "listener without login": Listener(
        "LOGIN",
        "does not use SASL",
        "or use a listener with SASL",
        {"bootstrap_servers": "{plain}"},
    ),
    "listener without TLS": Listener(
        "TLS",
        "does not use TLS",
        "or use the listener with TLS",
        {"bootstrap_servers": "{plain}"},
    ),
    "another host name": Listener(
        "TLS",
        "cannot be verified",
        "use a host name from the certificate",
        {"bootstrap_servers": "127.1:{tls_port}"},
    ),
    "another service": Listener(
        "PLAINTEXT",
        "answers, but not with Kafka's protocol",
        "check that this is Kafka's port",
        {"bootstrap_servers": "{postgresql}"},
    ),
    "controller": Listener(
        "PLAINTEXT",
        "is the port of a KRaft controller",
        "use the port of a broker's listener for clients",
        {"bootstrap_servers": "{controller}"},
    ),
    "missing file": Listener(
        "TLS",
        "kafka.ssl_ca_file cannot be used",
        "use PEM files that the gateway can read",
        {"ssl_ca_file": "/missing.pem"},
    ),
}


@pytest.mark.parametrize("name", list(LISTENERS))
async def test_a_listener_is_met_as_the_check_says(
    name: str, brokers: Brokers, database: Database, registry: Registry, tmp_path: Path
) -> None:
    listener = LISTENERS[name]
    prefix = f"t{uuid4().hex[:10]}"
    async with asynccontextmanager(_place)(database, brokers.broker, registry, prefix, tmp_path) as place:
        right = brokers.settings(listener.name).model_dump(include=_NAMES, exclude_none=True)
        place.set(**{f"kafka__{setting}": _shown(value) for setting, value in right.items()})
        place.set(kafka__transaction_timeout_s=60)
        await place.streams()
        await place.stop()
        await place.insert()
        fitting = dict(place.gateway.settings)
        addresses = {
            "plain": brokers.broker.bootstrap_servers,
            "tls_port": brokers.broker.ports["TLS"],
            "postgresql": f"{HOST}:{database.server.port}",
            "controller": f"{HOST}:{brokers.broker.controller_port}",
        }
        for setting, value in listener.wrong.items():
            place.gateway.settings.pop(f"kafka__{setting}", None)
            if value is not None:
                place.set(**{f"kafka__{setting}": value.format(**addresses)})
        said = await checked(place.gateway, 78)
        assert listener.said in said and listener.hint in said, said
        place.gateway.settings = fitting
        await checked(place.gateway, 0)
        await place.streams()
        await place.stop()


_SIGNER = """
import base64, json, time, urllib.request

def generate_auth_token(region):
    headers = {{"Authorization": "Basic " + base64.b64encode({login!r}).decode()}}
    request = urllib.request.Request({url!r}, b"grant_type=client_credentials", headers)
    with urllib.request.urlopen(request) as answer:
        found = json.load(answer)
    return found["access_token"], round((time.time() + found["expires_in"]) * 1000)
"""


async def test_a_library_that_is_missing_is_installed(
    brokers: Brokers, database: Database, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """A stand-in for the vendor's signer, which gives tokens of our provider."""
    found, missing = tmp_path / "found", tmp_path / "missing"
    (found / "aws_msk_iam_sasl_signer").mkdir(parents=True)
    signer = _SIGNER.format(login=f"{CLIENT}:{SECRET}".encode(), url=brokers.provider.token_url)
    (found / "aws_msk_iam_sasl_signer" / "__init__.py").touch()
    (found / "aws_msk_iam_sasl_signer" / "MSKAuthTokenProvider.py").write_text(signer)
    missing.mkdir()
    (missing / "aws_msk_iam_sasl_signer.py").write_text("raise ImportError")
    async with asynccontextmanager(_place)(database, brokers.broker, registry, topic_prefix, tmp_path) as place:
        right = brokers.settings("MSK").model_dump(include=_NAMES, exclude_none=True)
        place.set(**{f"kafka__{setting}": _shown(value) for setting, value in right.items()})
        place.gateway.command = ("env", f"PYTHONPATH={found}", *COMMAND)
        await place.streams()
        await place.stop()
        await place.insert()
        place.gateway.command = ("env", f"PYTHONPATH={missing}", *COMMAND)
        said = await place.ends()
        assert "AWS_MSK_IAM needs a library that is not installed" in said and "pip install 'walgate[msk]'" in said
        place.gateway.command = ("env", f"PYTHONPATH={found}", *COMMAND)
        await place.streams()
        await place.stop()


_NAMES = {
    "aws_region",
    "bootstrap_servers",
    "security_protocol",
    "sasl_mechanism",
    "sasl_username",
    "sasl_password",
    "ssl_ca_file",
    "ssl_cert_file",
    "ssl_key_file",
    "ssl_key_password",
}


def _shown(value: Any) -> str:
    return str(value.get_secret_value() if hasattr(value, "get_secret_value") else value)
