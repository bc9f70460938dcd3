"""START_REPLICATION and the options of pgoutput, by server version, quoted.

The walsender's grammar knows no parameters, so everything is quoted here and nowhere else
(PostgreSQL manual, 54.4 and 54.5; repl_gram.y, and SplitIdentifierString for the list of
publications). The settings have checked the names already: what cannot be quoted is a ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from gateway.errors import StopForOperator
from gateway.names import is_identifier, is_slot, quote_identifier
from schemas.lsn import Lsn

_OPTION_NAME = re.compile(r"[a-z_]{1,63}")


def protocol_version(version_num: int) -> int:
    """The highest pgoutput protocol of the server: 2 streams, 3 adds two-phase, 4 adds LSN and time
    to aborts."""
    return 2 if version_num < 150000 else 3 if version_num < 160000 else 4


def pgoutput_options(
    version_num: int,
    publications: Sequence[str],
    *,
    binary: bool = False,
    streaming: bool = True,
    two_phase: bool = False,
    messages: bool = True,
    origin: Literal["any", "none"] = "any",
) -> dict[str, str]:
    """Options for START_REPLICATION, unquoted values. Raises StopForOperator for an origin that the
    server's version has not; two_phase is the preflight checks' business."""
    if origin != "any" and version_num < 160000:
        raise StopForOperator("origin = none needs PostgreSQL 16 or newer", hint="set source.origin = any")
    options = {
        "proto_version": str(protocol_version(version_num)),
        "publication_names": ",".join(map(quoted_identifier, publications)),
        "messages": _switch(messages),
        "binary": _switch(binary),
        # 'parallel' makes the server put LSN and time on Stream Abort.
        "streaming": ("parallel" if version_num >= 160000 else "on") if streaming else "off",
    }
    if two_phase:
        options["two_phase"] = "on"
    if version_num >= 160000:
        options["origin"] = origin
    return options


def _switch(value: bool) -> str:
    return "on" if value else "off"


def start_command(slot: str, start_lsn: Lsn, options: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{_checked_option(name)} {quote_literal(value)}" for name, value in options.items())
    return f'START_REPLICATION SLOT "{checked_slot(slot)}" LOGICAL {start_lsn} ({pairs})'


def temporary_slot_command(slot: str) -> str:
    """In the form of 14, which newer servers take as well."""
    return f'CREATE_REPLICATION_SLOT "{checked_slot(slot)}" TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT'


def checked_slot(name: str) -> str:
    if not is_slot(name):
        raise ValueError(f"invalid slot name: {name!r}")
    return name


def _checked_option(name: str) -> str:
    if not _OPTION_NAME.fullmatch(name):
        raise ValueError(f"invalid option name: {name!r}")
    return name


def quoted_identifier(name: str) -> str:
    if not is_identifier(name):
        raise ValueError(f"invalid name: {name!r}")
    return quote_identifier(name)


def quote_literal(text: str) -> str:
    """For the walsender's grammar, where a backslash has no meaning."""
    if "\0" in text:
        raise ValueError("an option value contains a zero byte")
    return "'" + text.replace("'", "''") + "'"
