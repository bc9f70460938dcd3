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
    from confluent_kafka.schema_registry import Schema as SchemaText
    from confluent_kafka.schema_registry import SchemaRegistryClient

Schema = dict[str, Any]

_NOT_FOUND = (40401, 40402, 40403)
"""Error codes for a missing subject, version or schema."""
_HINT = "Check the options registry.url and registry.*, and that the gateway has written to this prefix."
_HINT_PATH = (
    "Check the URL of the registry (--registry, or the option registry.url). It needs the path of the API of Confluent Schema "
    "Registry: /apis/ccompat/v7 for Apicurio, none for Confluent and Karapace."
)

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
        """Return the schema with this id. Raises SourceUnavailable, also if the registry does not
        have it."""
        found = self.find_schema(schema_id)
        if found is None:
            raise SourceUnavailable(f"the schema registry has no Avro record with the id {schema_id}", hint=_HINT)
        return found

    def latest(self, subject: str) -> tuple[int, Schema]:
        """Return what `find` returns. Raises SourceUnavailable, also if there is no Avro record."""
        found = self.find(subject)
        if found is None or not found[1]:
            raise SourceUnavailable(f"the schema registry has no Avro record of subject {subject}", hint=_HINT)
        return found

    def find(self, subject: str) -> tuple[int, Schema] | None:
        """Return the id and schema of the newest version of a subject; None if the registry has no
        such subject. The schema is empty if it is not an Avro record. Raises SourceUnavailable and
        SourceRefused."""
        # confluent_kafka's get_latest_version would return its first answer for ever
        found = _answer(f"subject {subject}", lambda: self._client().get_version(subject, "latest"))
        return None if found is None or found.schema_id is None else (found.schema_id, _record(found.schema))

    def find_schema(self, schema_id: int) -> Schema | None:
        """Return what `schema` returns; None if the registry has no such schema."""
        return _record(_answer(f"schema {schema_id}", lambda: self._client().get_schema(schema_id))) or None

    def subjects(self, prefix: str) -> list[str]:
        """Return the subjects that begin with `prefix`. Raises SourceUnavailable and
        SourceRefused."""
        found: set[str] = set()

        def page() -> list[str]:
            return self._client().get_subjects(subject_prefix=prefix, offset=len(found))

        # Read page by page, since Apicurio returns at most 1,000 subjects. A registry that does not
        # support `offset` returns the same page again.
        while more := set(_answer(f"the subjects of {prefix}", page) or ()) - found:
            found |= more
        # Not every registry supports `subjectPrefix`.
        return sorted(subject for subject in found if subject.startswith(prefix))

    def versions(self, subject: str) -> dict[int, Schema]:
        """Return the versions of a subject that are Avro records, schema id -> schema, oldest
        first. Raises SourceUnavailable and SourceRefused."""
        what = f"the versions of subject {subject}"
        numbers = _answer(what, lambda: self._client().get_versions(subject)) or []
        found = [_answer(what, partial(self._client().get_version, subject, number)) for number in sorted(numbers)]
        return {
            version.schema_id: schema
            for version in found
            if version is not None and version.schema_id is not None and (schema := _record(version.schema))
        }


@atexit.register
def _close_clients() -> None:
    while _clients:
        _clients.popitem()[1].close()


def _answer(what: str, ask: Callable[[], T]) -> T | None:
    """Return the registry's answer; None if it does not have what is asked for."""
    try:
        return ask()
    except Exception as problem:  # httpx's and the registry's own
        if getattr(problem, "error_code", None) in _NOT_FOUND:
            return None
        raise _unavailable(what, problem) from problem


def _record(found: SchemaText | None) -> Schema:
    """Return an Avro record; an empty schema in place of any other."""
    if found is None or found.schema_type not in ("AVRO", None):
        return {}
    schema = json.loads(found.schema_str or "null")
    return schema if isinstance(schema, dict) else {}


def _unavailable(what: str, problem: Exception) -> SourceUnavailable | SourceRefused:
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    if isinstance(problem, SchemaRegistryError):
        detail = f"{problem.http_status_code} {problem.error_message or ''}".rstrip()
        if problem.http_status_code in (401, 403):
            return SourceRefused(
                f"the schema registry did not return {what}: {detail}", hint="Check the options registry.basic.auth.*."
            )
        if problem.http_status_code == 404:  # not one of _NOT_FOUND, so not the answer of such a registry
            return SourceUnavailable(f"the schema registry did not return {what}: {detail}", hint=_HINT_PATH)
    else:
        detail = f"{type(problem).__name__}: {problem}"
    return SourceUnavailable(f"the schema registry did not return {what}: {detail}", hint=_HINT)


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
