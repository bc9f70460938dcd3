"""What a gateway has left in Kafka and the registry."""

from __future__ import annotations

from gateway.operate.errors import StopForOperator
from gateway.operate.kafka_settings import KafkaSettings
from gateway.transactions.position import Position, decode_position, position_schema_id
from schemas.debezium import TRANSACTION_VALUE
from schemas.names import transaction_topic, value_subject
from schemas.registry import RegistryClient


async def stored_position(key: bytes, value: bytes, registry: RegistryClient) -> Position:
    """Of a record of the position topic, by the schema that it was written with. Raises SchemaError and StopForOperator."""
    return decode_position(key, value, await registry.schema(position_schema_id(key, value)))


async def refuse_other_dialect(registry: RegistryClient, kafka: KafkaSettings) -> None:
    """No consumer could read records of both dialects in one topic. Raises StopForOperator and SchemaError."""
    found = await registry.latest(value_subject(transaction_topic(kafka.prefix)))
    if found is None:
        return
    written = "debezium" if found.get("name") == TRANSACTION_VALUE["name"] else "walgate"
    if written != kafka.dialect:
        raise StopForOperator(
            f"the records in the topics of kafka.prefix = {kafka.prefix} were written with kafka.dialect = {written}, but "
            f"kafka.dialect is {kafka.dialect}",
            hint=f"set kafka.dialect = {written}, or another kafka.prefix with another slot",
        )
