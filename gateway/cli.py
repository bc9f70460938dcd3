"""The command line: `walgate run`, `walgate demo`, and the Spark jobs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.operate.errors import DataGap, RetrySlowly, StopForOperator, WalgateError
from gateway.operate.logs import set_up_logs
from gateway.operate.settings import load_settings

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="PostgreSQL logical replication to Avro change events on Kafka, and whole transactions back in Spark.",
)

_EXIT_FAILURE = 1
_EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: starting again will not help

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file; see docs/settings.md.")]


@app.command()
def run(
    config: ConfigOption = None,
    log_format: Annotated[str, typer.Option(help="console or json")] = "console",
) -> None:
    """Run the gateway: one slot to Kafka, until SIGTERM or Ctrl-C."""
    set_up_logs(log_format)
    try:
        settings = load_settings(config)
        import uvloop

        from gateway.service.supervisor import serve

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except WalgateError as error:
        _fail(error)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def mirror(context: typer.Context) -> None:
    """Rebuild tables in Delta from the topics (Spark); `walgate mirror --help` lists the options."""
    _run_spark_job("mirror", context.args)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def consume(context: typer.Context) -> None:
    """Append every committed change to a changelog (Spark); `walgate consume --help` lists the options."""
    _run_spark_job("consume", context.args)


@app.command()
def version() -> None:
    """Print the version."""
    print(package_version("walgate"))


def _run_spark_job(name: str, arguments: list[str]) -> NoReturn:
    """The reader is a program of its own, so that the gateway never needs Spark."""
    raise SystemExit(subprocess.run([sys.executable, "-m", "spark_consumer", name, *arguments], check=False).returncode)


def _fail(error: WalgateError) -> NoReturn:
    print(f"walgate: {error}", file=sys.stderr)
    permanent = isinstance(error, StopForOperator) and not isinstance(error, (DataGap, RetrySlowly))
    raise SystemExit(_EXIT_CONFIGURATION if permanent else _EXIT_FAILURE)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
