"""What happens next after an error of PostgreSQL, in one table by SQLSTATE (PostgreSQL manual, appendix A).

What is not in the table stops the gateway: a person must look at what nobody has thought of (tests.stops lists what stops).
The five-letter code goes before its two-letter class. Texts of the server are translated, so only two codes look at them, and
only to say more exactly what has happened.
"""

from __future__ import annotations

import re
import socket
import ssl

import asyncpg

from gateway.errors import UNTIL_NOW, InternalError, NeedsText, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.postgres.server_message import ServerMessage
from gateway.startup.server_notices import LeftOut, NoticeKind, Reported, WalRemoved, kind_of

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""What asyncpg and the socket raise: for `except`, then `classify_exception`."""

_UNKNOWN = (
    "this is an unexpected error; nothing was skipped. Restart the gateway, and report the error if it occurs again"
)
_POOLER = "the gateway needs a direct connection to the server: check that there is no connection pooler in between"
_UNPRINTABLE = "PostgreSQL 14 cannot convert intervals above 2^31 hours to text: set source.binary = on"
_UNTRANSLATABLE = (
    "the server cannot convert a text value to UTF8, so it cannot send this transaction. First correct the value or, in "
    f"PostgreSQL 15 and later, leave its column out of the publication (with a column list). Then {UNTIL_NOW}"
)

_OUT_OF_MEMORY = (
    "if the message says 'out of shared memory', raise max_locks_per_transaction (requires a server restart). Otherwise, lower "
    "logical_decoding_work_mem or the number of connections"
)
_UNSUPPORTED = (
    "this server does not support the operation. If it is a standby, point source.dsn to the primary "
    "(target_session_attrs=primary)"
)
_NOT_READY = (
    "check that wal_level is logical, and that the slot can be used: see wal_status (and invalidation_reason, in PostgreSQL 17 "
    "and later) in pg_replication_slots"
)
_NO_CONNECTION = (
    "if the message names a role or a database, raise its limit: ALTER ROLE ... CONNECTION LIMIT, or ALTER DATABASE ... "
    "CONNECTION LIMIT. Otherwise, raise max_wal_senders or max_connections (requires a server restart), or close unused "
    "connections"
)
_READ_ONLY = "the server is read-only or a standby: point source.dsn to the primary (target_session_attrs=primary)"
_NO_SLOT = "raise max_replication_slots (requires a server restart), or drop unused replication slots"
_DENIED = (
    "if the message names the database: GRANT CONNECT ON DATABASE ... TO <role>. If the role lacks the REPLICATION attribute: "
    "ALTER ROLE <role> REPLICATION (on Amazon RDS and Aurora: GRANT rds_replication TO <role>)"
)

_TABLE: dict[str, tuple[type[WalgateError], str]] = {
    # Connection
    "08": (Retry, ""),
    "08P01": (StopForOperator, _POOLER),
    "28": (RetrySlowly, "check user, password and pg_hba.conf: logical replication needs a record for the database itself"),
    "3D000": (RetrySlowly, "check the name of the database in source.dsn"),
    "42501": (RetrySlowly, _DENIED),
    "42601": (StopForOperator, _POOLER),
    # The server stops, starts, or has no room
    "57014": (Retry, ""),
    "57P01": (Retry, ""),
    "57P02": (Retry, ""),
    "57P03": (Retry, ""),
    "57P05": (Retry, ""),
    "57P04": (Retry, "the database was dropped: restore it, or point source.dsn to another one"),
    "40001": (Retry, ""),
    "40P01": (Retry, ""),
    "55P03": (Retry, ""),
    "53100": (RetrySlowly, "free disk space on the server"),
    "53200": (RetrySlowly, _OUT_OF_MEMORY),
    "53300": (RetrySlowly, _NO_CONNECTION),
    "53400": (RetrySlowly, _NO_SLOT),
    "58030": (RetrySlowly, "the server cannot read or write its files: see its log"),
    "25006": (RetrySlowly, _READ_ONLY),
    # Slot and publication
    "42704": (Retry, ""),
    "42710": (Retry, "another process has created it in the meantime"),
    "55006": (Retry, "another process is reading the slot: see active_pid in pg_replication_slots"),
    "55000": (RetrySlowly, _NOT_READY),
    "58P01": (RetrySlowly, "a file is missing on the server: see its log"),
    "58P02": (RetrySlowly, "a file already exists on the server: see its log"),
    "0A000": (RetrySlowly, _UNSUPPORTED),
    "22023": (StopForOperator, "the server rejects the value of a parameter: check the parameters after the ? in source.dsn"),
    "22008": (StopForOperator, _UNPRINTABLE),
    "22P05": (StopForOperator, _UNTRANSLATABLE),
    "22021": (StopForOperator, _UNTRANSLATABLE),
    "XX000": (RetrySlowly, "internal error of the server: see its log"),
}  # fmt: skip

_LOST_SLOT = re.compile("can no longer (access|get changes)|cannot read from logical|invalidated|maximum reserved size")
_WEDGED = re.compile("could not map filenumber")
_FINDS_PUBLICATION = "get_publication_oid"
_OPENS_WAL = "WalSndSegmentOpen"
_TOO_LARGE = re.compile("invalid memory alloc request size")  # of elog, which is not translated


def classify(said: ServerMessage, doing: str) -> WalgateError:
    """The error to raise for an ErrorResponse that came while `doing` ("starting replication from slot x")."""
    text = f"{doing}: {said}"
    if said.sqlstate == "55000" and _LOST_SLOT.search(said.message):
        return Retry(text)  # the catalog says it too, and the start judges it
    if said.sqlstate == "XX000" and _WEDGED.search(said.message):
        return StopForOperator(
            text,
            hint="this happens on PostgreSQL 18 when a table is truncated while there are prepared transactions; the slot is "
            f"now unusable. Set source.two_phase = false. Then {UNTIL_NOW}",
        )
    if said.sqlstate == "54000" or (said.sqlstate == "XX000" and _TOO_LARGE.search(said.message)):
        return StopForOperator(
            text,
            hint="if the server is PostgreSQL 14.18, 15.13, 16.9 or 17.5, upgrade it to the next minor release first: a bug in "
            "these releases has the same symptom, and nothing is lost. Otherwise, a row is too large for the server to send as "
            "text: set source.binary = on and start the gateway; nothing is lost. Only if source.binary is already on, leave the "
            "large columns out of the publication (ALTER PUBLICATION ... DROP TABLE t, then ADD TABLE t (columns); PostgreSQL 14 "
            f"has no column lists: drop the table from the publication), and then {UNTIL_NOW}",
        )
    known = _TABLE.get(said.sqlstate) or _TABLE.get(said.sqlstate[:2])
    if known is None:
        return InternalError(text, hint=said.hint or _UNKNOWN)
    kind, hint = known
    return kind(text, hint=hint or said.hint)


class LossReported(Retry):
    """The server says that changes are missing from the stream, or WAL; the next start judges what that means."""

    def __init__(self, message: str, reported: Reported) -> None:
        super().__init__(message)
        self.reported = reported


def classify_in_stream(said: ServerMessage, doing: str, *, binary: bool) -> WalgateError:
    """The same while replication starts or runs, where some codes mean more."""
    if said.sqlstate == "42704" and said.routine == _FINDS_PUBLICATION:  # before 18
        return LossReported(f"{doing}: {said}", LeftOut(said.message, ends_stream=True))
    if said.sqlstate == "58P01" and said.routine == _OPENS_WAL:
        return LossReported(f"{doing}: {said}", WalRemoved(said.message))
    if said.sqlstate == "42883" and binary:
        return NeedsText(
            f"{doing}: a type has no binary output function; continuing with the text format: {said}",
            hint="set source.binary = off to avoid this restart of replication",
        )
    return classify(said, doing)


def classify_notice(said: ServerMessage, doing: str) -> WalgateError | None:
    """The error to raise for a NoticeResponse within the stream; None for one that is only logged."""
    kind = kind_of(said)
    if kind is NoticeKind.SHUTDOWN:
        return classify(said, doing)
    if kind is NoticeKind.LEFT_OUT:
        return LossReported(f"{doing}: {said}", LeftOut(said.message, ends_stream=False))
    return None


def classify_exception(error: BaseException, doing: str) -> WalgateError:
    """The error to raise for what asyncpg or the socket raised. A WalgateError stays what it is."""
    if isinstance(error, WalgateError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        said = ServerMessage(
            getattr(error, "severity_en", None) or getattr(error, "severity", None) or "ERROR",
            error.sqlstate or "XX000",
            error.args[0] if error.args else type(error).__name__,
            getattr(error, "detail", None) or "",
            getattr(error, "hint", None) or "",
        )
        return classify(said, doing)
    return _classify_network(error, doing)


NOT_WANTED = (
    "check that source.dsn lists a server that satisfies target_session_attrs. If a failover is in progress, the gateway "
    "continues when it is over"
)
_UNREACHABLE = "check that the server is running and accepts connections there (source.dsn, listen_addresses, firewall)"


def _classify_network(error: BaseException, doing: str) -> WalgateError:
    text = f"{doing}: {type(error).__name__}: {error}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return RetrySlowly(text, hint="check sslrootcert, the host name and the certificate's validity dates")
    if isinstance(error, ssl.SSLError):
        return RetrySlowly(text, hint="check sslmode and the server's TLS settings")
    if isinstance(error, socket.gaierror):
        return RetrySlowly(text, hint="check the host name in source.dsn")
    if type(error) is ConnectionError and "SSL" in str(error):
        return RetrySlowly(
            text,
            hint="the server does not support TLS: set ssl = on in the server's configuration, or use a weaker sslmode in "
            "source.dsn",
        )
    if isinstance(error, TimeoutError):
        return Retry(f"{doing}: timed out", hint=_UNREACHABLE)
    if isinstance(error, ConnectionRefusedError):
        return Retry(text, hint=_UNREACHABLE)
    if isinstance(error, OSError):
        return Retry(text)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return RetrySlowly(text, hint=NOT_WANTED)
    if isinstance(error, asyncpg.InternalClientError):
        return Retry(text)  # asyncpg on a connection that a crash of the server cut off in the middle of an answer
    if isinstance(error, asyncpg.InterfaceError):
        # "connection is closed" and the like; wrong arguments are also a ValueError, which quotes them.
        return (
            InternalError(f"{doing}: {type(error).__name__}", hint=_UNKNOWN)
            if isinstance(error, ValueError)
            else Retry(text)
        )
    return InternalError(text, hint=_UNKNOWN)
