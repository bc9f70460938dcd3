"""Compatibility levels of subjects: those of other people stay as they are.

A subject without a level gets `BACKWARD` before its first version (Apicurio enforces nothing until
it is told to). To register one version regardless, the level is set to `NONE` for that moment. The
level of before is noted in the registry first, as a version of the subject
`<subject>-compatibility`, so that a process which was killed in between is repaired by the next
one, and a `NONE` that somebody else has set is not. A note that was used is followed by an empty
one: no right to delete is needed.

A registry may have more settings of a subject (Confluent's `normalize`, `alias`, rules). Each
request that sets a level carries them along, since it may replace them all.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

OWN: Final = "BACKWARD"
OFF: Final = "NONE"
_UNSET: Final = "UNSET"
"""In a note: the subject had no level of its own."""


class Ask(Protocol):
    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> Awaitable[dict[str, Any]]: ...


class Find(Protocol):
    def __call__(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Awaitable[dict[str, Any] | None]: ...


@dataclass(frozen=True, slots=True)
class LevelChange:
    """What was done to the level of a subject, and why. `before` and `after` are empty where the
    subject has none of its own."""

    subject: str
    before: str
    after: str
    reason: str


class CompatibilityLevels:
    """`ask` and `find` are those of the registry's client: the first raises where the second
    returns None for what is not there. `put` sends the settings of a subject and survives that two
    clients send the first ones at once."""

    def __init__(
        self,
        ask: Ask,
        find: Find,
        put: Callable[[str, dict[str, Any]], Awaitable[None]],
        on_change: Callable[[LevelChange], None],
    ) -> None:
        self._ask = ask
        self._find = find
        self._put = put
        self._on_change = on_change

    async def of(self, subject: str) -> str | None:
        """None where the subject has no level of its own."""
        return (await self._settings(subject)).get("compatibilityLevel")

    async def _settings(self, subject: str) -> dict[str, Any]:
        return await self._find("GET", f"/config/{_quoted(subject)}") or {}

    async def begin(self, subject: str) -> None:
        """Before the first version of a subject."""
        settings = await self._settings(subject)
        if settings.get("compatibilityLevel") is None:
            await self._put(subject, {**settings, "compatibility": OWN})

    @asynccontextmanager
    async def off(self, subject: str) -> AsyncIterator[None]:
        """The registry takes what comes within; then the level is again what it was."""
        before = await self.of(subject)
        if before == OFF:
            yield
            return
        number = await self._note(subject, before or _UNSET, (await self._noted(subject))[1] + 1)
        await self._set(subject, before, OFF, "one version is registered regardless of compatibility")
        try:
            yield
        finally:
            await self._set(subject, OFF, before, "the version is registered: the level is again what it was")
            await self._note(subject, "", number + 1)

    async def repair(self, subject: str) -> None:
        """Undo what a process left that ended within `off`."""
        level, number = await self._noted(subject)
        if not level:
            return
        if await self.of(subject) == OFF:  # else somebody has set another one since
            before = None if level == _UNSET else level
            await self._set(subject, OFF, before, "a gateway that was ended during a registration left NONE behind")
        await self._note(subject, "", number + 1)

    async def _set(self, subject: str, before: str | None, after: str | None, reason: str) -> None:
        others = {
            name: value for name, value in (await self._settings(subject)).items() if name != "compatibilityLevel"
        }
        if after is None and not others:
            await self._find("DELETE", f"/config/{_quoted(subject)}")
        else:
            await self._put(subject, {**others, "compatibility": after})
        self._on_change(LevelChange(subject, before or "", after or "", reason))

    async def _noted(self, subject: str) -> tuple[str, int]:
        """Level and number of the newest note; ("", 0) where there is none."""
        answer = await self._find("GET", f"/subjects/{_quoted(_note_subject(subject))}/versions/latest")
        if answer is None:
            return "", 0
        level, number = json.loads(answer["schema"])["fields"]
        return level["default"], number["default"]

    async def _note(self, subject: str, level: str, number: int) -> int:
        """The number makes it another schema than those before: the newest version of a subject is
        that which came last only if it is new. Returns the number."""
        note = {
            "type": "record",
            "name": "CompatibilityNote",
            "namespace": "walgate",
            "doc": f"The compatibility level of subject {subject} before the gateway set it to NONE for a moment.",
            "fields": [
                {"name": "level", "type": "string", "default": level},
                {"name": "number", "type": "long", "default": number},
            ],
        }
        await self._ask("POST", f"/subjects/{_quoted(_note_subject(subject))}/versions", {"schema": json.dumps(note)})
        return number


def _note_subject(subject: str) -> str:
    return f"{subject}-compatibility"


def _quoted(subject: str) -> str:
    return quote(subject, safe="")
