"""A probe of whether Kafka answers. It uses a connection of its own, because the producer may wait
for a minute before it gives up."""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka.errors import KafkaError, LeaderNotAvailableError, for_code

from gateway.config.kafka import KafkaSettings
from gateway.kafka.aiokafka_internals.admin import Admin
from gateway.kafka.classify_errors import classify
from gateway.kafka.shutdown import close_with_timeout
from schemas.topic_names import POSITION_TOPIC

_CLOSE_S: Final = 1.0
_MISSING: Final = 3
"""UNKNOWN_TOPIC_OR_PARTITION: the first start has not created the topic yet."""


class KafkaProbe:
    def __init__(self, settings: KafkaSettings, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._admin: Admin | None = None

    async def ask(self) -> None:
        """Check that a broker answers and that the position topic has a leader. Raises
        WalgateError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._ask()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            raise classify(error, "asking Kafka") from error
        except BaseException:
            await self.close()
            raise

    async def _ask(self) -> None:
        if self._admin is None:
            timeout_ms = int(self._timeout_s * 1000)
            self._admin = Admin(**self._settings.client_options(), request_timeout_ms=timeout_ms)
            await self._admin.start()
        for facts in await self._admin.metadata([POSITION_TOPIC]):
            if facts["error_code"] not in (0, _MISSING):
                raise for_code(facts["error_code"])(facts["topic"])
            for partition in facts["partitions"]:
                if partition["leader"] < 0:
                    raise LeaderNotAvailableError(f"{POSITION_TOPIC} has no leader")

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await close_with_timeout(admin.close(), _CLOSE_S)
