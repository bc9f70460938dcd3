"""Check names by the rules of PostgreSQL (manual, 4.1.1, and `ReplicationSlotValidateName` in
slot.c), and define names that the gateway uses."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

SLOT_RULE: Final = "1 to 63 characters from a-z, 0-9 and _"
IDENTIFIER_RULE: Final = "1 to 63 bytes long and contain no zero byte"
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_LONGEST_BYTES: Final = 63
HEARTBEAT_PREFIX: Final = "walgate.heartbeat"
"""The prefix of the gateway's own logical messages, which measure the lag when nothing else
commits."""
APPLICATION_NAME: Final = "walgate"
"""The application_name of every session of the gateway."""


def transactional_id(system_identifier: str, database_oid: int, slot: str) -> str:
    """Return the transactional id of the slot's Kafka producer. It is the same after pg_upgrade,
    which preserves the oids of databases."""
    return f"walgate.{system_identifier}.{database_oid}.{slot}"


def is_slot(name: str) -> bool:
    return _SLOT.fullmatch(name) is not None


def is_identifier(name: str) -> bool:
    return 0 < len(name.encode()) <= _LONGEST_BYTES and "\0" not in name


def quote_identifier(name: str) -> str:
    """Quote a name, for SQL that is shown to the operator or for a name that was checked."""
    return '"' + name.replace('"', '""') + '"'


def qualified(namespace: str, name: str) -> str:
    """Quote the name of a relation with its schema, as `quote_identifier` does."""
    return f"{quote_identifier(namespace)}.{quote_identifier(name)}"


def is_table(relation: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches the relation. A pattern is `schema.table`, or `table` in any
    schema, with `*` and `?` as in a shell."""
    return any(fnmatchcase(relation, in_any_schema(pattern)) for pattern in patterns)


def in_any_schema(pattern: str) -> str:
    return pattern if "." in pattern else f"*.{pattern}"


_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_OF_CONTAINERS: Final = ("/.dockerenv", "/run/.containerenv")


def where_local_is(host: str) -> str:
    """Return the beginning of a hint for the case that nothing listens at `host`, or "". The hint
    is for a program in a container, where localhost is the container itself."""
    is_container = "KUBERNETES_SERVICE_HOST" in os.environ or any(map(os.path.exists, _OF_CONTAINERS))
    return (
        f"{host} is this container itself: use the name of the server's host; otherwise, "
        if host in _LOCAL and is_container
        else ""
    )
