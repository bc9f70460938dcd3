"""A message as one line of JSON or of text. Control characters of values are escaped, so that none
reaches the terminal."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from gateway.cli.tail.message_json import Shown

_PLAIN: Final = re.compile(r"[\w./:+-]+", re.ASCII)
_CONTROL: Final = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
LONGEST_VALUE: Final = 200
"""The number of characters of a value that a line of text has at most; JSON has all."""
_WORDS: Final = frozenset({"null", "true", "false"})


def as_json(shown: Any) -> str:
    return _CONTROL.sub(_escape, json.dumps(shown, ensure_ascii=False))


def as_line(shown: Shown) -> str:
    """Return a line such as `0/1A2B3C8  Insert  public.orders  new: id=1 note="two words"`."""
    parts = [str(shown["lsn"])] if "lsn" in shown else []
    parts.append(str(shown["message"]))
    if "relation" in shown:
        parts.append(_CONTROL.sub(_escape, shown["relation"]))
    rest = {name: value for name, value in shown.items() if name not in ("lsn", "message", "relation", "relations")}
    plain = [f"{name}={_value(value)}" for name, value in rest.items() if not isinstance(value, (dict, list))]
    parts += [" ".join(plain)] if plain else []
    parts += [f"{name}: {_inside(value)}" for name, value in rest.items() if isinstance(value, (dict, list))]
    return "  ".join(parts)


def _inside(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{_value(name)}={_value(inner)}" for name, inner in value.items())
    return ", ".join(_inside(inner) if isinstance(inner, dict) else _value(inner) for inner in value)


def _value(value: Any) -> str:
    if not isinstance(value, str):
        return as_json(value)
    if len(value) > LONGEST_VALUE:
        return f"{as_json(value[:LONGEST_VALUE])}... ({len(value)} characters)"
    return value if _PLAIN.fullmatch(value) and value not in _WORDS else as_json(value)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
