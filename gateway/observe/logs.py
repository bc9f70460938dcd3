"""Write logs: one event per line, as key=value for people or as JSON for programs. A line never
contains a row value or a secret.

Messages of libraries (aiokafka, asyncio, Python's warnings) and an exception that ends the program
are written in the same way.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final, Literal

import structlog

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_ALWAYS: Final = 2
"""The number of occurrences that are logged one by one."""
_KINDS: Final = 50
"""The number of different messages that are remembered."""
_AGAIN_S: Final = 60.0
"""The seconds within which a line of a library is logged only once."""
_SERVICES: Final = {"aiokafka": "kafka", "asyncpg": "postgresql"}
"""The service to which each of these libraries connects."""


def set_up_logs(log_format: LogFormat, level: LogLevel = "info") -> None:
    """Write all logs to stderr, but those of libraries only from level warning on. Colours are used
    on a terminal, unless NO_COLOR is set."""
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
    handler.addFilter(library_lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*first, structlog.stdlib.add_logger_name],
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
    # The default formatter shows the variables of each frame: row values and secrets.
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def _without_empty_hint(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event.get("hint") == "":
        del event["hint"]
    return event


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning as one line."""
    return f"{filename}:{lineno}: {category.__name__}: {message}"


def _log_defect(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    structlog.get_logger().critical("defect", exc_info=(kind, error, traceback))


class LibraryLines(logging.Filter):
    """A filter that folds messages of the Kafka and PostgreSQL clients about their connections. The
    gateway itself reports each error, with its cause and its remedy. While a service is down, its
    client repeats itself many times a second.

    After the gateway has logged `service_down`, nothing of that service's client is logged until
    the service is up. Otherwise, each line is logged once a minute, at most as a warning, and
    without a traceback. An error that comes neither from the service nor from the network is a
    defect, and is logged unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self._down: set[str] = set()
        self._logged_at: dict[str, float] = {}
        self._folded: Counter[str] = Counter()

    def service_is_down(self, service: str) -> None:
        """Drop lines of the client of `service` (a name as in /status) from now on."""
        self._down.add(service)

    def service_is_up(self, service: str) -> int:
        """Return the number of lines that were folded while the service was down."""
        self._down.discard(service)
        return self._folded.pop(service, 0)

    def filter(self, record: logging.LogRecord) -> bool:
        service = _SERVICES.get(record.name.partition(".")[0])
        error = record.exc_info[1] if record.exc_info else None
        if service is None or (error is not None and not _is_of_service(error)):
            return True
        if service in self._down:
            self._folded[service] += 1
            return False
        kind, now = f"{record.name} {record.msg}", time.monotonic()
        if now - self._logged_at.get(kind, -_AGAIN_S) < _AGAIN_S:
            self._folded[kind] += 1
            return False
        self._logged_at[kind] = now
        _rewrite(record, error, self._folded.pop(kind, 0))
        return record.levelno >= logging.root.level


def _is_of_service(error: BaseException) -> bool:
    return isinstance(error, (OSError, TimeoutError)) or type(error).__module__.startswith(tuple(_SERVICES))


def _rewrite(record: logging.LogRecord, error: BaseException | None, folded: int) -> None:
    cause = f": {type(error).__name__}: {error}".removesuffix(": ") if error is not None else ""
    more = f" ({folded} more of these in the meantime)" if folded else ""
    record.msg, record.args = f"{record.getMessage()}{cause}{more}", ()
    record.exc_info = record.exc_text = None
    if record.levelno > logging.WARNING:
        record.levelno, record.levelname = logging.WARNING, "WARNING"


library_lines: Final = LibraryLines()
"""The filter of this process."""


class RepeatedMessages:
    """Counts of repeated messages, which are logged less and less often: the first two times, then
    the 4th, 8th, 16th, ... time. From the second time on, the line contains the count and the time
    of the first occurrence. Two messages that alternate are counted separately."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._since: dict[str, str] = {}

    def again(self, what: str, now: str) -> dict[str, Any] | None:
        """Count a message. Return what to add to its log line, or None to omit the line. Messages
        that differ only in digits (a process ID, a port, seconds) count as the same. `now` is the
        time, as the log writes it."""
        kind = "".join("#" if character.isdigit() else character for character in what)
        if kind not in self._since and len(self._since) >= _KINDS:
            self.forget()
        self._times[kind] += 1
        since, times = self._since.setdefault(kind, now), self._times[kind]
        if times <= _ALWAYS:
            return {} if times == 1 else {"times": times, "since": since}
        return {"times": times, "since": since} if times.bit_count() == 1 else None

    def forget(self) -> None:
        """Reset the counts, after an attempt that succeeded."""
        self._times.clear()
        self._since.clear()
