"""The gateway as an unintended synchronous standby: `synchronous_standby_names = '*'` matches every
process that reads the WAL, even the gateway, which confirms only what Kafka has.

Each COMMIT of every database then waits for Kafka. The server shows the state of a reader only to
roles with pg_read_all_stats; other roles can still read the setting (PostgreSQL manual, 19.6.2, and
src/backend/replication/syncrep_gram.y).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gateway.names import APPLICATION_NAME
from gateway.startup.facts import Expected, Facts
from gateway.startup.findings import Finding, OperatorWarning

WAITED_FOR: Final = ("sync", "quorum")
"""Values of pg_stat_replication.sync_state with which COMMITs wait for this standby."""
_METHOD: Final = re.compile(r"\s*(?:(?:first|any)\s+)?\d+\s*\((?P<list>.*)\)\s*", re.IGNORECASE | re.DOTALL)
_NAME: Final = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<bare>[^\s,()"]+))\s*(?:,|$)')
_HINT: Final = (
    f"name the standbys that are meant, but not {APPLICATION_NAME}: "
    "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (standby1)'; "
    "SELECT pg_reload_conf(). SELECT application_name, sync_state FROM pg_stat_replication shows the names. Without such a "
    "standby: ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf()"
)


def names_the_gateway(setting: str) -> bool:
    """Return whether this value of synchronous_standby_names matches the gateway's
    application_name."""
    method = _METHOD.fullmatch(setting)
    names = setting if method is None else method["list"]
    for match in _NAME.finditer(names):
        name = match["bare"] if match["quoted"] is None else match["quoted"].replace('""', '"')
        if name == "*" or name.lower() == APPLICATION_NAME:
            return True
    return False


def check_synchronous(facts: Facts, _: Expected) -> Iterator[Finding]:
    setting = facts.server.synchronous_standby_names
    state = None if facts.slot is None else facts.slot.sync_state
    if state in WAITED_FOR:
        yield OperatorWarning(
            f"the gateway is a synchronous standby (sync_state is {state}): each COMMIT of every database waits until Kafka "
            "has acknowledged its changes, and hangs while Kafka or the gateway is down",
            _HINT,
        )
    elif state != "async" and names_the_gateway(setting):
        yield OperatorWarning(
            f"synchronous_standby_names = '{setting}' includes {APPLICATION_NAME}, the application name of the gateway: as a "
            "synchronous standby, it would make each COMMIT of every database wait until Kafka has acknowledged its changes",
            _HINT,
        )
