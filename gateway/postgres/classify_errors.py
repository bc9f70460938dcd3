"""Classify errors of PostgreSQL, and of the connection to it, by what happens next.

The table by SQLSTATE is in gateway/startup/reaction_by_sqlstate.py. Texts of the server are
translated, so they are only looked at for two codes, and only to describe more exactly what has
happened. docs/server-errors.md shows the outcome for every SQLSTATE of the manual.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from gateway.errors import (
    UNTIL_NOW,
    InternalError,
    NeedsText,
    NextSession,
    Retry,
    RetrySlowly,
    StopForOperator,
    WalgateError,
)
from gateway.names import APPLICATION_NAME
from gateway.postgres.server_message import ServerMessage
from gateway.startup.reaction_by_sqlstate import UNKNOWN, is_of_place, next_step, next_step_at_login
from gateway.startup.repeated_failure import DecodingFailed
from gateway.startup.server_notices import LeftOut, NoticeKind, Reported, WalRemoved, kind_of

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Errors that asyncpg and the socket raise. `classified_errors` converts them."""

_LOST_SLOT = re.compile("can no longer (access|get changes)|cannot read from logical|invalidated|maximum reserved size")
_WEDGED = re.compile("could not map filenumber")  # reported by elog, which is not translated
_FINDS_PUBLICATION = "get_publication_oid"
_OPENS_WAL = "WalSndSegmentOpen"
_TOO_LARGE = re.compile("invalid memory alloc request size")  # reported by elog, which is not translated
_ASSEMBLES_TEXT = ("", "stringinfo.c")
"""Source files in which 54000 means that a row is too large to be sent. In other files, a row
filter may have exceeded another limit."""
_PRINTS_VALUES = {
    "22008": ("interval_out", "interval2tm"),
    "22021": ("report_invalid_encoding", "report_invalid_encoding_int"),
    "22P05": ("report_untranslatable_char",),
}
"""Functions of the server that report these codes when a value is sent; if another function reports
them, a row filter may be the cause. The names of the functions differ between releases."""


def classify(said: ServerMessage, doing: str) -> WalgateError:
    """Return the error to raise for an ErrorResponse that arrived during `doing` ("starting
    replication from slot x")."""
    text = f"{doing}: {said}"
    if said.sqlstate == "55000" and _LOST_SLOT.search(said.message):
        return Retry(text)  # the catalog shows the loss too, and the next start judges it
    if _is_too_large(said):
        return StopForOperator(
            text,
            hint="if the server is PostgreSQL 14.18, 15.13, 16.9 or 17.5, upgrade it to the next minor release first: a bug in "
            "these releases has the same symptom, and nothing is lost. Otherwise, a row is too large for the server to send as "
            "text: set source.binary = on and start the gateway; nothing is lost. Only if source.binary is already on, leave the "
            "large columns out of the publication (ALTER PUBLICATION ... DROP TABLE t, then ADD TABLE t (columns); PostgreSQL 14 "
            f"has no column lists: drop the table from the publication), and then {UNTIL_NOW}",
        )
    kind, hint = next_step(said.sqlstate)
    return kind(text, hint=hint or said.hint)


def _is_too_large(said: ServerMessage) -> bool:
    if said.sqlstate == "54000":
        return said.file in _ASSEMBLES_TEXT
    return said.sqlstate == "XX000" and _TOO_LARGE.search(said.message) is not None


def classify_at_login(said: ServerMessage, doing: str) -> WalgateError:
    """Classify an ErrorResponse that arrives before the session is ready, when a login event
    trigger may raise anything."""
    kind, hint = next_step_at_login(said.sqlstate, is_raised_by_function=bool(said.context))
    return kind(f"{doing}: {said}", hint=hint or said.hint)


class LossReported(Retry):
    """The server reported that changes are missing from the stream, or that WAL has been removed.
    The next start judges what that means."""

    def __init__(self, message: str, reported: Reported) -> None:
        super().__init__(message)
        self.reported = reported

    def change(self, next_session: NextSession) -> None:
        next_session.remember_report(self.reported)


class CannotDecode(RetrySlowly):
    """The server cannot send a change that it has read from some place in the WAL. The next start
    decides what to do by the number of failures at that place."""

    def __init__(self, message: str, hint: str, reported: DecodingFailed) -> None:
        super().__init__(message, hint=hint)
        self.reported = reported

    def change(self, next_session: NextSession) -> None:
        next_session.remember_report(self.reported)


class StreamCut(Retry):
    """The stream's connection ended without a message from the server, which may have crashed."""


def classify_in_stream(
    said: ServerMessage, doing: str, *, binary: bool, is_streaming: bool = False, may_be_wedged: bool = False
) -> WalgateError:
    """Classify an ErrorResponse that arrives while replication starts or runs, when some codes have
    a more specific meaning. `is_streaming` means that the server has accepted START_REPLICATION and
    reads the WAL; `may_be_wedged`, that it is PostgreSQL 18 and that two_phase is on."""
    if said.sqlstate == "42704" and said.routine == _FINDS_PUBLICATION:  # before PostgreSQL 18
        return LossReported(f"{doing}: {said}", LeftOut(said.message, ends_stream=True))
    if said.sqlstate == "58P01" and said.routine == _OPENS_WAL:
        return LossReported(f"{doing}: {said}", WalRemoved(said.message))
    if said.sqlstate == "42883" and binary:
        return NeedsText(
            f"{doing}: a type has no binary output function; continuing with the text format: {said}",
            hint="set source.binary = off to avoid this restart of replication",
        )
    if may_be_wedged and said.sqlstate == "XX000" and _WEDGED.search(said.message):
        return StopForOperator(
            f"{doing}: {said}",
            hint="this happens on PostgreSQL 18 when a table is truncated while there are prepared transactions; the slot is "
            f"now unusable. Set source.two_phase = false. Then {UNTIL_NOW}",
        )
    if is_streaming and is_of_place(said.sqlstate) and not _is_of_value(said):
        return _of_place(said, doing)
    return classify(said, doing)


def _is_of_value(said: ServerMessage) -> bool:
    """Return whether the error is caused by a value. For such an error, `classify` has a better
    remedy than abandoning this position in the WAL."""
    if said.sqlstate in _PRINTS_VALUES:
        return said.routine in _PRINTS_VALUES[said.sqlstate]
    return _is_too_large(said)


def _of_place(said: ServerMessage, doing: str) -> CannotDecode:
    is_of_publications = said.sqlstate == "0A000" and said.file == "pgoutput.c"
    place = f" at {said.change_lsn}" if said.change_lsn else ""
    failure = DecodingFailed(str(said), said.sqlstate, said.change_lsn, is_of_publications)
    if is_of_publications:
        hint = (
            "when this change was made, the publications of source.publications disagreed about the columns of a table: see that "
            "their column lists and publish_generated_columns agree. If the error comes again at the same LSN, the gateway stops "
            "and names the ways on"
        )
    else:
        hint = (
            "the server reads the change with the catalog as it was when the change was made. If the error comes again at the "
            "same LSN, the gateway stops and names the ways on"
        )
    return CannotDecode(f"{doing}: the server cannot send a change{place}: {said}", hint, failure)


def classify_notice(said: ServerMessage, doing: str) -> WalgateError | None:
    """Return the error to raise for a NoticeResponse within the stream, or None if the notice is
    only logged."""
    kind = kind_of(said)
    if kind is NoticeKind.SHUTDOWN:
        return classify(said, doing)
    if kind is NoticeKind.LEFT_OUT:
        return LossReported(f"{doing}: {said}", LeftOut(said.message, ends_stream=False))
    return None


def classify_exception(error: BaseException, doing: str, *, at_login: bool = False) -> WalgateError:
    """Return the error to raise for an exception of asyncpg or the socket. A WalgateError is
    returned unchanged."""
    if isinstance(error, WalgateError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        said = _server_message(error)
        return classify_at_login(said, doing) if at_login else classify(said, doing)
    return _classify_network(error, doing, at_login=at_login)


def _server_message(error: asyncpg.PostgresError) -> ServerMessage:
    def field(name: str) -> str:
        return getattr(error, name, None) or ""

    return ServerMessage(
        field("severity_en") or field("severity") or "ERROR",
        error.sqlstate or "XX000",
        error.args[0] if error.args else type(error).__name__,
        field("detail"),
        field("hint"),
        field("server_source_filename"),
        field("server_source_function"),
        field("context"),
    )


@contextmanager
def classified_errors(doing: str) -> Iterator[None]:
    """Convert errors of asyncpg and the socket, as `classify_exception` does."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise classify_exception(error, doing) from error


@contextmanager
def beside_stream() -> Iterator[None]:
    """Turn a StopForOperator that is caused by an error from the server or the connection into
    RetrySlowly. An error in a session other than the stream must not end the process."""
    try:
        yield
    except StopForOperator as error:
        if isinstance(error.__cause__, DRIVER_ERRORS):
            raise RetrySlowly(error.message, hint=error.hint) from error.__cause__
        raise


NOT_WANTED = (
    "check that source.dsn lists a server that satisfies target_session_attrs. If a failover is in progress, the gateway "
    "continues when it is over"
)
_RESTARTED = "if PostgreSQL was restarted, or has crashed, the gateway continues when it is back; otherwise see its log"
_UNREACHABLE = "check that the server is running and accepts connections there (source.dsn, listen_addresses, firewall)"
_NO_ROUTE = f"{_UNREACHABLE}. If the address is IPv6, as Supabase's direct one is, this host needs an IPv6 route"
_NO_CONNECTION = {
    **dict.fromkeys((errno.ECONNREFUSED, errno.ETIMEDOUT), _UNREACHABLE),
    **dict.fromkeys((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL), _NO_ROUTE),
}
_NOT_ANSWERED = (
    "if the query waits for a lock, the next attempt waits for it too, and this names the sessions that hold it: SELECT "
    "pg_blocking_pids(pid), query FROM pg_stat_activity WHERE application_name = "
    f"'{APPLICATION_NAME}' AND wait_event_type = 'Lock'. Otherwise, the server is overloaded or cannot be reached"
)


def _classify_network(error: BaseException, doing: str, *, at_login: bool) -> WalgateError:
    text = f"{doing}: {type(error).__name__}: {error}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return RetrySlowly(text, hint="check sslrootcert, the host name and the certificate's validity dates")
    if isinstance(error, ssl.SSLError):
        return RetrySlowly(text, hint="check sslmode and the server's TLS settings")
    if isinstance(error, socket.gaierror):
        return RetrySlowly(text, hint="check the host name in source.dsn")
    if type(error) is ConnectionError and "connection_lost" in str(error):
        return Retry(f"{doing}: the server closed the connection before it answered", hint=_UNREACHABLE)
    if type(error) is ConnectionError and "SSL" in str(error):
        return RetrySlowly(
            text,
            hint="the server does not support TLS: set ssl = on in the server's configuration, or use a weaker sslmode in "
            "source.dsn",
        )
    if isinstance(error, TimeoutError) and error.errno is None:  # the limit of the gateway, not of TCP
        return Retry(f"{doing}: timed out", hint=_UNREACHABLE if at_login else _NOT_ANSWERED)
    if isinstance(error, OSError):
        return Retry(text, hint=_NO_CONNECTION.get(error.errno or 0, ""))
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return RetrySlowly(text, hint=NOT_WANTED)
    if isinstance(error, asyncpg.InternalClientError):
        # After a connection was cut in the middle of an answer, asyncpg only reports its own state.
        return Retry(f"{doing}: the connection ended in the middle of an answer", hint=_RESTARTED)
    if isinstance(error, asyncpg.InterfaceError):
        # "connection is closed" and the like. Errors about wrong arguments are also a ValueError,
        # whose text quotes them.
        return (
            InternalError(f"{doing}: {type(error).__name__}", hint=UNKNOWN)
            if isinstance(error, ValueError)
            else Retry(text)
        )
    return InternalError(text, hint=UNKNOWN)
