"""The schema registry, by the Confluent API: the only part of this package that talks to anybody.

Rules: `BACKWARD` is set on a subject before its first version (Apicurio enforces nothing until it is told to); the same
content is registered once; what a reader could not follow is refused here even where the registry would take it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
from confluent_kafka.schema_registry import Schema as RegisteredText
from confluent_kafka.schema_registry.error import SchemaRegistryError

from schemas.compatibility import TypeChange, incompatible_columns
from schemas.errors import IncompatibleSchema, RegistryRefused, RegistryUnavailable

Schema = dict[str, Any]
OnIncompatible = Literal["stop", "register"]

_NOT_FOUND: Final = frozenset({40401, 40402, 40403})
"""Subject, version, schema."""
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_HINT_INCOMPATIBLE: Final = (
    "two ways on, both from where it stopped, so that nothing is lost: set schemas.on_incompatible=register, which lets "
    "every such change through; or register the refused schema (it was logged) under {subject} yourself, which lets this "
    "one through, and start again. Readers must then be able to read both. Changing the source back is no way: rows of "
    "the new form that were committed stay in the stream"
)


class RegistryClient:
    """Errors: RegistryUnavailable (try again), RegistryRefused, IncompatibleSchema. Times in seconds."""

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 30.0,
        on_incompatible: OnIncompatible = "stop",
    ) -> None:
        # No retries in there: they sleep without end in sight; ours is to say Unavailable and be called again.
        settings: dict[str, Any] = {"url": url, "timeout": timeout_s, "max.retries": 0}
        if username is not None:
            settings["basic.auth.user.info"] = f"{username}:{password or ''}"
        if ca_file is not None:
            settings["ssl.ca.location"] = str(ca_file)
        self._client = AsyncSchemaRegistryClient(settings)
        self._on_incompatible = on_incompatible
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, Schema] = {}

    async def close(self) -> None:
        await self._client.aclose()

    async def register(self, subject: str, schema: Schema) -> int:
        """Schema id of this content under the subject, made where it is not there yet. Cached by content."""
        text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
        known = self._ids.get((subject, text))
        if known is not None:
            return known
        try:
            schema_id = await self._register(subject, schema, text)
        except Exception as error:
            raise _classified(error, subject) from error
        self._ids[subject, text] = schema_id
        return schema_id

    async def schema(self, schema_id: int) -> Schema:
        """The schema as the registry has it: normalised perhaps, but with every attribute."""
        known = self._schemas.get(schema_id)
        if known is None:
            try:
                found = await self._client.get_schema(schema_id)
            except Exception as error:
                raise _classified(error, f"schema {schema_id}") from error
            known = self._schemas[schema_id] = json.loads(found.schema_str or "")
        return known

    async def latest(self, subject: str) -> Schema | None:
        """The newest version of a subject, None where there is none. Asked anew each time."""
        try:
            return await self._newest(subject)
        except Exception as error:
            raise _classified(error, subject) from error

    async def _register(self, subject: str, schema: Schema, text: str) -> int:
        registered = RegisteredText(text, "AVRO")
        known = await self._look_up(subject, registered)
        if known is not None:  # also an older version that the newest could not read: rows may be sent again
            return known
        latest = await self._newest(subject)
        changes = [] if latest is None else incompatible_columns(latest, schema)
        if latest is None:
            await self._client.set_compatibility(subject, "BACKWARD")
        if changes and self._on_incompatible == "stop":
            raise _incompatible(subject, schema, text, changes, "")
        try:
            return await self._client.register_schema(subject, registered)
        except SchemaRegistryError as error:
            if error.http_status_code != 409:
                raise
            if self._on_incompatible == "stop":
                raise _incompatible(subject, schema, text, changes, error.error_message) from error
        return await self._register_regardless(subject, registered)

    async def _look_up(self, subject: str, registered: RegisteredText) -> int | None:
        try:
            return (await self._client.lookup_schema(subject, registered)).schema_id
        except SchemaRegistryError as error:
            if error.error_code in _NOT_FOUND:
                return None
            raise

    async def _register_regardless(self, subject: str, registered: RegisteredText) -> int:
        """`schemas.on_incompatible: register`: compatibility off for this one version."""
        await self._client.set_compatibility(subject, "NONE")
        try:
            return await self._client.register_schema(subject, registered)
        finally:
            await self._client.set_compatibility(subject, "BACKWARD")

    async def _newest(self, subject: str) -> Schema | None:
        self._client._latest_version_cache.clear()  # the client keeps "latest" for ever otherwise
        try:
            latest = await self._client.get_latest_version(subject)
        except SchemaRegistryError as error:
            if error.error_code in _NOT_FOUND:
                return None
            raise
        found: Schema = json.loads(latest.schema.schema_str or "")
        return found


def _incompatible(
    subject: str, schema: Schema, text: str, changes: list[TypeChange], answer: str
) -> IncompatibleSchema:
    described = schema.get("pg.relation")
    relation = f"{described['schema']}.{described['name']}" if described else subject
    columns = "; ".join(f"column {each.column} changed from {each.old_type} to {each.new_type}" for each in changes)
    return IncompatibleSchema(
        f"{relation}: readers of {subject} could not read old events with the new schema: {columns or answer}",
        hint=_HINT_INCOMPATIBLE.format(subject=subject),
        subject=subject,
        schema_text=text,
    )


def _classified(error: Exception, what: str) -> Exception:
    """The client raises its own error for an answer, the HTTP library's for none."""
    if not isinstance(error, SchemaRegistryError):
        if isinstance(error, (ValueError, KeyError, TypeError, AttributeError)):
            return RegistryRefused(
                f"what answers in place of the schema registry is none ({what}): {type(error).__name__}: {error}",
                hint="check that registry.url is that of a Confluent API, and that no proxy or login page answers for it",
            )
        libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        if not isinstance(error, OSError) and not libraries & {"httpx", "httpx2"}:
            return error
        return RegistryUnavailable(f"the schema registry does not answer ({what}): {type(error).__name__}: {error}")
    status, message = error.http_status_code, error.error_message
    if status in _TRY_AGAIN:
        return RegistryUnavailable(f"the schema registry answers {status} ({what}): {message}")
    if status in (401, 403):
        return RegistryRefused(
            f"the schema registry answers {status} ({what})",
            hint="check registry.username and registry.password, and that this user may write subjects and their config",
        )
    return RegistryRefused(f"the schema registry answers {status} ({what}): {message}")
