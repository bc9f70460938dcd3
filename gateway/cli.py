"""The command line: `walgate run`, `walgate demo`, and the Spark jobs."""

from __future__ import annotations

import gateway.early_signals  # noqa: F401  # before what takes long to import

# isort: split
import asyncio
import json
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import structlog
import typer

from gateway.build import build_name
from gateway.lsn import Lsn
from gateway.operate.errors import StopForOperator, WalgateError
from gateway.operate.health import probe
from gateway.operate.logs import LogFormat, LogLevel, set_up_logs
from gateway.operate.settings import load_http_settings, load_reading_settings, load_settings

if TYPE_CHECKING:
    from gateway.operate.settings import Settings
    from gateway.service.repair import Repair
    from gateway.transactions.position import Position

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Stream PostgreSQL's logical replication to Kafka as Avro change events, and rebuild complete transactions in Spark.",
)

_EXIT_FAILURE = 1
_EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: an operator must decide, starting again does not help

log = structlog.get_logger()

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file; see docs/settings.md.")]


@app.callback()
def _everywhere(
    _: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=lambda wanted: _print_version(wanted), help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: ConfigOption = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="json: one object per line, including the error that ends the process.")
    ] = "console",
    log_level: Annotated[LogLevel, typer.Option(help="Lowest level that is logged.")] = "info",
) -> None:
    """Run the gateway: stream one slot to Kafka until SIGTERM or Ctrl-C. Exit code 0, or 78 if an operator must make a decision
    (configuration, incompatible schema, changes that would be lost); in that case, a restart alone does not help."""
    set_up_logs(log_format, log_level)
    try:
        settings = load_settings(config)
        import uvloop

        from gateway.service.supervisor import serve

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except WalgateError as error:
        if log_format == "console":
            _fail(error)
        log.critical("stopped", exit_code=_exit_code(error), reason=error.message, hint=error.hint)
        raise SystemExit(_exit_code(error)) from None


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def mirror(context: typer.Context) -> None:
    """Rebuild the tables in Delta from the topics (Spark). `walgate mirror --help` lists the options."""
    _run_spark_job("mirror", context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def merge(context: typer.Context) -> None:
    """Merge appended changes into the tables of a mirror (Spark). `walgate merge --help` lists the options."""
    _run_spark_job("merge", context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def consume(context: typer.Context) -> None:
    """Append every committed change to a changelog (Spark). `walgate consume --help` lists the options."""
    _run_spark_job("consume", context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def dump(context: typer.Context) -> None:
    """Write the rows of a local mirror, without Spark. `walgate dump --help` lists the options."""
    _run_spark_job("dump", context.args)


@app.command()
def tail(
    config: ConfigOption = None,
    publications: Annotated[
        list[str] | None, typer.Option("--publication", help="May be repeated; default: source.publications.")
    ] = None,
    topics: Annotated[
        bool, typer.Option("--topics", help="Change events and markers from Kafka, instead of PostgreSQL's messages.")
    ] = False,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="schema.table or table, with * and ?. May be repeated.")
    ] = None,
    operations: Annotated[
        list[str] | None,
        typer.Option("--op", help="insert, update, delete, truncate, message, read (snapshot). May be repeated."),
    ] = None,
    in_progress: Annotated[
        bool, typer.Option("--in-progress", help="Also show large transactions that are still in progress.")
    ] = False,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="With --topics: show existing records too, not only new ones.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many lines.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this many seconds.")] = None,
) -> None:
    """Print changes, including row values, as they are committed. Uses a temporary slot that is dropped when the command ends."""
    with _command():
        from gateway.tail.chosen import Chosen
        from gateway.tail.commands import tail_messages, tail_records

        chosen = Chosen(tables or (), operations or ())
        if topics:
            kafka, registry = load_reading_settings(config)
            asyncio.run(
                tail_records(
                    kafka,
                    registry,
                    chosen,
                    as_json=json_lines,
                    from_beginning=from_beginning,
                    limit=limit,
                    seconds=seconds,
                )
            )
        else:
            asyncio.run(
                tail_messages(
                    load_settings(config),
                    publications or (),
                    chosen,
                    as_json=json_lines,
                    in_progress=in_progress,
                    limit=limit,
                    seconds=seconds,
                )
            )


@app.command()
def decode(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE|HEX|-]...", help="Default: stdin, one message per line, in hexadecimal."),
    ] = None,
    config: ConfigOption = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    protocol_version: Annotated[int, typer.Option(min=1, max=4, help="proto_version of the stream.")] = 4,
    in_stream: Annotated[
        bool,
        typer.Option("--in-stream", help="The first message is inside a stream segment: it has an additional xid."),
    ] = False,
) -> None:
    """Decode and print pgoutput messages, or records in Confluent's wire format (using the configured registry)."""
    with _command():
        from gateway.tail.commands import decode_given

        _, registry = load_reading_settings(config)
        asyncio.run(
            decode_given(
                sources or ["-"], registry, as_json=json_lines, protocol_version=protocol_version, in_stream=in_stream
            )
        )


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, help="How long the workload runs.")] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed produces the same workload.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the tables and the logs, and print their directory.")
    ] = False,
    kill_gateway: Annotated[bool, typer.Option("--kill-gateway", help="kill -9 the gateway during the run.")] = False,
) -> None:
    """Run a workload on local services, PostgreSQL to Kafka to Spark, and compare every value. Needs the extras local and
    spark."""
    _require("demo", "local,spark", "jgo", "pyspark", "delta", "pyarrow")
    from gateway.demo.demo import run_demo

    raise SystemExit(run_demo(seconds=seconds, seed=seed, keep=keep, kill_gateway=kill_gateway))


snapshot_app = typer.Typer(
    no_args_is_help=True,
    help="Read existing rows. Commands are sent to the running gateway through its replication stream (docs/snapshot.md).",
)
app.add_typer(snapshot_app, name="snapshot")


@snapshot_app.command("start")
def snapshot_start(
    tables: Annotated[list[str] | None, typer.Argument(help="schema.table; default: every published table.")] = None,
    config: ConfigOption = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Have consumers compare the rows with their copies instead of replacing them."),
    ] = False,
) -> None:
    """Read tables again. Consumers replace their copies: rows that no longer exist in PostgreSQL are deleted."""
    _send_command(config, "start", tables or [], "VERIFY" if verify else "REPLACE")


@snapshot_app.command("pause")
def snapshot_pause(config: ConfigOption = None) -> None:
    """Pause reading until `walgate snapshot resume` is run. The pause survives restarts of the gateway."""
    _send_command(config, "pause")


@snapshot_app.command("resume")
def snapshot_resume(config: ConfigOption = None) -> None:
    """Resume reading after a pause."""
    _send_command(config, "resume")


@snapshot_app.command("cancel")
def snapshot_cancel(config: ConfigOption = None) -> None:
    """Cancel everything that is being read. Rows already read stay in the topics; tables whose reading was canceled get no
    SNAPSHOT_END."""
    _send_command(config, "cancel")


@snapshot_app.command("status")
def snapshot_status(config: ConfigOption = None) -> None:
    """Show the durable progress: each table, and the number of rows read from it."""
    with _command():
        from gateway.service.snapshot_status import snapshot_status as read_status
        from gateway.service.snapshot_status import status_lines

        for line in status_lines(asyncio.run(read_status(load_settings(config)))):
            print(line)


@app.command()
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
    """Compare a mirror with PostgreSQL, row by row, while both change: the running gateway reads the tables, the mirror compares
    them. Exit code 0: equal; 1: different; 2: no result, or a table is not in the mirror; 78: an operator must make a
    decision."""
    set_up_logs("console", "error")
    from gateway.service import verify as verifying

    try:
        settings = load_settings(config)
        _check_commands(settings, "VERIFY")
        outcome = asyncio.run(
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
        raise SystemExit(_EXIT_CONFIGURATION if isinstance(error, StopForOperator) else verifying.UNDECIDED) from None
    print(json.dumps(verifying.as_json(outcome)) if as_json else verifying.render(outcome))
    raise SystemExit(outcome.exit_code)


def _check_commands(settings: Settings, purpose: str) -> None:
    """Raises StopForOperator."""
    if not settings.takes_snapshots:
        raise StopForOperator(
            "snapshot.mode = never: the gateway does not accept snapshot commands",
            hint="set snapshot.mode to on_command or initial",
        )
    if purpose == "VERIFY" and settings.writes_debezium:
        raise StopForOperator(
            "kafka.dialect is debezium: consumers of Debezium's format cannot compare rows with their copies",
            hint="to have the rows sent again instead, omit --verify",
        )
    if not settings.snapshot.commands:
        raise StopForOperator(
            "snapshot.commands is false: the gateway does not accept commands", hint="set snapshot.commands to true"
        )


def _send_command(config: Path | None, command: str, tables: Sequence[str] = (), purpose: str = "REPLACE") -> None:
    with _command():
        settings = load_settings(config)
        _check_commands(settings, purpose)
        from gateway.replication.password import login_of
        from gateway.snapshot.commands import NotACommand, emit_command, encode_command, unpublished

        try:
            text = encode_command(command, tables, purpose, settings.source.slot)
        except NotACommand as error:
            raise StopForOperator(f"snapshot {command}: {error}") from None
        login = login_of(settings.source)
        if tables and (unknown := asyncio.run(unpublished(login, settings.source.publications, tables))):
            raise StopForOperator(
                f"snapshot {command}: not published by {', '.join(settings.source.publications)}: {', '.join(unknown)}",
                hint="check the names; ALTER PUBLICATION ... ADD TABLE publishes a table",
            )
        lsn = asyncio.run(emit_command(login, text))
        print(f"sent at {lsn}: walgate snapshot status shows the progress", file=sys.stderr)


@app.command()
def health(config: ConfigOption = None) -> None:
    """Ask a running gateway whether it is streaming. Exit code 0, or 1 with the reason. Needs only http.port."""
    try:
        settings = load_http_settings(config)
        if settings.port is None:
            raise StopForOperator("health: http.port is not set")
    except WalgateError as error:
        _fail(error)
    waiting_for = probe(settings.host, settings.port)
    print(f"waiting for {waiting_for}" if waiting_for else "streaming")
    raise SystemExit(_EXIT_FAILURE if waiting_for else 0)


@app.command()
def check(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check PostgreSQL, Kafka, the registry, privileges and settings without changing anything, and say how to fix each problem.
    Exit code 0: the gateway would start; 1: it would wait for a fix; 78: it would exit, because an operator must make a
    decision."""
    _set_up_silence()
    from gateway.service import check as checking

    try:
        checked = checking.check(load_settings(config))
    except WalgateError as error:
        checked = [checking.Checked("settings", "stops", error.message, error.hint)]
    print(json.dumps(checking.as_json(checked)) if as_json else checking.render(checked))
    raise SystemExit(checking.exit_code(checked))


@app.command()
def status(
    config: ConfigOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every 2 s, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; with --watch, one per line.")] = False,
) -> None:
    """Show what the gateway is waiting for, the lag, the retained WAL and what keeps restart_lsn from advancing. Asks the
    gateway if http.port is set, otherwise PostgreSQL and Kafka. Exit code 0: the gateway is streaming; 1: it is waiting or
    down, or its state is unknown."""
    _set_up_silence()
    from gateway.service.status_report import show_status

    try:
        raise SystemExit(show_status(load_settings(config), watch=watch, as_json=as_json))
    except WalgateError as error:
        _fail(error)
    except KeyboardInterrupt:
        raise SystemExit(0) from None


@app.command()
def skip(
    lsn: Annotated[str, typer.Option(help="Commit LSN of the transaction, from the gateway's error message.")],
    config: ConfigOption = None,
) -> None:
    """Skip one transaction, for all its tables, at the next start. A SKIP marker takes its place in the marker topic."""
    from gateway.judgement import repair

    with _command():
        commit_lsn = _lsn(lsn)
    position = _repair(config, lambda fresh, _: repair.skip(fresh, commit_lsn))
    print(
        f"slot {position.slot}: the transaction that commits at {position.skip_lsn} will be skipped; start the gateway"
    )


@app.command()
def readmit(
    table: Annotated[str, typer.Argument(help="schema.table")],
    config: ConfigOption = None,
) -> None:
    """End the quarantine of a table: its changes are written again, starting with the next transaction."""
    from gateway.judgement import repair

    position = _repair(config, lambda fresh, _: repair.readmit(fresh, table))
    print(
        f"slot {position.slot}: changes of {table} will be written from {position.resume_lsn} on. The "
        "excluded changes are not in its topic: a copy of the table is complete only after a new snapshot "
        "of it (walgate snapshot start)"
    )


@app.command()
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
    """Resume after changes were lost, with the same slot and prefix. A GAP marker informs consumers."""
    from gateway.judgement import repair

    position = _repair(config, lambda fresh, expected: repair.accept_gap(fresh, expected, until_now=until_now))
    print(
        f"slot {position.slot}: resumes at {position.resume_lsn}. Changes committed in the gap are not in "
        "Kafka: start the gateway, then take a new snapshot of the tables (walgate snapshot start)"
    )


@app.command()
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
    """Resume where the previous consumer of the slot stopped: the gateway before pg_upgrade, or a stopped Debezium connector."""
    from gateway.judgement import repair

    if (from_system is None) == (from_debezium is None):
        _fail(StopForOperator("adopt needs either --from-system or --from-debezium"))
    if from_debezium is not None:
        position = _repair_from_debezium(config, from_debezium)
    else:
        position = _repair(config, lambda fresh, expected: repair.adopt(fresh, expected, from_system or ""))
    print(
        f"slot {position.slot}: resumes at {position.resume_lsn}, with system identifier "
        f"{position.system_identifier}; start the gateway"
    )


def _repair_from_debezium(config: Path | None, path: Path) -> Position:
    with _command():
        from gateway.judgement.debezium_offset import load_offset
        from gateway.judgement.repair import adopt_from_debezium

        settings = load_settings(config)
        if not settings.writes_debezium:
            raise StopForOperator(
                "adopt: the topics of a connector can be continued only in Debezium's record format",
                hint="set kafka.dialect = debezium",
            )
        offset = load_offset(path, settings.kafka.prefix)
    return _repair(config, lambda fresh, expected: adopt_from_debezium(fresh, expected, offset))


def _repair(config: Path | None, steps: Repair) -> Position:
    with _command():
        from gateway.service.repair import repair

        return asyncio.run(repair(load_settings(config), steps))


def _lsn(text: str) -> Lsn:
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise StopForOperator(f"{text!r} is not an LSN", hint="expected the form 16/B374D848") from error


@app.command()
def version() -> None:
    """Print the version, and whether this build is compiled."""
    _print_version(True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{package_version('walgate')}, {build_name()}")
        raise typer.Exit


def _run_spark_job(name: str, arguments: list[str]) -> NoReturn:
    """The reader is a program of its own, so that the gateway never needs Spark. It takes the place of this one, so that a signal
    reaches it. Once its options are right, it asks gateway.local.spark for Java and the jars of Delta."""
    _require(name, "spark", *(("pyarrow",) if name == "dump" else ("pyspark", "delta", "pyarrow", "confluent_kafka")))
    program = [sys.executable, "-P", "-m"]
    environment = dict(os.environ)
    if find_spec("jgo"):  # without the extra `local`, Java and jars are where Spark itself looks for them
        environment["WALGATE_SPARK_SETUP"] = shlex.join([*program, "gateway.local.spark"])
    os.execve(sys.executable, [*program, "spark_consumer", name, *arguments], environment)


def _require(command: str, extra: str, *modules: str) -> None:
    """Exit 78 with the extra to install, where one of its modules is missing."""
    if not all(map(find_spec, modules)):
        _fail(StopForOperator(f"walgate {command} needs more packages: pip install 'walgate[{extra}]'"))


def _exit_code(error: WalgateError) -> int:
    return _EXIT_CONFIGURATION if isinstance(error, StopForOperator) else _EXIT_FAILURE


@contextmanager
def _command() -> Iterator[None]:
    """What a command does. An error ends it with its exit code."""
    set_up_logs("console")
    try:
        yield
    except WalgateError as error:
        _fail(error)


def _set_up_silence() -> None:
    """What is found is printed; what the clients log of a server that is away would only be in between."""
    set_up_logs("console", "error")
    logging.disable()


def _fail(error: WalgateError) -> NoReturn:
    print(f"walgate: {error}", file=sys.stderr)
    raise SystemExit(_exit_code(error))


def main() -> None:
    try:
        app()
    except WalgateError as error:  # of an import
        _fail(error)


if __name__ == "__main__":
    main()
