"""Which schemas a client of the registry has used, by id. A registry that has lost schemas, such as
one restored from an old backup, gives their ids to new ones: consumers would then decode records
with the schema of another table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.errors import RegistryLostSchemas


@dataclass(frozen=True, slots=True)
class UsedSchema:
    """A schema that records may name. `name` is its full name in Avro, which tells the relation."""

    id: int
    subject: str
    name: str


class UsedSchemas:
    """The schemas that a client has used. `newest` is the one with the highest id."""

    def __init__(self) -> None:
        self.newest: UsedSchema | None = None
        self._names: dict[int, str] = {}

    def add(self, used: UsedSchema) -> None:
        """Add a schema. Raises RegistryLostSchemas if its id is that of a schema with another
        name."""
        known = self._names.setdefault(used.id, used.name)
        if known != used.name:
            raise lost_schema(used.id, known, f"that id now has {used.name}")
        if self.newest is None or used.id > self.newest.id:
            self.newest = used


def full_name(schema: object) -> str:
    """Return the full name of an Avro record, or "" for any other schema."""
    if not isinstance(schema, dict):
        return ""
    found: dict[str, Any] = schema
    name, namespace = str(found.get("name", "")), found.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def lost_schema(schema_id: int, name: str, found: str) -> RegistryLostSchemas:
    """Return the error for a schema that the registry no longer has under its id. `found` says what
    the registry has instead."""
    return RegistryLostSchemas(
        f"the schema registry has lost schemas: records were written with schema {schema_id}, {name}, but {found}",
        hint="registry.url may point to a different registry than before, or the registry was emptied or restored from a backup "
        "that is too old. With new schemas, it would give IDs again, and consumers would take records of one table for those of "
        "another. Set the previous URL again, or restore the registry from a newer backup, then restart the gateway. If this "
        "schema was deleted deliberately, delete its topic, too. If nothing can be restored, use a new source.slot and a new "
        "kafka.prefix, and take a new snapshot of the tables",
    )
