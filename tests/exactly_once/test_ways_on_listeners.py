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
from tests.exactly_once.written import checked
from tests.kafka.test_logins import Place as Brokers
from tests.kafka.test_logins import place as brokers
from tests.tls import TlsPostgres, certificate, tls_postgres

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]
__all__ = ["brokers"]


@pytest_asyncio.fixture(scope="module")
async def tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsPostgres]:
    async with tls_postgres(tmp_path_factory.mktemp("tls")) as made:
        yield made


async def test_a_server_that_cannot_be_verified_is_when_the_certificate_is_named(
    tls: TlsPostgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with (
        asynccontextmanager(_new_database)(tls.server) as database,
        asynccontextmanager(_place)(database, kafka, registry, topic_prefix, tmp_path) as place,
    ):
        right = tls.dsn(tls.verified, database=database.name)
        place.set(source__dsn=right)
        await place.streams()
        await place.stop()
        (tmp_path / "other").mkdir()
        certificate(tmp_path / "other")
        for root, said, hint in (
            (
                "missing.crt",
                "sslrootcert (source.dsn, PGSSLROOTCERT) cannot be read",
                "to a PEM file that the gateway may read",
            ),
            ("other/server.crt", "certificate verify failed", "check sslrootcert, the host name"),
        ):
            await place.insert()
            wrong = tls.dsn(f"sslmode=verify-full&sslrootcert={tmp_path / root}", database=database.name)
            place.wrong["source__dsn"] = wrong
            found = await place.ends()
            assert said in found and hint in found, found
            place.wrong.clear()
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
        "TLS", "is not trusted", "set kafka.ssl_ca_file to the certificate authority", {"ssl_ca_file": None}
    ),
    "own certificate": Listener(
        "MUTUAL",
        "requires a client certificate",
        "set kafka.ssl_cert_file and kafka.ssl_key_file",
        {"ssl_cert_file": None, "ssl_key_file": None, "ssl_key_password": None},
    ),
    "login": Listener(
        "LOGIN",
        "requires SASL (",
        "set kafka.security_protocol = SASL_PLAINTEXT, kafka.sasl_username and kafka.sasl_password",
        {"security_protocol": "PLAINTEXT", "sasl_username": None, "sasl_password": None},
    ),
    "mechanism": Listener(
        "LOGIN",
        "does not support kafka.sasl_mechanism = SCRAM-SHA-256",
        "it supports PLAIN, SCRAM-SHA-512",
        {"sasl_mechanism": "SCRAM-SHA-256"},
    ),
    "another service": Listener(
        "PLAINTEXT",
        "answers, but not with Kafka's protocol",
        "check that the port is Kafka's",
        {"bootstrap_servers": "PostgreSQL"},
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
        for setting, value in listener.wrong.items():
            place.gateway.settings.pop(f"kafka__{setting}", None)
            if value is not None:
                place.set(**{f"kafka__{setting}": value.replace("PostgreSQL", f"{HOST}:{database.server.port}")})
        said = await checked(place.gateway, 78)
        assert listener.said in said and listener.hint in said, said
        place.gateway.settings = fitting
        await checked(place.gateway, 0)
        await place.streams()
        await place.stop()


_NAMES = {
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
