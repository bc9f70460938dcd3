"""The registry answers by the Confluent API and keeps its schemas through a restart."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient, Schema

from gateway.local import Registry
from tests.support import stock_registry

pytestmark = pytest.mark.integration


async def test_a_schema_outlives_stop_and_kill() -> None:
    async with Registry() as registry:
        async with AsyncSchemaRegistryClient(stock_registry.settings(registry.url)) as client:
            schema_id = await client.register_schema("kept-value", Schema('"string"', "AVRO"))
        await registry.stop()
        assert registry.pid is None
        await registry.start()
        await registry.kill()
        await registry.start()
        async with AsyncSchemaRegistryClient(stock_registry.settings(registry.url)) as client:
            assert (await client.get_schema(schema_id)).schema_str == '"string"'
