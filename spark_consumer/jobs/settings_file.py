"""Settings files (`--config FILE`): a command's options in TOML, with secrets in separate files.

    bootstrap_servers = "broker:9093"       # options of the command, by their names with _ for -
    registry = "https://registry/apis/ccompat/v7"
    path = "s3a://lake/mirror"
    tables = ["public.orders", "public.items"]

    [options]                               # of the data source
    "kafka.sasl.username" = "mirror"
    "kafka.sasl.password" = { file = "/run/secrets/kafka" }

    [conf]                                  # of Spark
    "spark.hadoop.fs.s3a.endpoint" = "https://s3.example.com"
    "spark.hadoop.fs.s3a.secret.key" = { file = "/run/secrets/s3" }

The command line overrides the file. A secret is the content of its file without newlines at the
end; the file is read at the start.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_consumer.errors import OptionError


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the command, of the data source, and of Spark. `secrets`: the settings of Spark
    that were read from separate files."""

    command: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)


def load_settings(path: Path, names: Iterable[str]) -> Settings:
    """Load a settings file. `names`: the names of the command's options. Raises OptionError."""
    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as problem:
        raise OptionError(f"--config {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"--config {path}: not in UTF-8", hint="Save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as problem:
        raise OptionError(f"--config {path}: {problem}") from None
    options, conf = (dict(_flat(_table(path, found, name))) for name in ("options", "conf"))
    known = set(names)
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise OptionError(
                f"--config {path}: unknown option {name!r}", hint=f"Did you mean {near[0]}?" if near else ""
            )
    command = {name: ",".join(value) if isinstance(value, list) else value for name, value in found.items()}
    texts = {name: _text(path, name, value) for name, value in conf.items()}
    secret = {name for name, value in conf.items() if isinstance(value, dict)}
    return Settings(
        command,
        {name: _text(path, name, value) for name, value in options.items()},
        {name: text for name, text in texts.items() if name not in secret},
        {name: text for name, text in texts.items() if name in secret},
    )


def _table(path: Path, found: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove a table from the parsed file, and return it."""
    table = found.pop(name, {})
    if not isinstance(table, dict):
        raise OptionError(
            f"--config {path}: {name} is not a TOML table", hint=f"Write [{name}], followed by names and values."
        )
    return table


def _flat(options: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Flatten nested tables: the name kafka.sasl.password, if it is not quoted, means tables within
    tables."""
    for name, value in options.items():
        if isinstance(value, dict) and set(value) != {"file"}:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _text(path: Path, name: str, value: Any) -> str:
    if isinstance(value, dict):
        try:
            return Path(value["file"]).read_text("utf-8-sig").rstrip("\r\n")
        except OSError as problem:
            raise OptionError(f"--config {path}: {name}: {value['file']}: {problem.strerror}") from None
        except UnicodeDecodeError:
            raise OptionError(f"--config {path}: {name}: {value['file']}: not in UTF-8") from None
    return str(value).lower() if isinstance(value, bool) else str(value)
