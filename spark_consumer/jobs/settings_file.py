"""`--config FILE`: what the command line would say, in TOML, with secrets in files of their own.

    bootstrap_servers = "broker:9093"       # options of the command, by their names with _ for -
    registry = "https://registry/apis/ccompat/v7"
    path = "s3a://lake/mirror"
    tables = ["public.orders", "public.items"]

    [options]                               # of the data source
    "kafka.sasl.username" = "mirror"
    "kafka.sasl.password" = { file = "/run/secrets/kafka" }

The command line wins over the file. A secret is what its file holds, without the line's end; it is read at the start.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spark_consumer.errors import OptionError


def load_settings(path: Path, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Options of the command, whose `names` these are, and options of the data source. Raises OptionError."""
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as problem:
        raise OptionError(f"--config {path}: {problem.strerror}") from None
    except tomllib.TOMLDecodeError as problem:
        raise OptionError(f"--config {path}: {problem}") from None
    options = found.pop("options", {})
    if not isinstance(options, dict):
        raise OptionError(
            f"--config {path}: options is not a table", hint="Write [options], followed by names and values."
        )
    known = set(names)
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise OptionError(
                f"--config {path}: unknown setting {name!r}", hint=f"Did you mean {near[0]}?" if near else ""
            )
    command = {name: ",".join(value) if isinstance(value, list) else value for name, value in found.items()}
    return command, {name: _text(path, name, value) for name, value in _flat(options)}


def _flat(options: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """kafka.sasl.password without quotes is a table in a table."""
    for name, value in options.items():
        if isinstance(value, dict) and set(value) != {"file"}:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _text(path: Path, name: str, value: Any) -> str:
    if isinstance(value, dict):
        try:
            return Path(value["file"]).read_text().rstrip("\r\n")
        except OSError as problem:
            raise OptionError(f"--config {path}: {name}: {value['file']}: {problem.strerror}") from None
    return str(value).lower() if isinstance(value, bool) else str(value)
