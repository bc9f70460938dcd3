"""Classify errors of the package `schemas` for the gateway; `schemas` itself does not depend on the
gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import structlog

from gateway.config.settings import RegistrySettings
from gateway.errors import Retry, RetrySlowly, StopForOperator, UnwritableRelation
from schemas.change_schema import Schema
from schemas.compatibility_levels import LevelChange
from schemas.errors import (
    IncompatibleSchema,
    RegistryDenied,
    RegistryLostSchemas,
    RegistryMissing,
    RegistryRefused,
    RegistryUnavailable,
    RegistryUnwilling,
)
from schemas.registry_client import RegistryClient
from schemas.topic_names import key_subject, value_subject

log = structlog.get_logger()
_ASKED_AT_ONCE = 8
"""Concurrent requests to the registry."""


@contextmanager
def classified_schema_errors() -> Iterator[None]:
    """Convert errors of `schemas`. Raises Retry if the registry cannot be reached, and
    UnwritableRelation if it refuses the schema itself. Raises StopForOperator if it has lost
    schemas. Raises RetrySlowly for missing privileges,
    for another service at the registry's address, and for requests that the registry refuses for
    other reasons. An incompatible schema is logged, so that it can be registered by hand."""
    try:
        yield
    except RegistryUnavailable as error:
        raise Retry(error.message, hint=error.hint) from error
    except (RegistryDenied, RegistryMissing, RegistryUnwilling) as error:
        raise RetrySlowly(error.message, hint=error.hint) from error
    except RegistryLostSchemas as error:
        raise StopForOperator(error.message, hint=error.hint) from error
    except (IncompatibleSchema, RegistryRefused) as error:
        if isinstance(error, IncompatibleSchema):
            log.error("schema_rejected", subject=error.subject, schema=error.schema_text)
        raise UnwritableRelation(error.message, hint=error.hint) from error


def log_level_change(change: LevelChange) -> None:
    log.info(
        "compatibility_changed",
        subject=change.subject,
        before=change.before or None,
        after=change.after or None,
        reason=change.reason,
    )


@asynccontextmanager
async def open_registry(settings: RegistrySettings, timeout_s: float) -> AsyncIterator[RegistryClient]:
    """Open a client of the registry for a few requests, whose errors are raised as WalgateError."""
    with classified_schema_errors():
        client = RegistryClient(settings.url, **settings.client_options(), timeout_s=timeout_s)
        try:
            yield client
        finally:
            await client.close()


async def register_both(
    registry: RegistryClient,
    topic: str,
    value_schema: Schema,
    key: Schema | None,
    in_use_value: Schema | None = None,
    in_use_key: Schema | None = None,
) -> tuple[int, int | None]:
    """Register the schemas of value and key concurrently; both requests have ended when this
    returns or raises. Raises SchemaError."""
    value = registry.register(value_subject(topic), value_schema, in_use_value)
    if key is None:
        return await value, None
    key_done = registry.register(key_subject(topic), key, in_use_key)
    value_schema_id, key_schema_id = await asyncio.gather(value, key_done, return_exceptions=True)
    if isinstance(value_schema_id, BaseException):
        raise value_schema_id
    if isinstance(key_schema_id, BaseException):
        raise key_schema_id
    return value_schema_id, key_schema_id


async def topics_with_schema(registry: RegistryClient, topics: Sequence[str]) -> list[str]:
    """Return those of the topics whose values have a schema in the registry. Raises
    WalgateError."""
    with_schema: list[str] = []
    with classified_schema_errors():
        for start in range(0, len(topics), _ASKED_AT_ONCE):
            some = topics[start : start + _ASKED_AT_ONCE]
            schemas = await asyncio.gather(*(registry.latest(value_subject(topic)) for topic in some))
            with_schema += [topic for topic, schema in zip(some, schemas, strict=True) if schema is not None]
    return with_schema
