"""The command line: `walgate run`, `walgate demo`, and the Spark jobs."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.build import build_name
from gateway.operate.errors import StopForOperator, WalgateError
from gateway.operate.http import probe
from gateway.operate.logs import set_up_logs
from gateway.operate.settings import load_http_settings, load_settings

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="PostgreSQL logical replication to Avro change events on Kafka, and whole transactions back in Spark.",
)

_EXIT_FAILURE = 1
_EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: a person must decide, starting again will not help

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file; see docs/settings.md.")]


@app.command()
def run(
    config: ConfigOption = None,
    log_format: Annotated[str, typer.Option(help="console or json")] = "console",
) -> None:
    """Run the gateway: one slot to Kafka, until SIGTERM or Ctrl-C. Exit 0; or 78 when a person must decide (configuration,
    incompatible schema, changes that would be lost): starting it again changes nothing."""
    set_up_logs(log_format)
    try:
        settings = load_settings(config)
        import uvloop

        from gateway.service.supervisor import serve

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except WalgateError as error:
        _fail(error)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def mirror(context: typer.Context) -> None:
    """Rebuild tables in Delta from the topics (Spark); `walgate mirror --help` lists the options."""
    _run_spark_job("mirror", context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def consume(context: typer.Context) -> None:
    """Append every committed change to a changelog (Spark); `walgate consume --help` lists the options."""
    _run_spark_job("consume", context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def dump(context: typer.Context) -> None:
    """Write the rows of a local mirror, without Spark; `walgate dump --help` lists the options."""
    _run_spark_job("dump", context.args)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, help="How long the shop's workload runs.")] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed makes the same workload.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the tables and the logs; the folder is told.")] = False,
    kill_gateway: Annotated[bool, typer.Option("--kill-gateway", help="kill -9 the gateway on the way.")] = False,
) -> None:
    """A shop on real servers of its own: PostgreSQL to Kafka to Spark, ending with a verdict. Needs the extras local, spark."""
    from gateway.demo.demo import run_demo

    raise SystemExit(run_demo(seconds=seconds, seed=seed, keep=keep, kill_gateway=kill_gateway))


@app.command()
def health(config: ConfigOption = None) -> None:
    """Ask a running gateway whether it streams: exit 0, or 1 with what it waits for. Needs http.port, and nothing else."""
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
def version() -> None:
    """Print the version, and whether this build is compiled."""
    print(f"{package_version('walgate')}, {build_name()}")


def _run_spark_job(name: str, arguments: list[str]) -> NoReturn:
    """The reader is a program of its own, so that the gateway never needs Spark. It takes the place of this one, so that a signal
    reaches it. Java and the jars of Delta are the local ones unless the environment names others, each by itself."""
    environment = dict(os.environ)
    if name != "dump" and "--help" not in arguments:  # these need no Spark
        with suppress(ImportError):  # without the extra `local`, Java and jars are where Spark itself looks for them
            from gateway.local.spark import spark_environment

            environment |= spark_environment(environment)
    os.execve(sys.executable, [sys.executable, "-m", "spark_consumer", name, *arguments], environment)


def _fail(error: WalgateError) -> NoReturn:
    print(f"walgate: {error}", file=sys.stderr)
    raise SystemExit(_EXIT_CONFIGURATION if isinstance(error, StopForOperator) else _EXIT_FAILURE)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
