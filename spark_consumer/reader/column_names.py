"""PostgreSQL's column names, where they differ from the names of Avro fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.change_schema import BEFORE_PREFIX


def true_names(change: Mapping[str, Any]) -> dict[str, str]:
    """Return Avro field -> PostgreSQL's name from a value schema, for the columns whose names
    differ."""
    names: dict[str, str] = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "pg.name" in node and "type" in node:
                names[node["name"]] = node["pg.name"]
            for item in node.values():
                walk(item)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(change.get("fields"))
    return names


def true_name(field: str, names: Mapping[str, str], old_mark: str = BEFORE_PREFIX) -> str:
    """Return PostgreSQL's name for an entry of `unchanged` or `special`. The prefix "before." marks
    a field of the old row, since no Avro field has a dot; `old_mark` takes its place in the
    result."""
    if field.startswith(BEFORE_PREFIX):
        own = field.removeprefix(BEFORE_PREFIX)
        return f"{old_mark}{names.get(own, own)}"
    return names.get(field, field)
