"""Positions that gateways have stored in Kafka, and the schemas that prove which registry and
dialect they were written with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from importlib.metadata import version as package_version

import structlog

from gateway.config.kafka import KafkaSettings
from gateway.config.settings import Settings
from gateway.errors import StopForOperator
from gateway.kafka.position_topic import read_positions
from gateway.schema_errors import classified_schema_errors, open_registry
from gateway.startup.facts import Facts
from gateway.transactions.position import Position, decode_position, not_a_position_hint, position_schema_id
from gateway.transactions.transaction import Quarantined
from schemas.errors import RegistryRefused, SchemaError
from schemas.records import POSITION
from schemas.registry_client import RegistryClient
from schemas.topic_names import (
    DEBEZIUM_TRANSACTION_RECORD,
    POSITION_TOPIC,
    topic_of_subject,
    transaction_topic,
    value_subject,
)

log = structlog.get_logger()


def fresh_position(settings: Settings, facts: Facts) -> Position:
    """Return the position of a slot that was never read."""
    return Position(
        system_identifier=facts.server.system_identifier,
        timeline=facts.server.timeline,
        database=facts.server.database,
        slot=settings.source.slot,
        prefix=settings.kafka.prefix,
        publications=settings.source.publications,
        version=package_version("walgate"),
    )


async def stored_position(key: bytes, value: bytes, registry: RegistryClient) -> Position:
    """Return the position in a record of the position topic, decoded with the schema that it was
    written with. Raises SchemaError and StopForOperator."""
    return decode_position(key, value, await registry.schema(position_schema_id(key, value)))


async def own_position(key: bytes, value: bytes, registry: RegistryClient) -> Position:
    """Return the position of this slot. Raises StopForOperator if this registry does not know its
    schema, and SchemaError."""
    schema_id = position_schema_id(key, value)
    try:
        schema = await registry.schema(schema_id)
        found: object = schema.get("name")
    except RegistryRefused as error:
        if error.hint:  # credentials
            raise
        schema, found = {}, error.message
    if found != POSITION["name"]:
        raise StopForOperator(
            f"a record of {POSITION_TOPIC} was not written with a schema of this registry: schema {schema_id}: {found}",
            hint="registry.url may point to a different registry than before, or the registry was emptied. "
            "Consumers look up schemas by the IDs in the records: set the previous URL again, or restore the registry. "
            f"If this is the right registry and it was not emptied, {not_a_position_hint(key)}",
        )
    return decode_position(key, value, schema)


async def decode_positions(
    values: Mapping[bytes, bytes], fresh: Position, registry: RegistryClient
) -> dict[bytes, Position]:
    """Return the newest positions by key, without positions of other slots that cannot be read:
    their gateways may use another registry.

    Raises WalgateError if the position of the slot of `fresh` cannot be read.
    """
    positions: dict[bytes, Position] = {}
    for key, value in values.items():
        if fresh.is_of_slot(key):
            with classified_schema_errors():
                positions[key] = await own_position(key, value, registry)
            continue
        try:
            positions[key] = await stored_position(key, value, registry)
        except (SchemaError, StopForOperator) as error:
            log.info("unreadable_position", key=key.decode("utf-8", "replace"), reason=error.message)
    return positions


async def refuse_lost_schemas(
    positions: Iterable[Position],
    prefix: str,
    registry: RegistryClient,
    missing: Callable[[Iterable[str]], Awaitable[Collection[str]]],
) -> None:
    """Note the newest schemas with which gateways have written to topics of the prefix that still
    exist. `missing` returns those of its topics that do not. Raises StopForOperator if the registry
    no longer has these schemas: it would give their ids to other ones."""
    newest = {each.newest_schema for each in positions if each.prefix == prefix and each.newest_schema is not None}
    topic_of = {used: topic_of_subject(used.subject) for used in newest}
    deleted = await missing(topic for topic in topic_of.values() if topic.startswith(f"{prefix}."))
    with classified_schema_errors():
        for used, topic in topic_of.items():
            if topic not in deleted:
                registry.used.add(used)
        await registry.check_used()


async def quarantined_tables(settings: Settings, position_key: bytes) -> tuple[Quarantined, ...]:
    """Return the tables of a slot that are in quarantine, which its snapshots do not read. Raises
    WalgateError."""
    values, _ = await read_positions(settings.kafka, POSITION_TOPIC, settings.kafka.delivery_timeout_s)
    if position_key not in values:
        return ()
    async with open_registry(settings.registry, settings.registry.timeout_s) as client:
        return (await stored_position(position_key, values[position_key], client)).quarantined


async def refuse_other_dialect(registry: RegistryClient, kafka: KafkaSettings) -> None:
    """Raise StopForOperator if the topics were written in another dialect: no consumer could read
    both in one topic. Raises SchemaError."""
    found = await registry.latest(value_subject(transaction_topic(kafka.prefix)))
    if found is None:
        return
    written = "debezium" if found.get("name") == DEBEZIUM_TRANSACTION_RECORD else "walgate"
    if written != kafka.dialect:
        raise StopForOperator(
            f"the records in the topics of kafka.prefix = {kafka.prefix} were written with kafka.dialect = {written}, but "
            f"kafka.dialect is {kafka.dialect}",
            hint=f"set kafka.dialect = {written}, or another kafka.prefix with another slot",
        )
