"""Log-in to Amazon MSK as the AWS identity of this process, by the vendor's signer library (the
extra `msk`)."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import Any

from gateway.config.oauth_tokens import TIMEOUT_S
from gateway.errors import RetrySlowly, StopForOperator


class MskTokens:
    """A token is a signed request, made on this computer; it lives for 15 minutes."""

    def __init__(self, region: str) -> None:
        """Raises StopForOperator: the library is not installed."""
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
        """One that is good for minutes yet. Raises RetrySlowly: no AWS credentials are found, or
        they cannot be had now."""
        if time.time() >= self._good_until_s:
            asking = self._asking  # one thread, however many wait for it; one that was slow is of use to who comes next
            if asking is None:
                asking = asyncio.create_task(asyncio.to_thread(self._signer.generate_auth_token, self._region))
                asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
                self._asking = asking
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    self._token, expires_ms = await asyncio.shield(asking)
            except Exception as error:  # botocore's and the signer's own have no parent in common
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
        """It was refused."""
        self._good_until_s = 0.0
