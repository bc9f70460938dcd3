"""Compare the keys that the gateway will write with those of the connector that it replaces.

A key contains the id of its schema. If the schema changes, equal keys get other bytes: their
records go to other partitions, and compaction keeps the last record of each form of the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import structlog

from gateway.debezium.registrar import DebeziumRelations
from gateway.errors import StopForOperator
from gateway.schema_errors import classified_schema_errors, topics_with_schema
from schemas.registry_client import RegistryClient
from schemas.relation import RelationDescription
from schemas.topic_names import key_subject

log = structlog.get_logger()

_NAMED: Final = 3
"""Topics that the error message names."""


async def check_keys(
    registry: RegistryClient,
    relations: DebeziumRelations,
    described: Mapping[str, RelationDescription],
    *,
    may_change: bool,
) -> None:
    """Raise StopForOperator if keys of the relations, which are given by topic, would get another
    schema than the newest that the registry has; with `may_change`, only log it. Topics without
    Avro records are not compared."""
    if not relations.registers_schemas:
        return
    changed = []
    for topic in await topics_with_schema(registry, list(described)):
        with classified_schema_errors():
            difference = await _changed(registry, relations, described[topic], topic)
        if difference is not None:
            changed.append(f"{topic} ({difference})")
            if may_change:
                log.warning("keys_change", topic=topic, difference=difference)
    if changed and not may_change:
        named = ", ".join(changed[:_NAMED])
        more = f" and {len(changed) - _NAMED} more topics" if len(changed) > _NAMED else ""
        raise StopForOperator(
            f"adopt: keys would get another schema, so that equal keys would have other bytes: {named}{more}",
            hint="set the options in [debezium] as the connector had them: those for types apply to keys, too. Other causes are "
            "in docs/debezium.md (Keys of a connector). If consumers need neither the order of changes of one key nor compaction "
            "across the change-over, set schemas.on_incompatible = register, and run the command again",
        )


async def _changed(
    registry: RegistryClient, relations: DebeziumRelations, description: RelationDescription, topic: str
) -> str | None:
    subject = key_subject(topic)
    _, ours = relations.schemas_of(await relations.relation(description, registry, topic), topic)
    newest = await registry.newest(subject)
    if newest is None:
        return None if ours is None else "the connector wrote no key in Avro"
    if ours is None:
        return "the gateway would write no key"
    newest_id, theirs = newest
    if theirs == ours or await registry.id_of(subject, ours) == newest_id:  # registries may normalize schemas
        return None
    left, right = _parts(theirs), _parts(ours)
    part = next((name for name in {**left, **right} if left.get(name) != right.get(name)), "schema")
    connector, gateway = (json.dumps(each.get(part)) for each in (left, right))
    return f"{part}: {connector} in the connector's schema, {gateway} in the gateway's"


def _parts(schema: Any) -> dict[str, Any]:
    """Return the parts of a schema by name: the names of its fields, each field, and the rest."""
    if not isinstance(schema, dict):
        return {"type": schema}
    fields = {field["name"]: field for field in schema.get("fields", ())}
    rest = {name: value for name, value in schema.items() if name != "fields"}
    return {"fields": list(fields), **{f"field {name}": field for name, field in fields.items()}, **rest}
