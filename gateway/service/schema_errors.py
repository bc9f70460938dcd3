"""What an error of the schemas means for the gateway. `schemas` knows no gateway, so its errors are classed here, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from gateway.operate.errors import Retry, RetrySlowly, UnwritableRelation
from schemas.errors import (
    IncompatibleSchema,
    RegistryDenied,
    RegistryMissing,
    RegistryRefused,
    RegistryUnavailable,
)

log = structlog.get_logger()


@contextmanager
def classified_schema_errors() -> Iterator[None]:
    """A registry that is away comes back: Retry. So may rights, and the registry where something else answers: RetrySlowly.
    Everything else needs the operator, and a refused schema is logged, so that it can be registered by hand."""
    try:
        yield
    except RegistryUnavailable as error:
        raise Retry(error.message, hint=error.hint) from error
    except (RegistryDenied, RegistryMissing) as error:
        raise RetrySlowly(error.message, hint=error.hint) from error
    except (IncompatibleSchema, RegistryRefused) as error:
        if isinstance(error, IncompatibleSchema):
            log.error("schema_rejected", subject=error.subject, schema=error.schema_text)
        raise UnwritableRelation(error.message, hint=error.hint) from error
