"""Errors of the contract between gateway and readers. The `hint` of each tells the operator what to
do.

SchemaError
    +-- IncompatibleSchema    a relation changed so that readers of old events cannot read new ones
    +-- RegistryLostSchemas   the registry no longer has schemas that records name
    +-- RegistryUnavailable   the registry is not available, or reports a temporary error: try again
    +-- RegistryRefused       the registry refuses the schema or cannot be used with these settings
        +-- RegistryDenied    credentials or permissions
        +-- RegistryMissing   another server answers in its place
        +-- RegistryUnwilling an answer that does not concern the schema
"""

from __future__ import annotations


class SchemaError(Exception):
    """The base class of these errors. `hint` tells the operator what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class IncompatibleSchema(SchemaError):
    """A relation changed so that readers of old events cannot read new ones. The message names the
    relation, the column and both types; the hint has the two ways to proceed. `schema_text` is the
    schema that was not registered."""

    def __init__(self, message: str, *, hint: str = "", subject: str = "", schema_text: str = "") -> None:
        super().__init__(message, hint=hint)
        self.subject = subject
        self.schema_text = schema_text


class RegistryLostSchemas(SchemaError):
    """The registry no longer has a schema that records name: it was emptied, restored from an old
    backup, or replaced. It may give the ids of those schemas to new ones."""


class RegistryUnavailable(SchemaError):
    """The registry did not answer, or answered with a server error: the same request may succeed
    later."""


class RegistryRefused(SchemaError):
    """The registry refuses this schema, or cannot be used with these settings."""


class RegistryDenied(RegistryRefused):
    """Status 401, 403 or 407: wrong credentials or missing permissions, which may be corrected
    while the gateway waits."""


class RegistryMissing(RegistryRefused):
    """Another server answers in the registry's place: a wrong path, a proxy, a login page, an
    ingress without a backend."""


class RegistryUnwilling(RegistryRefused):
    """Any other error, such as a registry in read-only mode or a limit of a proxy. Such an error
    does not concern the schema, and may be temporary. `status` is the status of the response."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
