"""Classify an error response of the schema registry: by the registry's own error code first, then
by the HTTP status.

Only a few codes concern the schema that was sent. Any other error may be temporary, whoever sent it
(a proxy, an ingress, a login page, a registry in read-only mode), and has an exception of its own.
docs/server-errors.md shows the outcome for every status.
"""

from __future__ import annotations

import json
from typing import Final

from schemas.errors import (
    RegistryDenied,
    RegistryMissing,
    RegistryRefused,
    RegistryUnavailable,
    RegistryUnwilling,
    SchemaError,
)

NOT_FOUND: Final = frozenset({40401, 40402, 40403, 40408})
"""Registry codes for a missing subject, version or schema, or a subject without a compatibility
level."""
TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
ABOUT_SCHEMA: Final = frozenset({409, 42201, 42202})
"""Registry codes that concern the schema: incompatible, invalid, invalid version."""
READ_ONLY: Final = 42205
_HINT_READ_ONLY: Final = (
    "the registry, or this subject, is in a mode that allows no writes. The gateway tries again until it is in mode READWRITE "
    "(PUT /mode of the registry's API)"
)
_HINT_UNWILLING: Final = (
    "the registry, or a proxy before it, refuses the request for a reason of its own that says nothing about the schema: see its "
    "log. The gateway tries again until the request is accepted"
)
_HINT_CREDENTIALS: Final = (
    "check registry.username and registry.password, or the source of the token, and that this user "
    "may write subjects and their configuration"
)

_HINT_PAGE: Final = (
    "the response is an HTML page, so it is not the registry's: a proxy or login page answers at registry.url. Let the gateway "
    "pass there, or use an address that leads to the registry itself"
)


class Refused(RegistryRefused):
    """The registry's own error, with its code and message. It concerns the schema that was sent, or
    an object that does not exist."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def error_of(status: int, content: bytes, what: str, leads_to: str = "") -> SchemaError:
    """Return the error to raise for an unsuccessful response. `what` describes the request in the
    message; `leads_to` is the host that a redirect names."""
    code, message = _problem(content)
    said = f"the schema registry returned {status}{f', error code {code}' if code else ''} ({what})"
    if code in ABOUT_SCHEMA or code in NOT_FOUND:
        return Refused(code, f"{said}: {message}")
    if status in TRY_AGAIN:
        return RegistryUnavailable(f"{said}: {message}")
    if status in (401, 403, 407):
        return RegistryDenied(said, hint=_HINT_PAGE if is_page(content) else _HINT_CREDENTIALS)
    if (status in (404, 405) and code < 1000) or (not code and 200 <= status < 400):
        if leads_to:
            return no_registry(what, f"{status}, a redirect to {leads_to}")
        page = ", with an HTML page" if is_page(content) else ""
        return no_registry(what, f"{status}{page}, but not in the format of the Confluent API")
    hint = _HINT_READ_ONLY if code == READ_ONLY else _HINT_UNWILLING
    return RegistryUnwilling(f"{said}: {message}", hint=hint, status=status)


def is_page(content: bytes) -> bool:
    """Return whether the response is HTML, such as the login page of a proxy."""
    return content.lstrip()[:1] == b"<"


def _problem(answer: bytes) -> tuple[int, str]:
    """Return the error code and the message of an unsuccessful response; the code is 0 if the
    response has none."""
    try:
        found = json.loads(answer)
        return int(found["error_code"]), str(found["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0, answer[:200].decode("utf-8", "replace")


def no_registry(what: str, reason: object) -> RegistryMissing:
    described = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else reason
    return RegistryMissing(
        f"registry.url does not point to a schema registry ({what}): {described}",
        hint="registry.url needs the path of the Confluent Schema Registry API: /apis/ccompat/v7 for Apicurio, none for "
        "Confluent and Karapace. If it is correct, a proxy or login page may be answering",
    )
