"""What is checked and taken out of the DSN before asyncpg reads it. Nothing here quotes it: it may hold a password."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gateway.errors import StopForOperator
from gateway.postgres.authentication import ChannelBinding

_ENCODED: Final = {"@": "%40", "/": "%2F", "?": "%3F", "#": "%23"}


def check_dsn(dsn: str, doing: str) -> None:
    """Raises StopForOperator where a character of the password must be percent-encoded: it would end the user's part, and
    what is left would be taken for a host that is not there."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return  # login.py says what a DSN looks like
    found = ""
    if parts.netloc.count("@") > 1 or ("@" in parts.netloc and "@" in parts.path):
        found = "@"
    elif "@" in parts.path:
        found = "/"
    elif any("@" in part and "=" not in part.partition("@")[0] for part in parts.query.split("&")):
        found = "?"
    elif "@" in parts.fragment:
        found = "#"
    if found:
        raise StopForOperator(
            f"{doing}: source.dsn cannot be used: {found} is not percent-encoded in the user name or password",
            hint=f"percent-encode it: write {_ENCODED[found]} instead of {found} in the user name and password. Or leave the "
            "password out of source.dsn, and use source.password_file, source.password_command or passfile=",
        )


def take_channel_binding(dsn: str) -> tuple[str, ChannelBinding]:
    """The DSN without libpq's parameter `channel_binding`, which asyncpg does not know, and its value. Raises ValueError."""
    parts = urlsplit(dsn)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    found = [value for name, value in pairs if name == "channel_binding"]
    value = found[-1] if found else os.environ.get("PGCHANNELBINDING", ChannelBinding.PREFER.value)
    if found:
        rest = urlencode([pair for pair in pairs if pair[0] != "channel_binding"])
        dsn = urlunsplit(parts._replace(query=rest))
    return dsn, ChannelBinding(value)
