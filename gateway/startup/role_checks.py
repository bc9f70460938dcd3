"""Checks of the login and of the connection: what the role may do, whether a pooler is in between,
and which provider manages the server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from gateway.errors import RetrySlowly, StopForOperator, WalgateError
from gateway.names import quote_identifier
from gateway.startup.findings import Finding, OperatorWarning
from gateway.startup.server_checks import STANDBYS_FIRST
from schemas.topic_names import counted

READERS: Final = 2
CONNECTIONS: Final = 9
"""Connections of the gateway: the stream, two for the catalog, one for the status, one while the
slot is created, four for a snapshot, READERS of which read tables."""
KEYLESS_BYTES: Final = 64 << 20
"""A table without a key that is larger than this is named, since a snapshot holds it in memory."""
KEY_OR_MEMORY: Final = (
    "to have it read in chunks, add a primary key (not deferrable, with REPLICA IDENTITY DEFAULT or FULL), or make a unique "
    "index its replica identity; or give the gateway enough memory (docs/sizing.md); or leave it out: source.excluded_tables"
)
_CLOCK_S: Final = 60.0
_ALTER_SYSTEM: Final = re.compile(r"ALTER SYSTEM SET (\w+) = ([^;]+?)(?=;|\. | if |$)")
_RELOAD: Final = re.compile(r"; SELECT pg_reload_conf\(\)")

_WAL_LEVEL: Final[Mapping[str, str]] = {
    "aws": "set rds.logical_replication = 1 in the instance's parameter group (Aurora: the cluster's), then reboot it",
    "google": "set the flag cloudsql.logical_decoding = on (AlloyDB: alloydb.logical_decoding), which restarts the instance",
    "azure": "set the server parameter wal_level = LOGICAL, then restart the server",
    "neon": "enable logical replication in the settings of the project, which restarts its computes",
}
_SET: Final[Mapping[str, str]] = {
    "aws": r"set \1 = \2 in the instance's parameter group (Aurora: the cluster's)",
    "google": r"set the flag \1 = \2",
    "azure": r"set the server parameter \1 = \2",
    "neon": r"ask Neon's support to set \1 = \2",
}


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """Facts about the role and its connection.

    `provider` is aws, google, azure, neon or "". `is_pooled` means that the process that answers is
    not the one that accepted the login. `server_ahead_s` is the number of seconds by which the
    server's clock is ahead of this host's.

    `unreadable` are published tables that the role may not SELECT from. Of the tables in
    `read_at_once`, it may SELECT the published columns, but not ctid. `keyless` are published
    tables without a key that are larger than KEYLESS_BYTES. `closed_schemas` are schemas of
    published tables on which the role lacks USAGE. `filtered` are published tables whose row-level
    security applies to the role.
    """

    name: str
    is_superuser: bool = False
    may_replicate: bool = True
    reads_statistics: bool = True
    is_pooled: bool = False
    provider: str = ""
    is_encrypted: bool = True
    is_local: bool = False
    connection_limit: int = -1
    used_by_role: int = 0
    database: str = ""
    database_limit: int = -1
    used_in_database: int = 0
    max_connections: int = 100
    reserved_connections: int = 0
    used_connections: int = 0
    server_ahead_s: float = 0.0
    unreadable: tuple[str, ...] = ()
    read_at_once: tuple[str, ...] = ()
    keyless: tuple[str, ...] = ()
    closed_schemas: tuple[str, ...] = ()
    filtered: tuple[str, ...] = ()


def check_role(role: RoleFacts, *, takes_snapshots: bool = True, readers: int = READERS) -> Iterator[Finding]:
    """Yield the findings about the role. `readers`: the setting snapshot.readers."""
    name = quote_identifier(role.name)
    if role.is_pooled:
        yield StopForOperator(
            "this is a connection pooler, not PostgreSQL: the gateway needs a direct connection",
            hint="point source.dsn to the server itself (with PgBouncer often port 5432 instead of 6432; with "
            "Amazon RDS the instance's endpoint, not the proxy's)",
        )
    if not (role.may_replicate or role.is_superuser):
        grant = f"GRANT rds_replication TO {name}" if role.provider == "aws" else f"ALTER ROLE {name} REPLICATION"
        yield RetrySlowly(f"role {role.name} lacks the REPLICATION attribute", hint=grant)
    if not (role.reads_statistics or role.is_superuser):
        yield OperatorWarning(
            f"role {role.name} cannot see the details of other roles' sessions: for sessions that keep the slot's restart_lsn "
            "from advancing, only process ID, user and application are shown, and their age (walgate_blocker_seconds) counts "
            "from when the gateway first saw them",
            f"GRANT pg_read_all_stats TO {name}",
        )
    if not (role.is_encrypted or role.is_local):
        yield OperatorWarning(
            "the connection to PostgreSQL is not encrypted: rows are sent in cleartext",
            "add sslmode=verify-full and sslrootcert=FILE to source.dsn",
        )
    if role.unreadable:
        yield OperatorWarning(
            f"role {role.name} cannot read {', '.join(role.unreadable[:10])}: streaming does not need "
            "SELECT on the tables, but a snapshot does",
            f"GRANT SELECT ON {', '.join(role.unreadable[:10])} TO {name}",
        )
    if role.read_at_once and takes_snapshots:
        yield OperatorWarning(
            f"role {role.name} may read the published columns of {', '.join(role.read_at_once[:10])}, but not ctid: a snapshot "
            "reads such a table in one transaction, and holds it in memory",
            f"GRANT SELECT (ctid) ON {', '.join(role.read_at_once[:10])} TO {name}",
        )
    if role.keyless and takes_snapshots:
        yield OperatorWarning(
            f"{', '.join(role.keyless[:10])}: a table without a key of more than {KEYLESS_BYTES >> 20} MB. A snapshot reads such "
            "a table in one transaction and holds it in memory, or leaves it out if it does not fit",
            KEY_OR_MEMORY,
        )
    if role.closed_schemas:
        yield OperatorWarning(
            f"role {role.name} lacks USAGE on schema {', '.join(role.closed_schemas)}: streaming does not need it, but a "
            "snapshot does",
            f"GRANT USAGE ON SCHEMA {', '.join(role.closed_schemas)} TO {name}",
        )
    if role.filtered and takes_snapshots:
        yield OperatorWarning(
            f"row-level security applies to role {role.name} on {', '.join(role.filtered[:10])}: streaming does not depend on "
            "it, but a snapshot fails instead of leaving out rows",
            f"ALTER ROLE {name} BYPASSRLS",
        )
    yield from _connections(role, CONNECTIONS + (max(readers - READERS, 0) if takes_snapshots else 0))
    if abs(role.server_ahead_s) > _CLOCK_S:
        how = "ahead of" if role.server_ahead_s > 0 else "behind"
        yield OperatorWarning(
            f"the server's clock is {abs(role.server_ahead_s):.0f} s {how} this host's",
            "synchronize the clocks (chronyc tracking; timedatectl): by default, Kafka 4.0 and later reject records whose "
            "timestamp, which is taken from this host's clock, is more than an hour ahead of the broker's clock",
        )


def _connections(role: RoleFacts, needed: int) -> Iterator[Finding]:
    """Yield the findings about limits. `needed` includes the WAL sender, which max_connections does
    not count since PostgreSQL 12."""
    for what, limited, limit, used in (
        ("role", role.name, role.connection_limit, role.used_by_role),
        ("database", role.database, role.database_limit, role.used_in_database),
    ):
        if 0 <= limit < used + needed and not role.is_superuser:
            yield OperatorWarning(
                f"{what} {limited} is limited to {counted(limit, 'connection')}, {used} of them in use: the gateway needs "
                f"{needed} that are free",
                f"ALTER {what.upper()} {quote_identifier(limited)} CONNECTION LIMIT {used + needed + 5}",
            )
    usable = role.max_connections - role.reserved_connections
    if usable < role.used_connections + needed - 1:
        yield OperatorWarning(
            f"{role.used_connections} of the {usable} connections that are not reserved are in use: the gateway needs "
            f"{needed - 1} that are free",
            f"ALTER SYSTEM SET max_connections = {role.max_connections + needed + 11}; then restart the server {STANDBYS_FIRST}",
        )


T = TypeVar("T", bound=Finding)


def for_provider(finding: T, provider: str) -> T:
    """Return the finding with the provider's way to change a setting: ALTER SYSTEM is not allowed
    on managed servers."""
    if not provider or not finding.hint:
        return finding
    if "SET wal_level" in finding.hint:
        hint = _WAL_LEVEL[provider]
    else:
        hint = _RELOAD.sub("", _ALTER_SYSTEM.sub(_SET[provider], finding.hint))
    if isinstance(finding, WalgateError):
        changed = type(finding)(finding.message)
        changed.hint = hint
        return changed
    return replace(finding, hint=hint)
