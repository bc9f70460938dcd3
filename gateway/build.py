"""Which build of the hot modules runs: compiled by mypyc (compile_hot.py), or plain Python, which does the same."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

COMPILED: Final = "compiled"


def build_name() -> str:
    """COMPILED or `plain Python`."""
    module = find_spec("gateway.events.row_encoder")
    is_source = module is not None and (module.origin or "").endswith(".py")
    return "plain Python" if is_source else COMPILED
