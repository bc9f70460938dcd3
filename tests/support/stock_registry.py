"""Confluent's client of a schema registry, as consumers use it."""

from __future__ import annotations


def settings(url: str) -> dict[str, str | int]:
    """Return settings with a time-out, after which the client repeats a request. By default it has
    none, and a registry has left a request unanswered."""
    return {"url": url, "timeout": 10}
