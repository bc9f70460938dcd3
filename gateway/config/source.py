"""The section `source` of the settings: the PostgreSQL server, the slot, and what is read from
it."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.section import NOT_EMPTY, File, Names, Section
from gateway.names import IDENTIFIER_RULE, SLOT_RULE, is_identifier, is_slot

EXCLUDED_BY_DEFAULT: Final = ("repack.*", "squeeze.*", "pgroll.*", "_timescaledb_internal.*")
"""Patterns of the tables in which pg_repack, pg_squeeze and pgroll keep copies and logs of other
tables, and in which TimescaleDB keeps the chunks of hypertables."""

_WORD: Final = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.S)
"""A word of a command line, with its quotation marks."""
_OF_A_SHELL: Final = re.compile(r"\|\|?|&&?|;|[0-9]*>>?\S*|<\S*")


class SourceSettings(Section):
    """PostgreSQL, the slot, and what is decoded."""

    dsn: Annotated[SecretStr, NOT_EMPTY] = Field(
        description="libpq connection URI of the database. The role needs LOGIN and REPLICATION."
    )
    password_file: File = Field(
        default=None,
        description="File that contains the password. It is read for each new connection, so the password can change. Use "
        "it instead of a password in dsn.",
    )
    password_command: str = Field(
        default="",
        description="Command that prints the password (a program and its arguments, run without a shell). It is run "
        "for each new connection, for tokens that expire.",
    )
    slot: str = Field(default="walgate", description="Replication slot. It is created on the first start.")
    publications: Names = Field(default=("walgate",), description="Publications. They must exist.")
    excluded_tables: Names = Field(
        default=EXCLUDED_BY_DEFAULT,
        description="Published tables that are left out: `schema.table`, or `table` in any schema, with `*` and `?`. "
        "Their changes are counted, but not written to Kafka. They get no topic, and their rows are not read. The default has "
        "the schemas of tools that copy or rebuild tables. Rows of TimescaleDB's hypertables are in `_timescaledb_internal`: "
        "to send them, set a list without it, and publish the schema.",
    )
    adopt_slot: bool = Field(default=False, description="Use an existing slot although no resume LSN is stored for it.")
    two_phase: bool = Field(
        default=False,
        description="Create the slot with two_phase: transactions are sent at PREPARE TRANSACTION (PostgreSQL 15 and "
        "later).",
    )
    failover: bool = Field(
        default=False,
        description="Create the slot with failover: it is synchronized to standbys (PostgreSQL 17 and later).",
    )
    binary: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Binary format for column values. auto: if every type has a decoder. A database that is not UTF8 "
        "is always read as text.",
    )
    large_transactions: Literal["stream", "whole"] = Field(
        default="stream",
        description="stream: rows of a large transaction are sent while it is in progress. whole: they are sent "
        "after it commits; it must then reach Kafka within kafka.transaction_timeout_s.",
    )
    messages: bool = Field(default=True, description="Logical decoding messages.")
    message_prefixes: Names = Field(
        default=(),
        description="Write only logical decoding messages with one of these prefixes to Kafka. none: write all except "
        "heartbeats.",
    )
    heartbeat_interval_s: float = Field(
        default=0.0,
        ge=0,
        description="Write a heartbeat, a logical decoding message with the prefix `walgate.heartbeat`, at this interval, so "
        "that lag can be measured if nothing else commits. 0: never. It is written to Kafka only if message_prefixes "
        "includes this prefix.",
    )
    origin: Literal["any", "none"] = Field(
        default="any", description="none: skip changes that have a replication origin (PostgreSQL 16 and later)."
    )
    wal_budget_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Amount of WAL that the slot may retain. As the retained WAL approaches it, warnings "
        "of increasing severity are logged. unset: only the server's max_slot_wal_keep_size applies.",
    )
    on_wal_budget: Literal["warn", "advance"] = Field(
        default="warn",
        description="What happens when wal_budget_bytes is reached. warn: nothing more. advance: advance the slot "
        "although changes have not been delivered. A GAP marker names the lost range, and every table is "
        "read again if snapshot.mode allows it.",
    )
    check_interval_s: float = Field(
        default=10.0, gt=0, description="Interval at which the slot and the publications are checked."
    )

    @field_validator("password_command")
    @classmethod
    def _splits(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"not a command line: {error}") from None
        operator = next(filter(_OF_A_SHELL.fullmatch, _WORD.findall(value)), None)
        if operator:
            raise ValueError(
                f"{operator} would be an argument, since the command is not run by a shell. Write sh -c '...', or quote the "
                "argument"
            )
        return value

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.on_wal_budget == "advance" and self.wal_budget_bytes is None:
            raise ValueError("on_wal_budget = advance needs wal_budget_bytes")
        return self

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password_file is not None and self.password_command:
            raise ValueError("set password_file or password_command, not both")
        return self

    @field_validator("slot")
    @classmethod
    def _slot_name(cls, value: str) -> str:
        if not is_slot(value):
            raise ValueError(f"a slot name must consist of {SLOT_RULE}")
        return value

    @field_validator("publications")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not all(map(is_identifier, value)):
            raise ValueError(f"name at least one publication; each name must be {IDENTIFIER_RULE}")
        return value
