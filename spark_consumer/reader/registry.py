"""Writer schemas from a Confluent-compatible schema registry, fetched once per process."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from spark_consumer.errors import SourceRefused, SourceUnavailable

if TYPE_CHECKING:  # its import takes 0.3 s, and most Python workers never use a registry
    from confluent_kafka.schema_registry import SchemaRegistryClient

Schema = dict[str, Any]

_NOT_FOUND = (40401, 40402, 40403)
"""Error codes for a missing subject, version or schema."""

T = TypeVar("T")

_clients: dict[tuple[tuple[str, str], ...], SchemaRegistryClient] = {}


@dataclass(frozen=True, slots=True)
class Registry:
    """The connection to the registry; it can be pickled and sent to tasks. `settings` are passed to
    confluent_kafka's client (`url`, `basic.auth.user.info`, `ssl.ca.location`, ...)."""

    settings: Mapping[str, str]

    def _client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        key = tuple(sorted(self.settings.items()))
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = SchemaRegistryClient({"timeout": 10, "max.retries": 3, **self.settings})
        return found

    def schema(self, schema_id: int) -> Schema:
        """Return the schema with this id. Raises SourceUnavailable."""
        try:
            text = self._client().get_schema(schema_id).schema_str
        except Exception as problem:  # httpx's and the registry's own: the schema is not available
            raise _unavailable(f"schema {schema_id}", problem) from problem
        return _record(text, f"schema {schema_id}")

    def latest(self, subject: str) -> tuple[int, Schema]:
        """Return the id and schema of the newest version of a subject. Raises SourceUnavailable,
        also if there is no such subject."""
        try:
            # confluent_kafka's get_latest_version would return its first answer for ever
            found = self._client().get_version(subject, "latest")
        except Exception as problem:
            raise _unavailable(f"subject {subject}", problem) from problem
        if found.schema_id is None or found.schema is None:
            raise SourceUnavailable(f"the schema registry returned no schema for subject {subject}")
        return found.schema_id, _record(found.schema.schema_str, subject)

    def find(self, subject: str) -> tuple[int, Schema] | None:
        """Return what `latest` returns; None if the registry has no such subject."""
        return _if_found(partial(self.latest, subject))

    def find_schema(self, schema_id: int) -> Schema | None:
        """Return what `schema` returns; None if the registry has no such schema."""
        return _if_found(partial(self.schema, schema_id))

    def subjects(self, prefix: str) -> list[str]:
        """Return the subjects that begin with `prefix`. Raises SourceUnavailable."""
        found: set[str] = set()
        try:
            # Read page by page, since Apicurio returns at most 1,000 subjects. A registry that does
            # not support `offset` returns the same page again.
            while page := set(self._client().get_subjects(subject_prefix=prefix, offset=len(found))) - found:
                found |= page
        except Exception as problem:
            raise _unavailable(f"the subjects of {prefix}", problem) from problem
        # Not every registry supports `subjectPrefix`.
        return sorted(subject for subject in found if subject.startswith(prefix))

    def versions(self, subject: str) -> dict[int, Schema]:
        """Return all versions of a subject, schema id -> schema, oldest first. Raises
        SourceUnavailable."""
        try:
            client = self._client()
            found = [client.get_version(subject, version) for version in sorted(client.get_versions(subject))]
        except Exception as problem:
            raise _unavailable(f"the versions of subject {subject}", problem) from problem
        return {
            version.schema_id: _record(version.schema.schema_str, subject)
            for version in found
            if version.schema_id is not None and version.schema is not None
        }


@atexit.register
def _close_clients() -> None:
    while _clients:
        _clients.popitem()[1].close()


def _if_found(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except SourceUnavailable as problem:
        if getattr(problem.__cause__, "error_code", None) in _NOT_FOUND:
            return None
        raise


def _record(text: str | None, what: str) -> Schema:
    schema = json.loads(text or "null")
    if not isinstance(schema, dict):
        raise SourceUnavailable(f"the schema registry returned no Avro record for {what}")
    return schema


def _unavailable(what: str, problem: Exception) -> SourceUnavailable | SourceRefused:
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    if isinstance(problem, SchemaRegistryError):
        detail = f"{problem.http_status_code} {problem.error_message}"
        if problem.http_status_code in (401, 403):
            return SourceRefused(
                f"the schema registry did not return {what}: {detail}", hint="Check the options registry.basic.auth.*."
            )
    else:
        detail = f"{type(problem).__name__}: {problem}"
    return SourceUnavailable(
        f"the schema registry did not return {what}: {detail}",
        hint="Check the options registry.url and registry.*, and that the gateway has written to this prefix.",
    )


class SchemaCache(dict[int, Schema]):
    """Schemas by id, fetched when they are first used. The schema of an id never changes, so
    nothing is evicted."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry

    def __missing__(self, schema_id: int) -> Schema:
        schema = self[schema_id] = self._registry.schema(schema_id)
        return schema

    def find(self, schema_id: int) -> Schema | None:
        """Return the schema with this id; None if the registry does not have it."""
        if schema_id not in self:
            found = self._registry.find_schema(schema_id)
            if found is None:
                return None
            self[schema_id] = found
        return self[schema_id]
