"""Errors of the contract between gateway and readers. Each says in `hint` what a person can do.

SchemaError
+-- IncompatibleSchema    a relation changed so that readers of old events could not read the new ones
+-- RegistryUnavailable   the registry does not answer, or says that it cannot now: try again
+-- RegistryRefused       the registry refuses this schema, or it cannot be asked with these settings
    +-- RegistryDenied    credentials or permissions
    +-- RegistryMissing   something else answers in its place
    +-- RegistryUnwilling an answer that says nothing about the schema
"""

from __future__ import annotations


class SchemaError(Exception):
    """`hint` is one sentence, or a setting."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class IncompatibleSchema(SchemaError):
    """Names relation, column and both types, and the two ways on. `schema_text` is what was not
    registered."""

    def __init__(self, message: str, *, hint: str = "", subject: str = "", schema_text: str = "") -> None:
        super().__init__(message, hint=hint)
        self.subject = subject
        self.schema_text = schema_text


class RegistryUnavailable(SchemaError):
    """No answer, a time-out or a server error: the same request may succeed later."""


class RegistryRefused(SchemaError):
    """The registry refuses this schema, or it cannot be asked with these settings."""


class RegistryDenied(RegistryRefused):
    """401, 403: credentials or rights, which may be put right while we wait."""


class RegistryMissing(RegistryRefused):
    """Something else answers in its place: another path, a proxy, a login page, an ingress without
    a backend."""


class RegistryUnwilling(RegistryRefused):
    """Any other error: a registry in read-only mode, a limit of a proxy. It says nothing about the
    schema, and may pass."""
