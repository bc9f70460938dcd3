"""How a command ends, and the option that all of them have."""

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
EXIT_USAGE = 2  # as of an option that does not exist
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: an operator must decide, starting again does not help

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file; see docs/settings.md.")]


def exit_code(error: WalgateError) -> int:
    return EXIT_CONFIGURATION if isinstance(error, StopForOperator) else EXIT_FAILURE


@contextmanager
def command() -> Iterator[None]:
    """What a command does. An error ends it with its exit code."""
    set_up_logs("console")
    try:
        yield
    except WalgateError as error:
        fail(error)


def set_up_silence() -> None:
    """What is found is printed; what the clients log of a server that is away would only be in
    between."""
    set_up_logs("console", "error")
    logging.disable()


def usage_error(text: str) -> NoReturn:
    """Of options that do not fit together."""
    print(f"walgate: {text}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def fail(error: WalgateError) -> NoReturn:
    print(f"walgate: {error}", file=sys.stderr)
    raise SystemExit(exit_code(error))
