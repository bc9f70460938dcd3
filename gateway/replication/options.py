"""START_REPLICATION and the options of pgoutput, by server version, quoted.

The walsender's grammar knows no parameters, so everything is quoted here and nowhere else (PostgreSQL manual, 54.4 and
54.5; repl_gram.y, and SplitIdentifierString for the list of publications).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from gateway.judgement.server import OLDEST_VERSION_NUM
from gateway.lsn import Lsn
from gateway.names import IDENTIFIER_RULE, SLOT_RULE, is_identifier, is_slot, quote_identifier
from gateway.operate.errors import StopForOperator

_OPTION_NAME = re.compile(r"[a-z_]{1,63}")


def protocol_version(version_num: int) -> int:
    """The highest pgoutput protocol of the server: 2 streams, 3 adds two-phase, 4 adds LSN and time to aborts."""
    if version_num < OLDEST_VERSION_NUM:
        raise StopForOperator(f"PostgreSQL {version_num // 10000} is too old", hint="use PostgreSQL 14 or newer")
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
    """Options for START_REPLICATION, unquoted values. Raises StopForOperator for an origin that the server's version has not;
    two_phase is the preflight checks' business."""
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
    """Raises StopForOperator unless the name is one that PostgreSQL allows for a slot."""
    if not is_slot(name):
        raise StopForOperator(f"invalid slot name: {name!r}", hint=SLOT_RULE)
    return name


def _checked_option(name: str) -> str:
    if not _OPTION_NAME.fullmatch(name):
        raise StopForOperator(f"invalid option name: {name!r}", hint="an option name has letters, digits and _")
    return name


def quoted_identifier(name: str) -> str:
    """Raises StopForOperator when it is no name: empty, over 63 bytes, or with a zero byte."""
    if not is_identifier(name):
        raise StopForOperator(f"invalid name: {name!r}", hint=IDENTIFIER_RULE)
    return quote_identifier(name)


def quote_literal(text: str) -> str:
    """For the walsender's grammar, where a backslash has no meaning."""
    if "\0" in text:
        raise StopForOperator("an option value contains a zero byte", hint="check the settings under source")
    return "'" + text.replace("'", "''") + "'"
