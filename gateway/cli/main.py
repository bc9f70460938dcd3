"""The command line: declares the commands of `walgate`, and starts the Spark jobs."""

from __future__ import annotations

import gateway.early_signals  # noqa: F401  # before the slow imports

# isort: split
import json
import os
import re
import shlex
import sys
from importlib.metadata import version as package_version
from importlib.util import find_spec
from typing import Annotated, NoReturn

import structlog
import typer

from gateway.build import build_name
from gateway.cli.event_loop import run_on_loop
from gateway.cli.exit_codes import EXIT_FAILURE, ConfigOption, command, exit_code, fail, set_up_silence, usage_error
from gateway.cli.positions import accept_gap, adopt, readmit, skip
from gateway.cli.snapshots import snapshot_app, verify
from gateway.config.settings import load_http_settings, load_reading_settings, load_settings
from gateway.errors import StopForOperator, WalgateError
from gateway.observe.http_client import probe
from gateway.observe.logs import LogFormat, LogLevel, set_up_logs

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Stream PostgreSQL's logical replication to Kafka as Avro change events, and rebuild complete transactions in Spark.",
)

log = structlog.get_logger()

RUN, INSPECT, REPAIR = "Run", "Inspect", "Repair: after a stop, a gap or a quarantine"
CONSUME, TRY = "Consume: Spark and Delta", "Try"
PANELS = (RUN, INSPECT, REPAIR, CONSUME, TRY)
"""The groups of commands, in the order in which the help shows them."""
ORDER = (
    "run",
    *("check", "status", "health", "tail", "decode", "verify", "versions", "version"),
    *("readmit", "skip", "accept_gap", "adopt"),
    *("mirror", "merge", "consume", "dump"),
    "demo",
)

_SPARK_MODULES = ("pyspark", "delta", "pyarrow", "confluent_kafka")
SPARK_JOBS = {
    **dict.fromkeys(("mirror", "merge", "consume"), _SPARK_MODULES),
    **dict.fromkeys(("dump", "versions"), ("pyarrow",)),
}
"""The modules that each Spark job needs."""
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The settings of a command whose options are those of the Spark job."""


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


@app.command(rich_help_panel=RUN)
def run(
    config: ConfigOption = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="json: one object per line, including the error that ends the process.")
    ] = "console",
    log_level: Annotated[LogLevel, typer.Option(help="Lowest level that is logged.")] = "info",
) -> None:
    """Run the gateway: stream one slot to Kafka until SIGTERM or Ctrl-C. Exit code 0, or 78 if an
    operator must make a decision (configuration, incompatible schema, changes that would be lost);
    in that case, a restart alone does not help."""
    set_up_logs(log_format, log_level)
    try:
        settings = load_settings(config)
        from gateway.runtime.supervisor import serve

        run_on_loop(serve(settings))
    except WalgateError as error:
        if log_format == "console":
            fail(error)
        log.critical("stopped", exit_code=exit_code(error), reason=error.message, hint=error.hint)
        raise SystemExit(exit_code(error)) from None


@app.command(context_settings=_PASSED_ON, rich_help_panel=CONSUME)
def mirror(context: typer.Context) -> None:
    """Rebuild the tables in Delta from the topics (Spark). `walgate mirror --help` lists the
    options."""
    _run_spark_job("mirror", context.args)


@app.command(context_settings=_PASSED_ON, rich_help_panel=CONSUME)
def merge(context: typer.Context) -> None:
    """Merge appended changes into the tables of a mirror (Spark). `walgate merge --help` lists the
    options."""
    _run_spark_job("merge", context.args)


@app.command(context_settings=_PASSED_ON, rich_help_panel=CONSUME)
def consume(context: typer.Context) -> None:
    """Append every committed change to a changelog (Spark). `walgate consume --help` lists the
    options."""
    _run_spark_job("consume", context.args)


@app.command(context_settings=_PASSED_ON, rich_help_panel=CONSUME)
def dump(context: typer.Context) -> None:
    """Write the rows of a local mirror, without Spark. `walgate dump --help` lists the options."""
    _run_spark_job("dump", context.args)


@app.command(context_settings=_PASSED_ON, rich_help_panel=INSPECT)
def versions(context: typer.Context) -> None:
    """List the versions of a local mirror, or print one as SQL. `walgate versions --help` lists the
    options."""
    _run_spark_job("versions", context.args)


@app.command(rich_help_panel=INSPECT)
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
    """Print changes, including row values, as they are committed. Uses a temporary slot that is
    dropped when the command ends."""
    if topics and (publications or in_progress):
        usage_error(
            "tail: --publication and --in-progress cannot be used with --topics, which reads Kafka, not PostgreSQL"
        )
    if from_beginning and not topics:
        usage_error("tail: --from-beginning needs --topics: PostgreSQL sends only new changes")
    with command():
        from gateway.cli.tail.commands import tail_messages, tail_records
        from gateway.cli.tail.filters import MessageFilter

        chosen = MessageFilter(tables or (), operations or ())
        if topics:
            kafka, registry = load_reading_settings(config)
            run_on_loop(
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
            run_on_loop(
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


@app.command(rich_help_panel=INSPECT)
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
    """Decode and print pgoutput messages, or records in Confluent's wire format (using the
    configured registry)."""
    with command():
        from gateway.cli.tail.commands import decode_given

        _, registry = load_reading_settings(config)
        run_on_loop(
            decode_given(
                sources or ["-"], registry, as_json=json_lines, protocol_version=protocol_version, in_stream=in_stream
            )
        )


@app.command(rich_help_panel=TRY)
def demo(
    seconds: Annotated[float, typer.Option(min=5, help="How long the workload runs.")] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed produces the same workload.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the tables and the logs, and print their directory.")
    ] = False,
    kill_gateway: Annotated[bool, typer.Option("--kill-gateway", help="kill -9 the gateway during the run.")] = False,
) -> None:
    """Run a workload on local services, PostgreSQL to Kafka to Spark, and compare every value.
    Needs the extras local and spark."""
    _require("demo", "local,spark", "jgo", "pyspark", "delta", "pyarrow")
    from gateway.demo.demo import run_demo

    raise SystemExit(run_demo(seconds=seconds, seed=seed, keep=keep, kill_gateway=kill_gateway))


app.add_typer(snapshot_app, name="snapshot", rich_help_panel=RUN)
app.command(rich_help_panel=INSPECT)(verify)


@app.command(rich_help_panel=INSPECT)
def health(config: ConfigOption = None) -> None:
    """Ask a running gateway whether it is streaming. Exit code 0, or 1 with the reason. Needs only
    http.port."""
    try:
        settings = load_http_settings(config)
        if settings.port is None:
            raise StopForOperator(
                "health: http.port is not set",
                hint="set the same http.port for the gateway and for this command: WALGATE_HTTP__PORT, or port = ... under "
                "[http] in the file given with --config",
            )
    except WalgateError as error:
        fail(error)
    waiting_for = probe(settings.host, settings.port)
    print(f"waiting for {waiting_for}" if waiting_for else "streaming")
    raise SystemExit(EXIT_FAILURE if waiting_for else 0)


@app.command(rich_help_panel=INSPECT)
def check(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check PostgreSQL, Kafka, the registry, privileges and settings without changing anything, and
    say how to fix each problem. Exit code 0: the gateway would start; 1: it would wait for a fix;
    78: it would exit, because an operator must make a decision."""
    set_up_silence()
    from gateway.cli import check_report as report
    from gateway.cli.check import run_check

    try:
        checked = run_on_loop(run_check(load_settings(config)))
    except WalgateError as error:
        checked = [report.CheckResult("settings", "stops", error.message, error.hint)]
    print(json.dumps(report.as_json(checked)) if as_json else report.render(checked))
    raise SystemExit(report.exit_code(checked))


@app.command(rich_help_panel=INSPECT)
def status(
    config: ConfigOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every 2 s, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; with --watch, one per line.")] = False,
) -> None:
    """Show what the gateway is waiting for, the lag, the retained WAL and what keeps restart_lsn
    from advancing. Asks the gateway if http.port is set, otherwise PostgreSQL and Kafka. Exit code
    0: the gateway is streaming; 1: it is waiting or down, or its state is unknown."""
    set_up_silence()
    from gateway.cli.status import show_status

    try:
        raise SystemExit(show_status(load_settings(config), watch=watch, as_json=as_json))
    except WalgateError as error:
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(0) from None


for each in (skip, readmit, accept_gap, adopt):
    app.command(rich_help_panel=REPAIR)(each)


@app.command(rich_help_panel=INSPECT)
def version() -> None:
    """Print the version, and whether this build is compiled."""
    _print_version(True)


def _arrange_help() -> None:
    """Order the commands of each group by how often they are needed; the list shows only the first
    sentence of a description."""
    functions = {registered.callback: registered for registered in app.registered_commands if registered.callback}
    for function, registered in functions.items():
        described = " ".join((function.__doc__ or "").split())
        registered.short_help = re.split(r"(?<=\.)\s", described)[0]
    app.registered_commands[:] = [
        functions[each] for each in sorted(functions, key=lambda each: ORDER.index(each.__name__))
    ]


_arrange_help()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{package_version('walgate')}, {build_name()}")
        raise typer.Exit


def _run_spark_job(name: str, arguments: list[str]) -> NoReturn:
    """Replace this process with the Spark job, so that the job receives the signals. The job is a
    separate program, so that the gateway never needs Spark. After the job has parsed its options,
    it runs gateway.local.spark to find Java and Delta's jars."""
    _require(name, "spark", *SPARK_JOBS[name])
    program = [sys.executable, "-P", "-m"]
    environment = dict(os.environ)
    if find_spec("jgo"):  # without the extra `local`, Spark finds Java and the jars alone
        environment["WALGATE_SPARK_SETUP"] = shlex.join([*program, "gateway.local.spark"])
    os.execve(sys.executable, [*program, "spark_consumer", name, *arguments], environment)


def _require(command: str, extra: str, *modules: str) -> None:
    """Exit with 78 and name the extra to install if one of the modules is missing."""
    if not all(map(find_spec, modules)):
        fail(StopForOperator(f"walgate {command} needs more packages: pip install 'walgate[{extra}]'"))


def _complete_spark_job() -> None:
    """Replace this process with the Spark program if the shell asks to complete the options of a
    Spark job, which only that program knows."""
    if "_WALGATE_COMPLETE" in os.environ:
        words = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
        if len(words) > 1 and words[1] in SPARK_JOBS and all(map(find_spec, SPARK_JOBS[words[1]])):
            os.execv(sys.executable, [sys.executable, "-P", "-m", "spark_consumer"])


def main() -> None:
    _complete_spark_job()
    try:
        app()
    except WalgateError as error:  # raised by an import
        fail(error)


if __name__ == "__main__":
    main()
