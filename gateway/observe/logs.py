"""Logs: one event a line, key=value for people or JSON for machines; never a row value or a secret.

Whatever the libraries say (aiokafka, asyncio, Python's warnings) and what ends the program goes the same way.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final, Literal

import structlog

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_ALWAYS: Final = 2
"""So many of the same are logged one by one."""


def set_up_logs(log_format: LogFormat, level: LogLevel = "info") -> None:
    """Everything goes to stderr. Of the libraries, warnings and errors. Colours: on a terminal, unless NO_COLOR is set."""
    least = getattr(logging, level.upper())
    first: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_empty_hint,
    ]
    last = _last_processors(log_format)
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_without_traceback, *first, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)
    logging.captureWarnings(True)
    warnings.formatwarning = _format_warning
    if log_format == "json":
        sys.excepthook = _log_defect


def _last_processors(log_format: LogFormat) -> list[Any]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    # The default one would show the variables of each frame: row values and secrets.
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def _without_empty_hint(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event.get("hint") == "":
        del event["hint"]
    return event


def _without_traceback(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An error of Kafka that aiokafka logs with its traceback, such as that of a transactional id that has expired, in one line:
    the gateway has it too, and says what it does about it. Other errors are defects and keep their traceback."""
    record: logging.LogRecord = event["_record"]
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and record.name.startswith("aiokafka") and type(error).__module__.startswith("aiokafka"):
        event["event"] = f"{event['event']}: {type(error).__name__}: {error}".removesuffix(": ")
        event.pop("exc_info", None)
        record.exc_info = record.exc_text = None
    return event


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """In one line."""
    return f"{filename}:{lineno}: {category.__name__}: {message}"


def _log_defect(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    structlog.get_logger().critical("defect", exc_info=(kind, error, traceback))


class RepeatedMessages:
    """What comes again and again is told ever more seldom: the first times, then at the 4th, 8th, 16th, each with how often and
    since when."""

    def __init__(self) -> None:
        self._what = ""
        self._times = 0
        self._since = ""

    def again(self, what: str, now: str) -> dict[str, Any] | None:
        """What to add to the line; None: no line. Numbers in `what` may differ: a process, a port, seconds. `now`: the time, as
        the log writes it."""
        kind = "".join("#" if character.isdigit() else character for character in what)
        if kind != self._what:
            self._what, self._times, self._since = kind, 0, now
        self._times += 1
        if self._times <= _ALWAYS:
            return {} if self._times == 1 else {"times": self._times, "since": self._since}
        return {"times": self._times, "since": self._since} if self._times.bit_count() == 1 else None

    def forget(self) -> None:
        """It went well in between."""
        self._what = ""
