"""Errors of the contract between gateway and readers. Each says in `hint` what a person can do.

SchemaError
+-- NameTooLong           a relation whose topic name Kafka would refuse
+-- IncompatibleSchema    a relation changed so that readers of old events could not read the new ones
+-- RegistryUnavailable   the registry does not answer, or says that it can not now: try again
+-- RegistryRefused       credentials or permissions
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


class NameTooLong(SchemaError):
    """Kafka takes topic names of at most 249 bytes."""


class IncompatibleSchema(SchemaError):
    """Names relation, column and both types, and the two ways on. `schema_text` is what was not registered."""

    def __init__(self, message: str, *, hint: str = "", subject: str = "", schema_text: str = "") -> None:
        super().__init__(message, hint=hint)
        self.subject = subject
        self.schema_text = schema_text


class RegistryUnavailable(SchemaError):
    """No answer, a time-out or a server error: the same request may succeed later."""


class RegistryRefused(SchemaError):
    """401, 403, or an answer that more attempts will not change."""
