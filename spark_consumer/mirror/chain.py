"""Changes of key whose unsent columns are to be found under the old key: applied one by one, as PostgreSQL did.

Rare (a key changes while a TOASTed column stays), so it is plain Python over the rows of the keys concerned. What a key held
before the batch comes from the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Key = Any  # hashable: a tuple of the key's columns


@dataclass(frozen=True, slots=True)
class Event:
    """One keyed event, see events.py."""

    key: Key
    origin: Key | None
    deleted: bool
    row: Mapping[str, Any] | None
    unchanged: frozenset[str]
    special: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class State:
    """A row; `unknown` names columns that neither batch nor target told."""

    row: dict[str, Any]
    special: dict[str, str]
    unknown: frozenset[str]


def replay(events: Iterable[Event], held: Mapping[Key, State]) -> dict[Key, State | None]:
    """The last state of every key that an event names; None: deleted. `events` in order of their position, a change of key before
    the removal of its old key; `held`: rows of the target."""
    states: dict[Key, State | None] = dict(held)
    touched: dict[Key, None] = {}
    for event in events:
        touched[event.key] = None
        if event.deleted:
            states[event.key] = None
            continue
        assert event.row is not None
        source = states.get(event.key if event.origin is None else event.origin)
        states[event.key] = _put(event, source)
    return {key: states[key] for key in touched}


def _put(event: Event, source: State | None) -> State:
    """The event's row with its unsent columns taken from `source`."""
    assert event.row is not None
    row, special = dict(event.row), dict(event.special)
    unknown = set()
    for name in event.unchanged:
        if source is None or name in source.unknown:
            unknown.add(name)
            continue
        row[name] = source.row.get(name)
        if name in source.special:
            special[name] = source.special[name]
    return State(row, special, frozenset(unknown))
