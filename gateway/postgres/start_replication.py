"""Build the START_REPLICATION command, with quoted names and with the options of pgoutput that the
server's version has.

The walsender's grammar has no parameters, so everything is quoted here and nowhere else (PostgreSQL
manual, 54.4 and 54.5; repl_gram.y, and SplitIdentifierString for the list of publications). The
names were checked when the settings were read; a name that cannot be quoted raises ValueError.
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
    """Return the highest version of the pgoutput protocol that the server has. Version 2 has
    streaming, 3 adds two-phase transactions, and 4 adds LSN and time to aborts."""
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
    """Return the options for START_REPLICATION, with unquoted values. Raises StopForOperator for an
    origin that the server's version does not have; the startup checks are responsible for
    two_phase."""
    if origin != "any" and version_num < 160000:
        raise StopForOperator("origin = none needs PostgreSQL 16 or newer", hint="set source.origin = any")
    options = {
        "proto_version": str(protocol_version(version_num)),
        "publication_names": ",".join(map(quoted_identifier, publications)),
        "messages": _switch(messages),
        "binary": _switch(binary),
        # 'parallel' makes the server add LSN and time to Stream Abort.
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
    """Return the command in the syntax of PostgreSQL 14, which newer servers accept too."""
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
    """Quote a literal for the walsender's grammar, where a backslash has no special meaning."""
    if "\0" in text:
        raise ValueError("an option value contains a zero byte")
    return "'" + text.replace("'", "''") + "'"
