"""Confluent's client of a schema registry, as subscribers have it."""

from __future__ import annotations


def settings(url: str) -> dict[str, str | int]:
    """With a limit, after which it asks again: it has none by itself, and a registry left a request
    without an answer before."""
    return {"url": url, "timeout": 10}
