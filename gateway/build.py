"""Find out whether the hot modules run compiled by mypyc (tools/compile_hot.py) or as plain Python.
Both builds behave in the same way."""

from __future__ import annotations

from importlib.util import find_spec


def is_compiled() -> bool:
    module = find_spec("gateway.events.row_encoder")
    return module is None or not (module.origin or "").endswith(".py")


def build_name() -> str:
    """Return "compiled" or "plain Python"."""
    return "compiled" if is_compiled() else "plain Python"
