"""Read and set the compatibility levels of subjects. Levels that others have set are preserved.

A subject without a level gets `BACKWARD` before its first version (Apicurio enforces nothing until
a level is set). To register one version regardless of compatibility, the level is set to `NONE` for
the duration of the request. Before that, the previous level is noted in the registry, as a version
of the subject `<subject>-compatibility`. If the process is killed in between, the next one restores
the level, without touching a `NONE` that was set by an administrator. A note that was used is
followed by an empty one, so that no permission to delete is needed.

A registry may have further settings for a subject (Confluent's `normalize`, `alias`, rules). Each
request that sets a level repeats them, since it may replace them all.
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
"""The level in the note of a subject that had no level of its own."""


class Ask(Protocol):
    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> Awaitable[dict[str, Any]]: ...


class Find(Protocol):
    def __call__(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Awaitable[dict[str, Any] | None]: ...


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of a subject's level, and the reason for it. `before` and `after` are empty where
    the subject has no level of its own."""

    subject: str
    before: str
    after: str
    reason: str


class CompatibilityLevels:
    """Read and set the levels of subjects.

    `ask` and `find` are methods of the registry's client; if the subject does not exist, `ask`
    raises an error and `find` returns None. `put` sends the settings of a subject, and tolerates
    another client that sends the first settings at the same time.
    """

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
        """Return the level of a subject; None if it has no level of its own."""
        return (await self._settings(subject)).get("compatibilityLevel")

    async def _settings(self, subject: str) -> dict[str, Any]:
        return await self._find("GET", f"/config/{_quoted(subject)}") or {}

    async def begin(self, subject: str) -> None:
        """Set the level of a subject to `BACKWARD` before its first version, unless the subject has
        a level already."""
        settings = await self._settings(subject)
        if settings.get("compatibilityLevel") is None:
            await self._put(subject, {**settings, "compatibility": OWN})

    @asynccontextmanager
    async def off(self, subject: str) -> AsyncIterator[None]:
        """Set the level to `NONE` within the context, and restore it afterwards."""
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
        """Restore the level of a subject after a process ended within `off`."""
        level, number = await self._noted(subject)
        if not level:
            return
        if await self.of(subject) == OFF:  # otherwise it was changed in the meantime
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
        """Return the level and the number of the newest note; ("", 0) if there is none."""
        answer = await self._find("GET", f"/subjects/{_quoted(_note_subject(subject))}/versions/latest")
        if answer is None:
            return "", 0
        level, number = json.loads(answer["schema"])["fields"]
        return level["default"], number["default"]

    async def _note(self, subject: str, level: str, number: int) -> int:
        """Write a note, and return its number.

        The number makes each note a different schema: a registry adds a version to a subject only
        for a schema that the subject does not have yet.
        """
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
