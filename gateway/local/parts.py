"""PostgreSQL, Kafka and the registry as one: they are downloaded, started and closed together."""

from __future__ import annotations

import asyncio
from typing import Self

from gateway.local.artifacts import fetched
from gateway.local.kafka import Kafka
from gateway.local.postgres import Postgres
from gateway.local.registry import Registry


class LocalParts:
    """Three running parts: `async with LocalParts() as parts:`. Each may be stopped and started
    alone."""

    def __init__(
        self, *, postgres: Postgres | None = None, kafka: Kafka | None = None, registry: Registry | None = None
    ) -> None:
        self.postgres = postgres or Postgres()
        self.kafka = kafka or Kafka()
        self.registry = registry or Registry()

    async def start(self) -> None:
        """Start all parts. Raises the first failure, after all parts have been closed."""
        await fetched("kafka", "registry")
        try:
            async with asyncio.TaskGroup() as group:
                for part in (self.postgres, self.kafka, self.registry):
                    group.create_task(part.start())
        except BaseExceptionGroup as failures:
            await self.close()
            raise failures.exceptions[0] from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop all parts and remove their data."""
        await asyncio.gather(self.postgres.close(), self.kafka.close(), self.registry.close())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
