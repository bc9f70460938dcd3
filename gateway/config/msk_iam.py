"""Authentication to Amazon MSK as the AWS identity of this process, with the vendor's signer
library (the extra `msk`)."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import Any

from gateway.config.oauth_tokens import TIMEOUT_S
from gateway.errors import RetrySlowly, StopForOperator


class MskTokens:
    """A source of tokens. A token is a signed request, which is made locally and is valid for 15
    minutes."""

    def __init__(self, region: str) -> None:
        """Load the signer library. Raises StopForOperator if it is not installed."""
        self._region = region
        self._token = ""
        self._good_until_s = 0.0
        self._asking: asyncio.Task[tuple[str, int]] | None = None
        try:
            self._signer: Any = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
        except ImportError as error:
            raise StopForOperator(
                "kafka.sasl_mechanism = AWS_MSK_IAM needs a library that is not installed",
                hint="pip install 'walgate[msk]'",
            ) from error

    async def token(self) -> str:
        """Return a token that is valid for several more minutes. Raises RetrySlowly if no AWS
        credentials are found or can be fetched now."""
        if time.time() >= self._good_until_s:
            # One thread serves all callers; after a timeout, the next caller may use its result.
            asking = self._asking
            if asking is None:
                asking = asyncio.create_task(asyncio.to_thread(self._signer.generate_auth_token, self._region))
                asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
                self._asking = asking
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    self._token, expires_ms = await asyncio.shield(asking)
            except Exception as error:  # those of botocore and of the signer have no common base class
                raise RetrySlowly(
                    f"could not create a token for Amazon MSK: {type(error).__name__}",
                    hint="check that this process has AWS credentials (environment, profile, instance or pod role)",
                ) from error
            finally:
                if asking.done() and self._asking is asking:
                    self._asking = None
            self._good_until_s = expires_ms / 1000 - 300
        return self._token

    def forget(self) -> None:
        """Discard the token. Call this when the broker has refused it."""
        self._good_until_s = 0.0
