"""`walgate skip`, `readmit`, `accept-gap` and `adopt`: an operator's decisions, which change the
stored position of a slot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.event_loop import run_on_loop
from gateway.cli.exit_codes import ConfigOption, command, fail
from gateway.config.settings import load_settings
from gateway.errors import StopForOperator
from schemas.lsn import Lsn

if TYPE_CHECKING:
    from gateway.cli.apply_position_change import PositionChange
    from gateway.transactions.position import Position


def skip(
    lsn: Annotated[str, typer.Option(help="Commit LSN of the transaction, from the gateway's error message.")],
    config: ConfigOption = None,
) -> None:
    """Skip one transaction, for all its tables, at the next start. A SKIP marker takes its place in
    the marker topic (not in Debezium's record format)."""
    from gateway.startup import position_changes

    with command():
        commit_lsn = _lsn(lsn)
    position = _carry_out(config, lambda fresh, _: position_changes.skip(fresh, commit_lsn))
    print(
        f"slot {position.slot}: the transaction that commits at {position.skip_lsn} will be skipped; start the gateway"
    )


def readmit(
    table: Annotated[str, typer.Argument(help="schema.table")],
    config: ConfigOption = None,
) -> None:
    """End the quarantine of a table: its changes are written again, starting with the next
    transaction."""
    from gateway.startup import position_changes

    position = _carry_out(config, lambda fresh, _: position_changes.readmit(fresh, table))
    print(
        f"slot {position.slot}: changes of {table} will be written from {position.resume_lsn} on. The "
        "excluded changes are not in its topic: a copy of the table is complete only after a new snapshot "
        "of it (walgate snapshot start)"
    )


def accept_gap(
    config: ConfigOption = None,
    until_now: Annotated[
        bool,
        typer.Option(
            "--until-now",
            help="Discard all changes that were committed before now and have not been delivered, even if the slot "
            "still has them.",
        ),
    ] = False,
) -> None:
    """Resume after changes were lost, with the same slot and prefix. A GAP marker informs consumers
    (not in Debezium's record format)."""
    from gateway.startup import position_changes

    position = _carry_out(
        config, lambda fresh, expected: position_changes.accept_gap(fresh, expected, until_now=until_now)
    )
    print(
        f"slot {position.slot}: resumes at {position.resume_lsn}. Changes committed in the gap are not in "
        "Kafka: start the gateway, then take a new snapshot of the tables (walgate snapshot start)"
    )


def adopt(
    config: ConfigOption = None,
    from_system: Annotated[
        str | None,
        typer.Option(
            help="System identifier that the server had before pg_upgrade. (pg_upgrade preserves slots if the old server is "
            "PostgreSQL 17 or later.)"
        ),
    ] = None,
    from_debezium: Annotated[
        Path | None,
        typer.Option(help="The connector's offset: offsets.dat, or JSON from Kafka Connect (docs/debezium.md)."),
    ] = None,
) -> None:
    """Resume where the previous consumer of the slot stopped: the gateway before pg_upgrade, or a
    stopped Debezium connector."""
    from gateway.startup import position_changes

    if (from_system is None) == (from_debezium is None):
        fail(StopForOperator("adopt needs either --from-system or --from-debezium"))
    if from_debezium is not None:
        position = _adopt_from_debezium(config, from_debezium)
    else:
        position = _carry_out(
            config, lambda fresh, expected: position_changes.adopt(fresh, expected, from_system or "")
        )
    print(
        f"slot {position.slot}: resumes at {position.resume_lsn}, with system identifier "
        f"{position.system_identifier}; start the gateway"
    )


def _adopt_from_debezium(config: Path | None, path: Path) -> Position:
    with command():
        from gateway.startup.connect_offset import load_offset
        from gateway.startup.position_changes import adopt_from_debezium

        settings = load_settings(config)
        if not settings.writes_debezium:
            raise StopForOperator(
                "adopt: the topics of a connector can be continued only in Debezium's record format",
                hint="set kafka.dialect = debezium",
            )
        offset = load_offset(path, settings.kafka.prefix)
    return _carry_out(config, lambda fresh, expected: adopt_from_debezium(fresh, expected, offset))


def _carry_out(config: Path | None, steps: PositionChange) -> Position:
    with command():
        from gateway.cli.apply_position_change import carry_out

        return run_on_loop(carry_out(load_settings(config), steps))


def _lsn(text: str) -> Lsn:
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise StopForOperator(f"{text!r} is not an LSN", hint="expected the form 16/B374D848") from error
