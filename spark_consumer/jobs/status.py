"""`--http HOST:PORT`: the state of a job, for monitoring.

    /livez     200 while the process answers
    /readyz    200 while its query runs and its merges succeed, else 503 with what it waits for
    /metrics   Prometheus
    /status    the same values as JSON, with the last error; the gateway reads it (http.mirrors)

The server handles one request at a time, which must arrive within two seconds. It is meant for an
operator's probes and scrapers, not for the public.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

from spark_consumer.errors import OptionError

_REQUEST_S = 2.0
_LAST_PORT = 65535

# All metrics: name -> type and meaning.
METRICS = {
    "walgate_job_commit_lsn": ("gauge", "Commit LSN of the last transaction that was written."),
    "walgate_job_merged_lsn": ("gauge", "Commit LSN up to which the mirror's tables are merged."),
    "walgate_job_commit_time_seconds": (
        "gauge",
        "Commit time of the last transaction that was written, by the server's clock, in seconds since 1970.",
    ),
    "walgate_job_written_time_seconds": (
        "gauge",
        "Time at which the last transaction was written, in seconds since 1970.",
    ),
    "walgate_job_lag_seconds": (
        "gauge",
        "Age of the oldest transaction that waits in Kafka; 0 if none waits.",
    ),
    "walgate_job_lag_bytes": (
        "gauge",
        "WAL between the last transaction that was written and the newest one in Kafka, in bytes.",
    ),
    "walgate_job_lag_changes": (
        "gauge",
        "Changes in Kafka after the last transaction that was read; estimated if more than 2000 markers wait.",
    ),
    "walgate_job_lag_markers": ("gauge", "Markers in the marker topic after the last one that was read."),
    "walgate_job_batches_total": ("counter", "Micro-batches with changes that were written."),
    "walgate_job_transactions_total": ("counter", "Transactions that were written."),
    "walgate_job_changes_total": ("counter", "Changes that were written."),
    "walgate_job_batch_seconds_total": ("counter", "Time spent writing micro-batches, in seconds."),
    "walgate_job_restarts_total": (
        "counter",
        "Number of times that the query was restarted after a transient error.",
    ),
    "walgate_job_differences_total": ("counter", "Differences that VERIFY snapshots have found."),
    "walgate_job_stale_tables": (
        "gauge",
        "Tables that are not being updated, or have had no new snapshot since a data gap.",
    ),
    "walgate_job_filling_tables": ("gauge", "Tables whose snapshot is not complete yet."),
}


@dataclass
class Status:
    """The state of a job. The thread of the job writes it, and the thread of the server reads it.

    `query_waits_for`: the reason why the query is not running, or "". `merge_waits_for`: the error
    of a merge that will be retried, or "". `last_error`: the error that ended a query or merge
    which was started again, and its Unix time. `is_behind`: whether transactions wait in Kafka.
    `oldest_waiting`: Unix commit time of the first waiting transaction; 0 if it is not known.
    `is_measured`: whether `is_behind` is known.
    """

    prefix: str = ""
    query_waits_for: str = "its first query"
    merge_waits_for: str = ""
    is_behind: bool = False
    oldest_waiting: float = 0.0
    is_measured: bool = False
    last_error: tuple[str, float] | None = None
    values: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, 0.0))

    def add(self, name: str, value: float) -> None:
        self.values[f"walgate_job_{name}"] += value

    def set(self, name: str, value: float) -> None:
        assert f"walgate_job_{name}" in METRICS, name
        self.values[f"walgate_job_{name}"] = value

    @property
    def waits_for(self) -> str:
        return self.query_waits_for or self.merge_waits_for

    def query_failed(self, message: str) -> None:
        self.query_waits_for = message
        self.last_error = message, time.time()

    def merge_failed(self, message: str) -> None:
        self.merge_waits_for = message
        self.last_error = message, time.time()

    def as_json(self) -> str:
        """Return the state as JSON. LSNs are integers; 0 stands for an LSN that does not exist or
        is not known. Times are Unix seconds. `lag_seconds` is null if it is not known."""
        values, waits_for = dict(self.values), self.waits_for
        facts = {
            "prefix": self.prefix,
            "state": "waiting" if waits_for else "running",
            "waits_for": waits_for,
            "commit_time": values["walgate_job_commit_time_seconds"] or None,
            "written_time": values["walgate_job_written_time_seconds"] or None,
            "lag_seconds": self._lag_s(time.time()) if self.is_measured else None,
            "oldest_waiting_time": (self.is_behind and self.oldest_waiting) or None,
            "last_error": self.last_error and dict(zip(("message", "time"), self.last_error, strict=True)),
        }
        for name in (
            "commit_lsn",
            "merged_lsn",
            "lag_bytes",
            "lag_changes",
            "lag_markers",
            "stale_tables",
            "filling_tables",
            "differences_total",
        ):
            facts[name] = int(values[f"walgate_job_{name}"])
        return json.dumps(facts) + "\n"

    def text(self, clock: Callable[[], float] = time.time) -> str:
        """Return the metrics in Prometheus' format."""
        values = {**self.values, "walgate_job_lag_seconds": self._lag_s(clock())}
        lines = []
        for name, (kind, meaning) in METRICS.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {values[name]:.17g}"]
        return "\n".join(lines) + "\n"

    def _running(self) -> str:
        behind, changes = (int(self.values[f"walgate_job_lag_{name}"]) for name in ("bytes", "changes"))
        return f"running, behind by {self._lag_s(time.time()):.1f} s, {behind} bytes of WAL, {changes} changes\n"

    def _lag_s(self, now: float) -> float:
        # Transactions written since the last measurement no longer wait.
        oldest = max(self.oldest_waiting, self.values["walgate_job_commit_time_seconds"])
        return max(0.0, now - oldest) if self.is_behind and oldest else 0.0

    def answer(self, path: str) -> tuple[int, str]:
        match path:
            case "/livez":
                return 200, "alive\n"
            case "/readyz":
                waits_for = self.waits_for
                return (503, f"waiting for {waits_for}\n") if waits_for else (200, self._running())
            case "/metrics":
                return 200, self.text()
            case "/status":
                return 200, self.as_json()
        return 404, "/livez /readyz /metrics /status\n"


def serve(status: Status, address: str) -> HTTPServer:
    """Start the server in a thread, which runs until its `shutdown`. Raises OptionError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > _LAST_PORT:
        raise OptionError(f"--http must be HOST:PORT, not {address!r}")
    host = host.strip("[]")

    class Server(HTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            code, text = status.answer(self.path)
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: a probe every second would fill the log."""

    try:
        server = Server((host, int(port)), Handler)
    except OSError as problem:
        raise OptionError(f"--http {address}: {problem.strerror}") from None
    threading.Thread(target=server.serve_forever, name="status", daemon=True).start()
    return server
