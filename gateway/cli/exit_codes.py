"""Exit codes of the commands, and the option that all commands have."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.errors import StopForOperator, WalgateError
from gateway.observe.logs import set_up_logs

EXIT_FAILURE = 1
EXIT_USAGE = 2  # the code that an unknown option gives
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: an operator must make a decision, a restart does not help

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file; see docs/settings.md.")]


def exit_code(error: WalgateError) -> int:
    return EXIT_CONFIGURATION if isinstance(error, StopForOperator) else EXIT_FAILURE


@contextmanager
def command() -> Iterator[None]:
    """Run the body of a command. A WalgateError ends the process with its exit code."""
    set_up_logs("console")
    try:
        yield
    except WalgateError as error:
        fail(error)


def set_up_silence() -> None:
    """Silence the logs of client libraries, which would appear among the command's output when a
    server cannot be reached."""
    set_up_logs("console", "error")
    logging.disable()


def usage_error(text: str) -> NoReturn:
    """End the process because of options that cannot be combined."""
    print(f"walgate: {text}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def fail(error: WalgateError) -> NoReturn:
    print(f"walgate: {error}", file=sys.stderr)
    raise SystemExit(exit_code(error))
