"""The reaction to each error of PostgreSQL, by SQLSTATE (PostgreSQL manual, appendix A), at a
start, in the stream and in every statement. gateway/postgres/classify_errors.py applies it.

A five-character code takes precedence over its two-character class. Every class of the manual is
either in the table or covered by OTHER, and so are unknown classes, for which the gateway waits.
Only an incorrect statement of the gateway itself is a defect. A code is judged differently in three
places:

    a statement of the gateway    as the table says
    a login                       a function of the database (a login event trigger) may raise any
                                  code; the gateway waits
    the stream                    pgoutput uses the catalog as of the change: a persistent error
                                  recurs at the same LSN, and is judged by how often it has occurred
                                  (gateway/startup/repeated_failure.py)
"""

from __future__ import annotations

from typing import Final

from gateway.errors import UNTIL_NOW, InternalError, Retry, RetrySlowly, StopForOperator, WalgateError

UNKNOWN: Final = (
    "this is an unexpected error; nothing was skipped. Restart the gateway, and report the error if it occurs again"
)
_POOLER: Final = (
    "the gateway needs a direct connection to the server: check that there is no connection pooler in between"
)
_UNPRINTABLE: Final = "PostgreSQL 14 cannot convert intervals above 2^31 hours to text: set source.binary = on"
_UNTRANSLATABLE: Final = (
    "the server cannot convert a text value to UTF8, so it cannot send this transaction. First correct the value or, in "
    f"PostgreSQL 15 and later, leave its column out of the publication (with a column list). Then {UNTIL_NOW}"
)
_OUT_OF_MEMORY: Final = (
    "if the message says 'out of shared memory', raise max_locks_per_transaction (requires a server restart). Otherwise, lower "
    "logical_decoding_work_mem or the number of connections"
)
_UNSUPPORTED: Final = (
    "this server does not support the operation. If it is a standby, point source.dsn to the primary "
    "(target_session_attrs=primary)"
)
_NOT_READY: Final = (
    "check that wal_level is logical, and that the slot can be used: see wal_status (and invalidation_reason, in PostgreSQL 17 "
    "and later) in pg_replication_slots"
)
_NOT_OPEN: Final = (
    "the database accepts no connections. If it is the right one: ALTER DATABASE <database> ALLOW_CONNECTIONS true (not for "
    "template0). Otherwise, check its name in source.dsn"
)
_NO_CONNECTION: Final = (
    "if the message names a role or a database, raise its limit: ALTER ROLE ... CONNECTION LIMIT, or ALTER DATABASE ... "
    "CONNECTION LIMIT. Otherwise, raise max_wal_senders or max_connections (requires a server restart), or close unused "
    "connections"
)
_READ_ONLY: Final = (
    "the server is read-only or a standby: point source.dsn to the primary (target_session_attrs=primary)"
)
_NO_SLOT: Final = "raise max_replication_slots (requires a server restart), or drop unused replication slots"
_DENIED: Final = (
    "if the message names the database: GRANT CONNECT ON DATABASE <database> TO <role>. If the role lacks the REPLICATION "
    "attribute: ALTER ROLE <role> REPLICATION (on Amazon RDS and Aurora: GRANT rds_replication TO <role>)"
)
_NOT_LET_IN: Final = (
    "if the role is not permitted to log in: ALTER ROLE <role> LOGIN. Otherwise, check pg_hba.conf: logical replication needs a "
    "record for the database itself"
)
_PASSWORD: Final = (
    "check user and password: upper and lower case differ in both, and special characters in a URL must be percent-encoded. "
    "PostgreSQL says the same if the user does not exist, or if its password has expired (VALID UNTIL)"
)
_TIMEOUT_OF_ROLE: Final = (
    "a timeout ended the session: check which role, database or configuration file sets it (pg_db_role_setting, pg_settings). "
    "ALTER ROLE <role> SET transaction_timeout = 0 applies to the gateway alone"
)
_LOCKED: Final = (
    "another session has locked the table or one of its partitions, or waits to do so: SELECT pid, relation::regclass, mode, "
    "granted FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = "
    "current_database()). (With snapshot.may_lock, sessions that write to the table count too.) The gateway tries again until "
    "the lock is released"
)
_LOG_OF_SERVER: Final = "the server's log says more"
_OF_A_ROW: Final = (
    "an expression fails for a row. If the table has a row filter in a publication, correct the filter (ALTER PUBLICATION ... "
    "SET TABLE ... WHERE ..., which replaces the publication's list of tables) so that it fails for no row. Otherwise, look at "
    "the server's log"
)
_OF_A_FUNCTION: Final = "a function of the database raises this: look at the server's log, and correct the function"
LOGIN_CODE: Final = (
    "if the database has a login event trigger (SELECT evtname FROM pg_event_trigger WHERE evtevent = 'login'), it must let the "
    "gateway's role in; the server's log says more. The gateway tries again until it is let in"
)

TABLE: Final[dict[str, tuple[type[WalgateError], str]]] = {
    # Connection
    "08": (Retry, ""),
    "08P01": (StopForOperator, _POOLER),
    "28": (RetrySlowly, _NOT_LET_IN),
    "28P01": (RetrySlowly, _PASSWORD),
    "3D": (RetrySlowly, "check the name of the database in source.dsn"),
    "42501": (RetrySlowly, _DENIED),
    "42601": (StopForOperator, _POOLER),
    "26": (RetrySlowly, _POOLER),
    # The server stops, starts, or lacks resources
    "57": (RetrySlowly, _LOG_OF_SERVER),
    "57014": (Retry, ""),
    "57P01": (Retry, ""),
    "57P02": (Retry, ""),
    "57P03": (Retry, ""),
    "57P05": (Retry, ""),
    "57P04": (Retry, "the database was dropped: restore it, or point source.dsn to another one"),
    "40": (Retry, ""),
    "72": (Retry, ""),
    "55P03": (Retry, _LOCKED),
    "53": (RetrySlowly, "the server has no resources left for this: its log says more"),
    "53100": (RetrySlowly, "free disk space on the server"),
    "53200": (RetrySlowly, _OUT_OF_MEMORY),
    "53300": (RetrySlowly, _NO_CONNECTION),
    "53400": (RetrySlowly, _NO_SLOT),
    "58": (RetrySlowly, "the operating system refuses something to the server: see the server's log"),
    "58030": (RetrySlowly, "the server cannot read or write its files: see its log"),
    "25006": (RetrySlowly, _READ_ONLY),
    "25P03": (RetrySlowly, _TIMEOUT_OF_ROLE),
    "25P04": (RetrySlowly, _TIMEOUT_OF_ROLE),
    "F0": (RetrySlowly, "a configuration file of the server is not valid: see the server's log"),
    # Slot and publication
    "42704": (Retry, ""),
    "42710": (Retry, "another process has created it in the meantime"),
    "55": (RetrySlowly, _LOG_OF_SERVER),
    "55006": (Retry, "another process is reading the slot: see active_pid in pg_replication_slots"),
    "55000": (RetrySlowly, _NOT_READY),
    "58P01": (RetrySlowly, "a file is missing on the server: see its log"),
    "58P02": (RetrySlowly, "a file already exists on the server: see its log"),
    "0A": (RetrySlowly, _UNSUPPORTED),
    # Rows and functions of the database
    "21": (RetrySlowly, _OF_A_ROW),
    "22": (RetrySlowly, _OF_A_ROW),
    "22023": (StopForOperator, "the server rejects the value of a parameter: check the parameters after the ? in source.dsn"),
    "22008": (StopForOperator, _UNPRINTABLE),
    "22P05": (StopForOperator, _UNTRANSLATABLE),
    "22021": (StopForOperator, _UNTRANSLATABLE),
    "23": (RetrySlowly, _OF_A_ROW),
    "2F": (RetrySlowly, _OF_A_FUNCTION),
    "38": (RetrySlowly, _OF_A_FUNCTION),
    "39": (RetrySlowly, _OF_A_FUNCTION),
    "54": (RetrySlowly, "a limit of the server is exceeded: its log says which"),
    "HV": (RetrySlowly, "a foreign server does not answer as expected: the log of PostgreSQL says which"),
    "P0": (RetrySlowly, _OF_A_FUNCTION),
    "XX": (RetrySlowly, "internal error of the server: see its log"),
    # The gateway's own statements are wrong
    "0B": (InternalError, UNKNOWN),
    "24": (InternalError, UNKNOWN),
    "25": (InternalError, UNKNOWN),
    "2D": (InternalError, UNKNOWN),
    "34": (InternalError, UNKNOWN),
    "3B": (InternalError, UNKNOWN),
    "42": (InternalError, UNKNOWN),
}  # fmt: skip
OTHER: Final[tuple[type[WalgateError], str]] = (RetrySlowly, _LOG_OF_SERVER)
"""The reaction to classes of the manual that are not in the table, and to codes that functions of
the database define."""

_PASSES_IN_STREAM: Final = frozenset({"08", "28", "3D", "40", "53", "55", "57", "58", "72", "F0"})
"""Classes of errors about what the server currently lacks, not about the WAL that it read."""
_PASS_IN_STREAM: Final = frozenset({"25006", "25P03", "25P04", "42501", "42704", "42710"})


def next_step(sqlstate: str) -> tuple[type[WalgateError], str]:
    """Return the class of the error and the hint, for an error in one of the gateway's own
    statements."""
    return TABLE.get(sqlstate) or TABLE.get(sqlstate[:2]) or OTHER


def next_step_at_login(sqlstate: str, *, is_raised_by_function: bool = False) -> tuple[type[WalgateError], str]:
    """Return the class and the hint for an error at login, when functions of the database may
    run."""
    kind, hint = next_step(sqlstate)
    passes = issubclass(kind, Retry) and hint == ""
    is_of_database = sqlstate[:2] in ("21", "22", "23", "2F", "38", "39", "P0") and not issubclass(
        kind, StopForOperator
    )
    if issubclass(kind, InternalError) or (is_raised_by_function and not passes) or is_of_database:
        return RetrySlowly, LOGIN_CODE
    return kind, _NOT_OPEN if sqlstate == "55000" else hint


def is_of_place(sqlstate: str) -> bool:
    """Return whether an error within the stream is about the place in the WAL that is being
    decoded."""
    return sqlstate[:2] not in _PASSES_IN_STREAM and sqlstate not in _PASS_IN_STREAM
