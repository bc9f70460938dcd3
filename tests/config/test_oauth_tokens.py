"""Bearer tokens: of a provider, of a file, of the signer of Amazon MSK."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import ValidationError

from gateway.config.kafka import KafkaSettings
from gateway.config.msk_iam import MskTokens
from gateway.config.oauth_tokens import Tokens, TokenSettings
from gateway.errors import Retry, RetrySlowly
from tests.support.oidc import CLIENT, SECRET, Provider, oidc_provider
from tests.support.tls import certificate


@pytest.fixture
def provider() -> Iterator[Provider]:
    with oidc_provider() as made:
        yield made


def settings(provider: Provider, **more: Any) -> TokenSettings:
    values = {"oauth_token_url": provider.token_url, "oauth_client_id": CLIENT, "oauth_client_secret": SECRET}
    return TokenSettings.model_validate(values | more)


async def test_a_token_is_kept_for_most_of_its_life_and_asked_for_once_at_a_time(provider: Provider) -> None:
    tokens = Tokens(settings(provider), "kafka", None)
    found = await asyncio.gather(*(tokens.token() for _ in range(5)))
    assert len(set(found)) == 1 and provider.given_count == 1
    tokens.forget()
    await tokens.token()
    assert provider.given_count == 2
    provider.life_s = 1
    tokens.forget()
    await tokens.token()
    await asyncio.sleep(0.85)
    await tokens.token()
    assert provider.given_count == 4


async def test_what_gives_no_token_is_named_without_a_secret(provider: Provider, tmp_path: Path) -> None:
    with pytest.raises(RetrySlowly, match="401 invalid_client") as raised:
        await Tokens(settings(provider, oauth_client_secret="geheim"), "registry", None).token()
    assert "registry.oauth_client_id" in raised.value.hint and "geheim" not in str(raised.value)
    with pytest.raises(RetrySlowly, match="404"):
        await Tokens(settings(provider, oauth_token_url=f"{provider.url}/nothing"), "kafka", None).token()
    with pytest.raises(Retry, match="does not answer"):
        await Tokens(settings(provider, oauth_token_url="http://127.0.0.1:1/token"), "kafka", None).token()
    (tmp_path / "empty").write_text("\n")
    for file, said in ((tmp_path / "missing", "No such file"), (tmp_path / "empty", "contains no token")):
        with pytest.raises(RetrySlowly, match=said):
            await Tokens(TokenSettings(token_file=file), "kafka", None).token()


async def test_the_certificate_of_a_provider_is_verified_however_its_scheme_is_written(tmp_path: Path) -> None:
    certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with oidc_provider(tls) as provider:
        for address in (provider.token_url, provider.token_url.replace("https", "HTTPS")):
            found = settings(provider, oauth_token_url=address)
            with pytest.raises(Retry, match="CERTIFICATE_VERIFY_FAILED"):
                await Tokens(found, "kafka", None).token()
            assert await Tokens(found, "kafka", tmp_path / "server.crt").token()
        assert provider.given_count == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sasl_mechanism": "OAUTHBEARER"}, "needs oauth_token_url or token_file"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "token_file": "/t", "sasl_username": "u"},
            "sasl_username would have no effect",
        ),
        ({"sasl_mechanism": "OAUTHBEARER", "oauth_token_url": "https://x/t"}, "needs oauth_client_id"),
        ({"sasl_mechanism": "OAUTHBEARER", "oauth_token_url": "x/t"}, "expected an http"),
        ({"sasl_username": "u", "sasl_password": "p", "token_file": "/t"}, "token_file would have no effect"),
        ({"security_protocol": "PLAINTEXT", "token_file": "/t"}, "token_file would have no effect"),
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "needs aws_region"),
    ],
)
def test_settings_of_logins_that_do_not_go_together_are_refused(values: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KafkaSettings.model_validate({"security_protocol": "SASL_SSL", **values})


async def test_the_signer_of_amazon_msk_gives_a_signed_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MSK itself was never asked: nobody here has one."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "geheim"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONFIG_FILE", str(tmp_path / "none")),
        ("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none")),
    ):
        monkeypatch.setenv(name, value)
    tokens = MskTokens("eu-west-1")
    token = await tokens.token()
    signed = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert signed.hostname == "kafka.eu-west-1.amazonaws.com"
    assert parse_qs(signed.query)["Action"] == ["kafka-cluster:Connect"]
    assert await tokens.token() == token
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    tokens.forget()
    with pytest.raises(RetrySlowly, match="a token for Amazon MSK"):
        await tokens.token()
