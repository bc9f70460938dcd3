"""Errors that concern one table of a snapshot, while all other tables go on.

An error of a statement that reads a table does not affect the gateway, the stream or other tables.
Therefore no such error counts as unexpected. Errors that are not named below are logged with
PostgreSQL's own message, and the table is tried again.

A row that was read but cannot be written is another matter: UnwritableTable ends the session, and
gateway/runtime/quarantine.py stops the gateway or puts the table in quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gateway.errors import InternalError, StopForOperator, UnwritableRelation, WalgateError
from gateway.names import quote_identifier
from gateway.postgres.classify_errors import DRIVER_ERRORS, classify_exception
from gateway.startup.facts import PublishedRelation
from gateway.transactions.error_context import defect_of

PASSES: Final = ("08", "40", "53", "55P03", "57", "58")
"""SQLSTATE classes and codes of errors that pass without intervention: errors of connections,
conflicts, lack of resources, locks, cancellation and shutdown, and errors of the server's disks."""
DENIED: Final = "42501"
TOO_LARGE: Final = "too large"
"""Stands for the SQLSTATE of TableTooLarge, an error of the gateway itself."""
PRIVATE: Final = ("22", "23", "P0", "38", "39")
"""SQLSTATE classes whose messages may quote values of rows."""

_PRIVILEGES: Final = (
    "GRANT SELECT ON <table> TO <role> (also on its partitions), and GRANT USAGE ON SCHEMA <schema> TO <role>. If only the "
    "published columns may be read: GRANT SELECT (ctid, ...) ON <table> TO <role>, with the columns of the row filter. If "
    "row-level security applies to the table: ALTER ROLE <role> BYPASSRLS. If snapshot.may_lock is true: GRANT UPDATE ON <table> "
    "TO <role>, for LOCK TABLE"
)
_DAMAGED: Final = (
    "PostgreSQL finds damaged data in the table: see the server's log, and restore the table from a backup. The table is read as "
    "soon as PostgreSQL can read it"
)
_FILTER: Final = (
    "the row filter of the publication fails for a row. Correct the filter (ALTER PUBLICATION ... SET TABLE ... WHERE ...), "
    "and change no such row before: the stream would fail too. The table is read as soon as that is done"
)
_COLUMN: Final = (
    "PostgreSQL cannot print a value of this column. Correct the output function of its type, or leave the column out of the "
    "publication (PostgreSQL 15 and later, with a column list). The table is read as soon as that is done"
)
_FOREIGN: Final = (
    "copies keep the rows that they have. The table is read as soon as the foreign tables can be read. If they are no longer "
    "needed: ALTER TABLE ... DETACH PARTITION ..."
)
_OTHER: Final = "see the server's log. The other tables are read, and this one as soon as PostgreSQL can read it"


class TableTooLarge(WalgateError):
    """The rows of a table that is read at once need more memory than the gateway gives them."""

    sqlstate = TOO_LARGE


class UnwritableTable(WalgateError):
    """A row or the description of one table cannot be written; `error` is the reason. All other
    tables could go on: gateway/runtime/quarantine.py decides, as errors.on_error says, whether the
    gateway stops or goes on without this table."""

    def __init__(self, error: StopForOperator, relation_oid: int, name: tuple[str, str]) -> None:
        super().__init__(f"{error.message} (snapshot of {'.'.join(name)})", hint=error.hint)
        self.error = error
        self.oid = relation_oid
        self.name = name
        """(schema, table)"""


@contextmanager
def errors_of(relation: PublishedRelation) -> Iterator[None]:
    """Raise UnwritableTable for errors that concern only this table. Use it around code that reads
    or writes its rows."""
    name = relation.namespace, relation.name
    try:
        yield
    except (UnwritableRelation, InternalError) as error:
        raise UnwritableTable(error, relation.relation_oid, name) from error
    except (WalgateError, MemoryError, *DRIVER_ERRORS):
        raise
    except Exception as error:
        defect = defect_of(error, f"(a row of {'.'.join(name)})")
        raise UnwritableTable(defect, relation.relation_oid, name) from error


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a table cannot be read.

    `sqlstate` is that of the error, or TOO_LARGE. `reason` quotes no values. `column` and
    `type_name` belong to the value that cannot be printed, if such a value was found. `passes`: the
    error passes without intervention.
    """

    sqlstate: str
    reason: str
    hint: str
    passes: bool
    column: str = ""
    type_name: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """The column and its type, for the log."""
        return {"column": self.column, "type": self.type_name} if self.column else {}


def passes_by_itself(error: BaseException) -> bool:
    """Return whether the error is a lost connection, a lock, a lack of resources, or another one
    that passes without intervention."""
    sqlstate = getattr(error, "sqlstate", None) or ""
    return not sqlstate or sqlstate.startswith(PASSES)


def _with_names(hint: str, name: tuple[str, str], role: str) -> str:
    schema, table = map(quote_identifier, name)
    names = {"<schema>": schema, "<table>": f"{schema}.{table}", "<role>": quote_identifier(role) if role else "<role>"}
    for placeholder, identifier in names.items():
        hint = hint.replace(placeholder, identifier)
    return hint


def obstacle(error: BaseException, name: tuple[str, str], role: str, fault: Fault | None = None) -> Obstacle:
    """Classify an error that occurred while a table was read. `name` is (schema, table), `role` the
    gateway's role."""
    table = ".".join(name)
    if isinstance(error, TableTooLarge):
        return Obstacle(TOO_LARGE, f"reading {table}: {error.message}", error.hint, passes=False)
    classified = classify_exception(error, f"reading {table}")
    sqlstate = getattr(error, "sqlstate", None) or ""
    is_private = sqlstate.startswith(PRIVATE)
    reason = f"reading {table}: {type(error).__name__} ({sqlstate})" if is_private else classified.message
    if passes_by_itself(error):
        hint = "" if isinstance(classified, InternalError) else classified.hint
        return Obstacle(sqlstate, reason, hint, passes=True)
    if sqlstate == DENIED:
        return Obstacle(sqlstate, reason, _with_names(_PRIVILEGES, name, role), passes=False)
    if sqlstate.startswith("XX00") and sqlstate != "XX000":
        return Obstacle(sqlstate, reason, _DAMAGED, passes=False)
    if fault is None:
        return Obstacle(sqlstate, reason, _OTHER, passes=False)
    if fault.is_filter:
        return Obstacle(sqlstate, reason, _FILTER, passes=False)
    return Obstacle(sqlstate, reason, _COLUMN, passes=False, column=fault.column, type_name=fault.type_name)


def foreign_obstacle(error: BaseException, name: tuple[str, str], partitions: Sequence[str]) -> Obstacle:
    """Return the obstacle of a partitioned table whose foreign partitions cannot be read, and whose
    rows consumers are to replace or compare."""
    return Obstacle(
        getattr(error, "sqlstate", None) or "",
        f"reading {'.'.join(name)}: these foreign partitions cannot be read: {', '.join(partitions)}",
        _FOREIGN,
        passes=False,
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """The part of a query at which PostgreSQL fails: the row filter, or a column."""

    is_filter: bool = False
    column: str = ""
    type_name: str = ""
