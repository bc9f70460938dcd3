"""Commands to a gateway, which are logical messages in its own stream: they are durable and
ordered, and need no open port. The coordinator receives them and carries them out.

    SELECT pg_logical_emit_message(
        true, 'walgate.snapshot', '{"command": "start", "tables": ["public.orders"]}')

Every role that can connect to the database can emit them; `snapshot.commands = false` disables
them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import structlog

from gateway.config.settings import Settings
from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.connection import sql_session
from gateway.postgres.credentials import Credentials
from gateway.postgres.publication import publication_facts
from gateway.transactions.transaction import COMMAND_PREFIX
from schemas.lsn import Lsn
from schemas.topic_names import format_relation, parse_relation

log = structlog.get_logger()

COMMANDS: Final = ("start", "pause", "resume", "cancel")
PURPOSES: Final = ("REPLACE", "VERIFY")
_EMIT: Final = "SELECT pg_catalog.pg_logical_emit_message(true, $1::text, $2::text)::text"


class InvalidCommand(ValueError):
    """A message is not a valid command; the text of the exception gives the reason. Since any role
    may have emitted the message, the gateway only logs the exception."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `tables` and `purpose` are for `start`: `tables` are (schema, table); if there are
    none, all published tables are read. `slot`, of every command, names the slot of the gateway
    that the command is for; "" means every gateway."""

    command: str
    tables: tuple[tuple[str, str], ...] = ()
    purpose: str = "REPLACE"
    slot: str = ""


def parse_command(content: bytes) -> Command:
    """Parse the content of a message. Raises InvalidCommand."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidCommand("not valid JSON in UTF-8") from None
    if not isinstance(found, dict) or not found.keys() <= {"command", "tables", "purpose", "slot"}:
        raise InvalidCommand("not an object with only the fields command, tables, purpose and slot")
    tables = found.get("tables", [])
    if not isinstance(tables, list):
        raise InvalidCommand("tables is not a list")
    names = [parse_relation(name) if isinstance(name, str) else None for name in tables]
    command = Command(
        found.get("command", "start"),
        tuple(name for name in names if name is not None),
        found.get("purpose", "REPLACE"),
        found.get("slot", ""),
    )
    if None in names:
        raise InvalidCommand("a table name does not have the form schema.table")
    if command.command not in COMMANDS or command.purpose not in PURPOSES or not isinstance(command.slot, str):
        raise InvalidCommand("an unknown command or purpose")
    if command.tables and command.command != "start":
        raise InvalidCommand(f"{command.command} takes no tables: it applies to every table that is being read")
    return command


def accepted(content: bytes, settings: Settings, *, in_stream: bool, is_second: bool = False) -> Command | None:
    """Return the command of a message in the stream, or None if it is for another gateway, is
    invalid or is refused; the last two are logged. The command takes effect where its transaction
    commits. `in_stream`: its transaction is streamed or prepared. `is_second`: another command, or
    a chunk, came before it in the transaction."""
    try:
        command = parse_command(content)
    except InvalidCommand as error:
        log.warning("command_not_understood", reason=str(error))
        return None
    if command.slot not in ("", settings.source.slot):
        return None
    reason = ""
    if not settings.snapshot.commands:
        reason = "snapshot.commands is false"
    elif in_stream:
        reason = "it was sent in a large or prepared transaction: send it in a transaction of its own"
    elif is_second:
        reason = "another command was sent before it in the same transaction: send each in a transaction of its own"
    elif command.purpose == "VERIFY" and settings.writes_debezium:
        reason = "kafka.dialect is debezium: consumers of Debezium's format cannot compare rows with their copies"
    if reason:
        log.warning("command_refused", command=command.command, reason=reason)
        return None
    return command


@dataclass(frozen=True, slots=True)
class Choice:
    """The tables that a `start` command reads and leaves out.

    `tables`: the tables to be read, (schema, table) by oid. The other fields name tables that are
    left out. `unknown`: they are not published. `quarantined`: their changes are not written, so
    their rows would soon be outdated. `unfinished`: consumers need the rows of their unfinished
    snapshots, which a VERIFY would end for good.
    """

    tables: dict[int, tuple[str, str]]
    unknown: list[str]
    quarantined: list[str]
    unfinished: list[str]


def choose(
    command: Command,
    published: Mapping[tuple[str, str], int],
    under_way: Mapping[int, str],
    quarantined: Container[int] = (),
) -> Choice:
    """Choose the tables that a `start` command reads.

    `published` has the oids of the published tables, `under_way` the purposes of unfinished
    snapshots by oid, and `quarantined` the oids of the tables in quarantine.
    """
    choice = Choice({}, [], [], [])
    for name in command.tables or published:
        oid = published.get(name)
        if oid is None:
            choice.unknown.append(".".join(name))
        elif oid in quarantined:
            choice.quarantined.append(".".join(name))
        elif command.purpose == "VERIFY" and under_way.get(oid, "VERIFY") != "VERIFY":
            choice.unfinished.append(".".join(name))
        else:
            choice.tables[oid] = name
    return choice


def encode_command(command: str, tables: Sequence[str], purpose: str, slot: str) -> str:
    """Return the content of the message for a command. Raises InvalidCommand."""
    if wrong := [table for table in tables if parse_relation(table) is None]:
        raise InvalidCommand(f"not a table name: {', '.join(wrong)}; expected schema.table, such as public.orders")
    body: dict[str, object] = {"command": command, "slot": slot}
    if tables:
        body["tables"] = list(tables)
    if purpose != "REPLACE":
        body["purpose"] = purpose
    text = json.dumps(body)
    parse_command(text.encode())
    return text


async def unpublished(login: Credentials, publications: Sequence[str], tables: Sequence[str]) -> dict[str, str]:
    """Return the tables (schema.table) that are in none of the publications, each with the
    published table that was probably meant, or "". Raises WalgateError."""
    async with sql_session(login) as sql:
        facts = await publication_facts(sql, publications)
    published = {(r.namespace, r.name) for each in facts.values() for r in each.relations}
    names = [format_relation(namespace, name) for namespace, name in sorted(published)]
    return {
        table: next(iter(get_close_matches(table, names, 1)), "")
        for table in tables
        if parse_relation(table) not in published
    }


async def emit_command(login: Credentials, text: str) -> Lsn:
    """Emit a command and return its LSN. Whatever the command begins has a higher LSN. Raises
    WalgateError."""
    async with sql_session(login) as sql:
        with classified_errors("sending a command"):
            found = await sql.fetchval(_EMIT, COMMAND_PREFIX, text)
    return Lsn.parse(found)
