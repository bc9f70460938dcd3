"""`walgate snapshot ...` and `walgate verify`: commands to the running gateway, sent through its
replication stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import exit_codes
from gateway.cli.event_loop import run_on_loop
from gateway.cli.exit_codes import EXIT_CONFIGURATION, ConfigOption
from gateway.config.settings import load_settings
from gateway.errors import StopForOperator, WalgateError
from gateway.names import is_table
from gateway.observe.logs import set_up_logs

if TYPE_CHECKING:
    from gateway.config.settings import Settings

snapshot_app = typer.Typer(
    no_args_is_help=True,
    help="Read existing rows. Commands are sent to the running gateway through its replication stream (docs/snapshot.md).",
)


@snapshot_app.command("start")
def snapshot_start(
    tables: Annotated[list[str] | None, typer.Argument(help="schema.table; default: every published table.")] = None,
    config: ConfigOption = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Have consumers compare the rows with their copies instead of replacing them."),
    ] = False,
) -> None:
    """Read tables again. Consumers replace their copies: rows that no longer exist in PostgreSQL
    are deleted."""
    _send_command(config, "start", tables or [], "VERIFY" if verify else "REPLACE")


@snapshot_app.command("pause")
def snapshot_pause(config: ConfigOption = None) -> None:
    """Pause reading until `walgate snapshot resume` is run. The pause survives restarts of the
    gateway."""
    _send_command(config, "pause")


@snapshot_app.command("resume")
def snapshot_resume(config: ConfigOption = None) -> None:
    """Resume reading after a pause."""
    _send_command(config, "resume")


@snapshot_app.command("cancel")
def snapshot_cancel(config: ConfigOption = None) -> None:
    """Cancel everything that is being read. Rows already read stay in the topics; tables whose
    reading was canceled get no SNAPSHOT_END."""
    _send_command(config, "cancel")


@snapshot_app.command("status")
def snapshot_status(config: ConfigOption = None) -> None:
    """Show the durable progress: each table, and the number of rows read from it."""
    with exit_codes.command():
        from gateway.cli.stream_server import stream_login
        from gateway.runtime.snapshot_status import snapshot_status as read_status
        from gateway.runtime.snapshot_status import status_lines

        settings = load_settings(config)
        login = run_on_loop(stream_login(settings.source))
        for line in status_lines(*run_on_loop(read_status(settings, login))):
            print(line)


def verify(
    mirror: Annotated[
        str, typer.Option("--mirror", help="The path of the mirror (walgate mirror --path): a directory, or a URL.")
    ],
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", help="schema.table or table, with * and ?. May be repeated. Default: every table."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace tables that are different, and compare them again.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, help="Give up after this many seconds in which neither the gateway nor the mirror advances."
        ),
    ] = 600.0,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare a mirror with PostgreSQL, row by row, while both change: the running gateway reads
    the tables, the mirror compares them. Exit code 0: equal; 1: different; 2: no result, or a table
    is not in the mirror; 78: an operator must make a decision."""
    set_up_logs("console", "error")
    from gateway.cli import verify as verifying

    try:
        settings = load_settings(config)
        _check_commands(settings, "VERIFY")
        outcome = run_on_loop(
            verifying.verify(
                settings,
                mirror,
                tables or [],
                repair=repair,
                patience_s=timeout,
                tell=lambda line: print(line, file=sys.stderr, flush=True),
            )
        )
    except WalgateError as error:
        print(f"walgate: {error}", file=sys.stderr)
        raise SystemExit(EXIT_CONFIGURATION if isinstance(error, StopForOperator) else verifying.UNDECIDED) from None
    print(json.dumps(verifying.as_json(outcome)) if as_json else verifying.render(outcome))
    raise SystemExit(outcome.exit_code)


def _check_commands(settings: Settings, purpose: str) -> None:
    """Raise StopForOperator unless the gateway accepts snapshot commands of this purpose."""
    if not settings.takes_snapshots:
        raise StopForOperator(
            "snapshot.mode = never: the gateway does not accept snapshot commands",
            hint="set snapshot.mode = initial or on_command, restart the gateway, and run the command again",
        )
    if purpose == "VERIFY" and settings.writes_debezium:
        raise StopForOperator(
            "kafka.dialect is debezium: consumers of Debezium's format cannot compare rows with their copies",
            hint="to have the rows sent again instead, omit --verify",
        )
    if not settings.snapshot.commands:
        raise StopForOperator(
            "snapshot.commands is false: the gateway does not accept commands",
            hint="set snapshot.commands = true, restart the gateway, and run the command again",
        )


def _send_command(config: Path | None, command: str, tables: Sequence[str] = (), purpose: str = "REPLACE") -> None:
    with exit_codes.command():
        settings = load_settings(config)
        _check_commands(settings, purpose)
        from gateway.cli.stream_server import stream_login
        from gateway.snapshot.commands import InvalidCommand, emit_command, encode_command, unpublished

        try:
            text = encode_command(command, tables, purpose, settings.source.slot)
        except InvalidCommand as error:
            raise StopForOperator(f"snapshot {command}: {error}") from None
        patterns = settings.source.excluded_tables
        if excluded := [table for table in tables if is_table(table, patterns)]:
            raise StopForOperator(
                f"snapshot {command}: left out by source.excluded_tables: {', '.join(excluded)}",
                hint="to read and send these tables, set source.excluded_tables to patterns that do not match them, and restart "
                "the gateway",
            )
        login = run_on_loop(stream_login(settings.source))
        if tables and (unknown := run_on_loop(unpublished(login, settings.source.publications, tables))):
            near = [name for name in unknown.values() if name]
            meant = f"did you mean {', '.join(near)}? " if near else ""
            raise StopForOperator(
                f"snapshot {command}: not published by {', '.join(settings.source.publications)}: {', '.join(unknown)}",
                hint=f"{meant}check the names; ALTER PUBLICATION ... ADD TABLE publishes a table",
            )
        lsn = run_on_loop(emit_command(login, text))
        print(f"sent at {lsn}: walgate snapshot status shows the progress", file=sys.stderr)
