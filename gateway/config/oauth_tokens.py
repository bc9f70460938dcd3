"""Bearer tokens for Kafka and the registry: read from a file, or requested from an OpenID provider
with client credentials.

    token_file            read at each login; another program renews it (Kubernetes, a sidecar)
    oauth_token_url ...   RFC 6749, 4.4: POST grant_type=client_credentials; a token is kept for
                          most of its lifetime

Messages contain the address and the HTTP status, never a token or a secret.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx2
from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.section import PREFIX, File, Section, refuse_unused, unusable
from gateway.errors import Retry, RetrySlowly

TIMEOUT_S: Final = 10.0
_USED_FOR: Final = 0.8
"""The fraction of a token's lifetime after which a new token is requested."""
_LIFE_S: Final = 300.0
"""The lifetime in seconds if the provider's answer does not contain one."""


class TokenSettings(Section):
    """Settings of the source of tokens."""

    token_file: File = Field(
        default=None,
        description="File that contains a bearer token. It is read at each authentication, so the token can change.",
    )
    oauth_token_url: str | None = Field(
        default=None,
        description="Token endpoint of the OpenID provider. Tokens are requested with the client credentials grant.",
    )
    oauth_client_id: str | None = Field(default=None, description="Client ID at that provider.")
    oauth_client_secret: SecretStr | None = Field(
        default=None,
        description=f"Secret of that client. To read it from a file, "
        f"use the variable with `_FILE`, as in {PREFIX}KAFKA__SASL_PASSWORD_FILE.",
    )
    oauth_scope: str | None = Field(default=None, description="Scopes to request, separated by spaces.")

    @field_validator("oauth_token_url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None:
            found = urlsplit(value)
            if found.scheme not in ("http", "https") or not found.hostname or "@" in value:
                raise ValueError("expected an http or https address, without user and password")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        names = ("oauth_client_id", "oauth_client_secret", "oauth_scope")
        if self.oauth_token_url is None:
            refuse_unused(self, names, "oauth_token_url is not set")
        elif self.token_file is not None:
            raise ValueError("set token_file or oauth_token_url, not both")
        elif self.oauth_client_id is None or self.oauth_client_secret is None:
            raise ValueError("oauth_token_url needs oauth_client_id and oauth_client_secret")
        return self

    @property
    def has_token(self) -> bool:
        return self.token_file is not None or self.oauth_token_url is not None


class Tokens:
    """The source of tokens that `settings` name. `section` is for messages. `token` raises Retry if
    the provider does not answer, and RetrySlowly if it refuses or the file cannot be read."""

    def __init__(self, settings: TokenSettings, section: str, ca_file: Path | None) -> None:
        self._settings = settings
        self._section = section
        self._ca_file = ca_file
        self._token = ""
        self._good_until = 0.0
        self._asking = asyncio.Lock()

    async def token(self) -> str:
        """Return the token from the file, or one from the provider that is still valid for some
        time."""
        if self._settings.token_file is not None:
            return await asyncio.to_thread(self._read, self._settings.token_file)
        async with self._asking:
            if time.monotonic() >= self._good_until:
                await self._renew()
            return self._token

    def forget(self) -> None:
        """Discard the token. Call this when a server has refused it."""
        self._good_until = 0.0

    def _read(self, path: Path) -> str:
        try:
            token = path.read_text("utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise RetrySlowly(f"{self._section}.token_file {path}: {reason}") from error
        if not token or any(character.isspace() for character in token):
            raise RetrySlowly(f"{self._section}.token_file {path} contains no token: expected one line")
        return token

    async def _renew(self) -> None:
        settings, asked = self._settings, time.monotonic()
        assert settings.oauth_token_url is not None and settings.oauth_client_secret is not None
        form = {"grant_type": "client_credentials"} | ({"scope": settings.oauth_scope} if settings.oauth_scope else {})
        credentials = settings.oauth_client_id or "", settings.oauth_client_secret.get_secret_value()
        where = f"{self._section}.oauth_token_url {settings.oauth_token_url}"
        try:
            async with asyncio.timeout(TIMEOUT_S), httpx2.AsyncClient(verify=self._tls(), timeout=None) as http:
                answer = await http.post(settings.oauth_token_url, data=form, auth=credentials)
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise Retry(
                f"{where} does not answer: {reason}",
                hint=f"check that {self._section}.oauth_token_url is correct and the OpenID provider is running",
            ) from error
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise Retry(f"{where} returned HTTP status {answer.status_code}")
        found = _object(answer)
        token = found.get("access_token")
        if answer.status_code != 200 or not isinstance(token, str) or not token:
            said = found.get("error")
            raise RetrySlowly(
                f"{where} issued no token: {answer.status_code}" + (f" {said}" if isinstance(said, str) else ""),
                hint=f"check {self._section}.oauth_client_id, its secret and oauth_scope",
            )
        life = found.get("expires_in")
        life_s = float(life) if isinstance(life, (int, float)) and life > 0 else _LIFE_S
        self._token, self._good_until = token, asked + life_s * _USED_FOR

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context()  # system CAs too: provider and servers seldom share a CA
            if self._ca_file is not None:
                context.load_verify_locations(self._ca_file)
            return context
        except OSError as error:
            raise unusable(error, f"{self._section}.ca_file", self._ca_file) from error


def _object(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
