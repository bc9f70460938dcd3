"""What an error of the schemas means for the gateway. `schemas` knows no gateway, so its errors are classed here, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from gateway.operate.errors import Retry, StopForOperator
from schemas.errors import IncompatibleSchema, RegistryUnavailable, SchemaError

log = structlog.get_logger()


@contextmanager
def classified_schema_errors() -> Iterator[None]:
    """A registry that is away comes back: Retry. Everything else needs a person: StopForOperator, and a refused schema is
    logged, so that this person can register it."""
    try:
        yield
    except RegistryUnavailable as error:
        raise Retry(error.message, hint=error.hint) from error
    except SchemaError as error:
        if isinstance(error, IncompatibleSchema):
            log.error("refused_schema", subject=error.subject, schema=error.schema_text)
        raise StopForOperator(error.message, hint=error.hint) from error
