"""Columns by PostgreSQL's names, where Avro could not take them as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.change_schema import BEFORE_PREFIX


def true_names(change: Mapping[str, Any]) -> dict[str, str]:
    """Avro field -> PostgreSQL's name, of a value schema, for the columns whose names differ."""
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


def true_name(field: str, names: Mapping[str, str]) -> str:
    """Of an entry of `unchanged` or `special`, where "before." marks a field of the old row."""
    if field.startswith(BEFORE_PREFIX):
        own = field.removeprefix(BEFORE_PREFIX)
        return f"{BEFORE_PREFIX}{names.get(own, own)}"
    return names.get(field, field)
