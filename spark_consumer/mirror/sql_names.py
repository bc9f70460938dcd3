"""Names and texts in Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Escape a text for use between single quotes in SQL."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
