"""Listeners of every kind: what fits them gets in, what does not is named and tried slowly; rights
that are missing are named."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from gateway.config.kafka import KafkaSettings
from gateway.errors import Retry, RetrySlowly, StopForOperator
from gateway.kafka.aiokafka_internals.connection import CONNECT_TIMEOUT_S
from gateway.kafka.position_topic import read_positions
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Topics
from gateway.local import Kafka
from gateway.local.kafka import QUICK_START
from gateway.local.ports import HOST, free_port
from schemas.topic_names import POSITION_TOPIC, transaction_topic
from tests.support.oidc import AUDIENCE, CLIENT, SECRET, Provider, oidc_provider
from tests.support.tls import certificate, client_certificate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

USER, PASSWORD, KEY_PASSWORD = "gateway", "user-secret", "key-secret"
SESSION_MS = 6000
"""Of a login at the listener that asks for tokens."""
PROTOCOLS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "TOKEN": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
    "MSK": "SASL_SSL",
}


class Listeners(Kafka):
    """A broker with one listener of each kind; the first, without login, may do everything."""

    def __init__(self, provider: Provider, pem: Path) -> None:
        self.ports = {name: free_port() for name in PROTOCOLS}
        jaas = "org.apache.kafka.common.security"
        plain = f'{jaas}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        settings: dict[str, str | int] = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pem / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(pem / "server.crt"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.token.oauthbearer.connections.max.reauth.ms": SESSION_MS,
        }
        for listener in ("listener.name.token", "listener.name.msk"):
            settings |= {
                f"{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{listener}.oauthbearer.sasl.jaas.config": f"{jaas}.oauthbearer.OAuthBearerLoginModule required;",
                f"{listener}.oauthbearer.sasl.server.callback.handler.class": (
                    f"{jaas}.oauthbearer.OAuthBearerValidatorCallbackHandler"
                ),
                f"{listener}.sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
                f"{listener}.sasl.oauthbearer.expected.audience": AUDIENCE,
                f"{listener}.sasl.oauthbearer.expected.issuer": provider.url,
            }
        for name in ("login", "both"):
            settings |= {
                f"listener.name.{name}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                f"listener.name.{name}.plain.sasl.jaas.config": plain,
                f"listener.name.{name}.scram-sha-512.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
            }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.keys_url}"
        super().__init__(settings=settings, jvm_options=[QUICK_START, allowed])

    def _lay_out(self, folder: Path) -> None:
        super()._lay_out(folder)
        path = folder / "server.properties"
        addresses = "".join(f",{name}://{HOST}:{port}" for name, port in self.ports.items())
        extra = {
            "listeners": addresses,
            "advertised.listeners": addresses,
            "listener.security.protocol.map": "".join(f",{name}:{what}" for name, what in PROTOCOLS.items()),
        }
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line + extra.get(line.partition("=")[0], "") for line in lines) + "\n")


class Place:
    def __init__(self, broker: Listeners, provider: Provider, pem: Path) -> None:
        self.broker, self.provider, self.pem = broker, provider, pem
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})

    def settings(self, listener: str, **more: Any) -> KafkaSettings:
        """As they fit the listener, but for `more`; None takes one away."""
        port = self.broker.ports.get(listener, self.broker.port)
        password = {"sasl_username": USER, "sasl_password": PASSWORD}
        client = {
            "oauth_token_url": self.provider.token_url,
            "oauth_client_id": CLIENT,
            "oauth_client_secret": SECRET,
        }
        tls = {"ssl_ca_file": self.pem / "server.crt"}
        own = {
            "ssl_cert_file": self.pem / "server.crt",
            "ssl_key_file": self.pem / "encrypted.key",
            "ssl_key_password": KEY_PASSWORD,
        }
        fitting: dict[str, dict[str, Any]] = {
            "PLAINTEXT": {},
            "TLS": tls,
            "MUTUAL": tls | own,
            "LOGIN": password,
            "BOTH": tls | password,
            "TOKEN": client | {"sasl_mechanism": "OAUTHBEARER"},
            "MSK": tls | {"sasl_mechanism": "AWS_MSK_IAM", "aws_region": "eu-west-1"},
        }
        values = {
            "bootstrap_servers": f"{HOST}:{port}",
            "security_protocol": PROTOCOLS.get(listener, "PLAINTEXT"),
            "delivery_timeout_s": 30,
            **fitting[listener],
            **more,
        }
        return KafkaSettings.model_validate({name: value for name, value in values.items() if value is not None})

    def of_msk(
        self, monkeypatch: pytest.MonkeyPatch, life_s: float | None = None, audience: str = AUDIENCE
    ) -> KafkaSettings:
        """As for Amazon MSK. A stand-in for the vendor's signer gives tokens of our provider: a
        broker that verifies a signed request is nowhere but there."""

        def generate_auth_token(region: str) -> tuple[str, int]:
            assert region == "eu-west-1"
            self.provider.given_count += 1
            lives_s = self.provider.life_s if life_s is None else life_s
            return self.provider.token(lives_s, audience), round((time.time() + lives_s) * 1000)

        signer = types.ModuleType("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
        vars(signer)["generate_auth_token"] = generate_auth_token
        monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", types.ModuleType("aws_msk_iam_sasl_signer"))
        monkeypatch.setitem(sys.modules, signer.__name__, signer)
        nothing = dict.fromkeys(("oauth_token_url", "oauth_client_id", "oauth_client_secret"))
        of_msk = {"sasl_mechanism": "AWS_MSK_IAM", "aws_region": "eu-west-1", "security_protocol": "SASL_SSL"}
        return self.settings("TOKEN", **of_msk, **nothing).model_copy(update={"security_protocol": PROTOCOLS["TOKEN"]})

    @contextmanager
    def denied(self, topic: str, operation: AclOperation) -> Iterator[None]:
        """To our user, who may do everything else; the authorizer hears of it a little later."""
        binding = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*")
        rules = [
            AclBinding(*binding, AclOperation.ALL, AclPermissionType.ALLOW),
            AclBinding(*binding, operation, AclPermissionType.DENY),
        ]
        for future in self.admin.create_acls(rules).values():
            future.result(30)
        try:
            yield
        finally:
            every = AclBindingFilter(*binding, AclOperation.ANY, AclPermissionType.ANY)
            for future in self.admin.delete_acls([every]).values():
                future.result(30)


def encrypt_key(pem: Path) -> None:
    command = f"openssl pkcs8 -topk8 -in server.key -out encrypted.key -passout pass:{KEY_PASSWORD}"
    subprocess.run(command.split(), cwd=pem, check=True, capture_output=True)


@pytest_asyncio.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    pem = tmp_path_factory.mktemp("pem")
    pem.chmod(0o755)
    found = certificate(pem)
    (pem / "broker.pem").write_bytes(found["server.key"] + found["server.crt"])
    (pem / "broker.pem").chmod(0o644)
    encrypt_key(pem)
    with oidc_provider() as provider:
        async with Listeners(provider, pem) as broker:
            made = Place(broker, provider, pem)
            scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
            upsert = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
            for future in made.admin.alter_user_scram_credentials([upsert]).values():
                future.result(30)
            yield made


async def get_in(settings: KafkaSettings, prefix: str) -> None:
    """Make a topic, as the gateway does first of all."""
    topics = Topics(settings, transaction_topic(prefix), set(), print)
    try:
        await topics.start()
        await topics.ensure([f"{prefix}.t"])
    finally:
        await topics.close()


@pytest.mark.parametrize(
    ("listener", "more"),
    [
        ("TLS", {}),
        ("MUTUAL", {}),
        ("LOGIN", {"sasl_mechanism": "PLAIN"}),
        ("LOGIN", {"sasl_mechanism": "SCRAM-SHA-512"}),
        ("BOTH", {"sasl_mechanism": "SCRAM-SHA-512"}),
        ("TOKEN", {}),
    ],
    ids=str,
)
async def test_what_fits_a_listener_gets_in(
    place: Place, topic_prefix: str, listener: str, more: dict[str, Any]
) -> None:
    await get_in(place.settings(listener, **more), topic_prefix)


@pytest.mark.parametrize(
    ("listener", "more", "said"),
    [
        ("TLS", {"security_protocol": "PLAINTEXT", "ssl_ca_file": None}, "this listener uses TLS"),
        ("PLAINTEXT", {"security_protocol": "SSL"}, "perhaps the listener does not use TLS"),
        ("TLS", {"ssl_ca_file": None}, "kafka.ssl_ca_file must contain"),
        (
            "MUTUAL",
            {"ssl_cert_file": None, "ssl_key_file": None, "ssl_key_password": None},
            "kafka.ssl_cert_file",
        ),
        (
            "LOGIN",
            {"security_protocol": "PLAINTEXT", "sasl_username": None, "sasl_password": None},
            "may require SASL",
        ),
        (
            "PLAINTEXT",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_username": USER, "sasl_password": PASSWORD},
            "does not use SASL",
        ),
        ("LOGIN", {"sasl_mechanism": "PLAIN", "sasl_password": "wrong"}, "check kafka.sasl_username and its password"),
        (
            "LOGIN",
            {"sasl_mechanism": "SCRAM-SHA-512", "sasl_password": "wrong"},
            "check kafka.sasl_username and its password",
        ),
        ("LOGIN", {"sasl_mechanism": "SCRAM-SHA-256"}, "kafka.sasl_mechanism"),
        ("TOKEN", {"oauth_client_secret": "wrong"}, "kafka.oauth_client_id"),
    ],
    ids=str,
)
async def test_what_does_not_fit_a_listener_is_named_and_tried_slowly(
    place: Place, topic_prefix: str, listener: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(RetrySlowly, match=said) as raised:
        await get_in(place.settings(listener, **more), topic_prefix)
    for secret in (PASSWORD, SECRET, "wrong"):
        assert secret not in str(raised.value)


async def test_a_broker_that_is_away_is_no_wrong_setting(topic_prefix: str) -> None:
    with pytest.raises(Retry, match="the broker is running"):
        await get_in(KafkaSettings(bootstrap_servers=f"{HOST}:{free_port()},{HOST}:{free_port()}"), topic_prefix)


async def test_a_wrong_passphrase_of_the_key_names_the_setting(place: Place) -> None:
    with pytest.raises(StopForOperator, match="kafka.ssl_key_password"):
        place.settings("MUTUAL", ssl_key_password="wrong").client_options()


async def test_a_token_from_a_file_is_read_at_each_login(place: Place, topic_prefix: str, tmp_path: Path) -> None:
    """Expired, for somebody else, none, then right."""
    file = tmp_path / "token"
    nothing = dict.fromkeys(("oauth_token_url", "oauth_client_id", "oauth_client_secret"))
    settings = place.settings("TOKEN", token_file=file, **nothing)
    with pytest.raises(RetrySlowly, match="kafka.token_file"):
        await get_in(settings, topic_prefix)
    for token in (place.provider.token(life_s=-60), place.provider.token(audience="others")):
        file.write_text(token)
        with pytest.raises(RetrySlowly, match="rejects the token") as raised:
            await get_in(settings, topic_prefix)
        assert token not in str(raised.value)
    file.write_text(place.provider.token())
    await get_in(settings, topic_prefix)


async def test_the_login_of_msk_is_refused_and_taken_like_any_token(
    place: Place, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right, expired, for somebody else."""
    await get_in(place.of_msk(monkeypatch), topic_prefix)
    for wrong in ({"life_s": -60.0}, {"audience": "others"}):
        with pytest.raises(RetrySlowly, match="rejects the token"):
            await get_in(place.of_msk(monkeypatch, **wrong), topic_prefix)


async def test_a_certificate_that_has_expired_is_named_and_its_successor_is_taken(
    place: Place, topic_prefix: str
) -> None:
    own = {
        "ssl_cert_file": place.pem / "client.crt",
        "ssl_key_file": place.pem / "client.key",
        "ssl_key_password": None,
    }
    settings = place.settings("MUTUAL", **own)
    client_certificate(place.pem, days=-1)
    with pytest.raises(RetrySlowly, match="kafka.ssl_cert_file"):
        await get_in(settings, topic_prefix)
    client_certificate(place.pem, days=1)
    await get_in(settings, topic_prefix)


async def test_a_provider_that_is_away_is_waited_for(place: Place, topic_prefix: str) -> None:
    place.provider.is_away = True
    try:
        with pytest.raises(Retry, match="503"):
            await get_in(place.settings("TOKEN"), topic_prefix)
    finally:
        place.provider.is_away = False


async def test_a_provider_that_is_silent_is_named_and_not_the_broker(
    place: Place, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.config.oauth_tokens.TIMEOUT_S", CONNECT_TIMEOUT_S + 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = place.settings("TOKEN", oauth_token_url=f"http://127.0.0.1:{silent.getsockname()[1]}/token")
        with pytest.raises(Retry, match="oauth_token_url .* does not answer"):
            await get_in(settings, topic_prefix)


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "AWS_MSK_IAM"])
async def test_tokens_and_sessions_that_end_are_renewed_without_a_gap(
    place: Place, topic_prefix: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka transactions go on over three sessions; the broker would close a connection that logs
    in once."""
    place.provider.life_s, before = 7, place.provider.given_count
    settings = place.settings("TOKEN")
    if mechanism == "AWS_MSK_IAM":
        settings = place.of_msk(monkeypatch)
    topic = f"{topic_prefix}.t"
    await get_in(place.settings("PLAINTEXT"), topic_prefix)
    producer = Producer(settings, topic_prefix)
    try:
        await producer.start()
        begun, count = time.monotonic(), 0
        while time.monotonic() - begun < 2.2 * SESSION_MS / 1000:
            await producer.begin([(topic, 0)])
            await producer.commit()
            count += 1
            await asyncio.sleep(0.05)
        assert place.provider.given_count - before >= 3
        print(f"{count} transactions, {place.provider.given_count - before} tokens")
    finally:
        await producer.abandon()
        place.provider.life_s = 300


async def test_rights_that_are_missing_are_named(place: Place, topic_prefix: str) -> None:
    markers = transaction_topic(topic_prefix)
    free = place.settings("PLAINTEXT", prefix=topic_prefix)
    topics = Topics(free, markers, set(), print)
    await topics.start()
    await topics.ensure([POSITION_TOPIC, markers])
    await topics.close()
    settings = place.settings("LOGIN", sasl_mechanism="PLAIN", prefix=topic_prefix, delivery_timeout_s=10)

    async def refused(what: Any) -> str:
        """The authorizer hears of a rule a little later."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await what()
                except RetrySlowly as error:
                    return str(error)
                await asyncio.sleep(0.1)

    async def write(settings: KafkaSettings = settings) -> None:
        producer = Producer(settings, topic_prefix)
        try:
            await producer.start()
            await producer.begin([(POSITION_TOPIC, 0)])
            await producer.commit()
        finally:
            await producer.abandon()

    await write(free)  # so that there is something to read
    with place.denied(POSITION_TOPIC, AclOperation.WRITE):
        said = await refused(write)
        assert f"grant Write and Describe on topic {POSITION_TOPIC}" in said and "InvalidTxnState" not in said
    with place.denied(POSITION_TOPIC, AclOperation.READ):
        said = await refused(lambda: read_positions(settings, markers, 20))
        assert f"grant Read and Describe on topic {POSITION_TOPIC}" in said


async def test_a_replication_factor_above_the_brokers_is_named_and_may_pass(place: Place, topic_prefix: str) -> None:
    with pytest.raises(RetrySlowly, match="set kafka.replication_factor to at most the number of brokers"):
        await get_in(place.settings("PLAINTEXT", replication_factor=3), topic_prefix)
