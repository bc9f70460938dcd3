"""The base class and the types that the sections of the settings share."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr

from gateway.errors import StopForOperator

PREFIX: Final = "WALGATE_"
"""The prefix of the environment variables."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def read_json(value: Any) -> Any:
    """Parse JSON from a variable, for a setting that is a table or an array of tables in TOML. A
    value from a file is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError("expected JSON") from error


AS_JSON: Final = BeforeValidator(read_json)


def _read_names(value: Any) -> Any:
    """Parse `a,b` or `["a", "b"]`; a list from a file is returned unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return read_json(value)
    return tuple(part.strip() for part in value.split(",")) if value.strip() else ()


def _join_names(value: Any) -> Any:
    """Join a list, which may be JSON in a variable, into one string with commas. JSON is recognized
    by `["`, because an IPv6 address begins with a bracket too."""
    if isinstance(value, str) and value.lstrip().startswith('["'):
        value = read_json(value)
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _refuse_empty(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("the value is empty: is the variable that it comes from set?")
    return value


NOT_EMPTY: Final = BeforeValidator(_refuse_empty)

File = Annotated[Path | None, NOT_EMPTY]
"""The path of a file, or None. An empty path would stand for the current directory."""

Names = Annotated[tuple[str, ...], BeforeValidator(_read_names)]
"""A list of strings; in a variable, `a,b` or JSON."""


def _compiles(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return value


Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression."""

JoinedNames = Annotated[str, BeforeValidator(_join_names)]
"""A string with commas, or a list."""


def refuse_quotes(value: str) -> None:
    if value[:1] in ("'", '"'):
        raise ValueError("remove the quotation marks around the value: env files and YAML lists keep them")


def refuse_unused(section: BaseModel, names: Iterable[str], reason: str) -> None:
    unused = [name for name in names if getattr(section, name) is not None]
    if unused:
        raise ValueError(f"{', '.join(unused)} would have no effect: {reason}")


def unusable(error: OSError, setting: str, *paths: Path | None) -> StopForOperator:
    named = " ".join(str(path) for path in paths if path is not None)
    reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return StopForOperator(
        f"{setting} cannot be used: {named}: {reason}", hint="use PEM files that the gateway can read"
    )


def tls_context(
    prefix: str, ca_file: Path | None, cert_file: Path | None, key_file: Path | None, key_password: SecretStr | None
) -> ssl.SSLContext:
    """Return a client's TLS context with the present content of these files. `prefix` is the prefix
    of the settings' names, for errors. Raises StopForOperator."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise unusable(error, f"{prefix}ca_file", ca_file) from error
    if cert_file is not None:
        # Without a password, OpenSSL would prompt for it on the terminal.
        password = "" if key_password is None else key_password.get_secret_value()
        try:
            context.load_cert_chain(cert_file, key_file, password=password)
        except OSError as error:
            names = f"{prefix}cert_file, {prefix}key_file or {prefix}key_password"
            raise unusable(error, names, cert_file, key_file) from error
    return context
