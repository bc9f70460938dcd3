"""Is everything as it must be, before the start and while the gateway runs?

Each check is a plain function over facts. It yields an error, which carries its class (what happens next) and in `hint`
the SQL or setting that repairs it, or a `Caution`, with which the gateway runs on. `preflight` runs all of them before the
start, with what the position record says (`Expected`); `check_running` runs them again every few seconds.

    server_checks.py       version, wal_level, encoding, room for slot and sender; same server, timeline and database
    slot_checks.py         exists, ours to read, not lost; confirmed_flush_lsn <= resume_lsn <= end of the WAL
    publication_checks.py  exist, hold something, replica identities, column lists; what has changed
    timeline.py            after a promotion: does the new primary have all that we have sent?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from gateway.operate.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.replication.facts import Caution, Expected, Facts, Finding
from gateway.replication.publication import publication_facts
from gateway.replication.publication_checks import check_inventory, check_publications
from gateway.replication.server import server_facts
from gateway.replication.server_checks import check_place, check_room, check_server
from gateway.replication.slot import slot_facts
from gateway.replication.slot_checks import check_confirmed, check_end_of_wal, check_retention, check_slot

_GRAVEST_FIRST: Final[tuple[type[WalgateError], ...]] = (DataGap, StopForOperator, RetrySlowly, Retry)


@dataclass(frozen=True, slots=True)
class Report:
    errors: tuple[WalgateError, ...]
    cautions: tuple[Caution, ...]

    def raise_errors(self) -> None:
        """Raise all errors as one, of the gravest class."""
        if not self.errors:
            return
        worst = next(kind for kind in _GRAVEST_FIRST if any(isinstance(error, kind) for error in self.errors))
        if len(self.errors) == 1:
            raise self.errors[0]
        raise worst(
            "\n".join(error.message for error in self.errors), hint="\n".join(e.hint for e in self.errors if e.hint)
        )


async def load_facts(sql: asyncpg.Connection, slot: str, publications: Sequence[str]) -> Facts:
    """The server last: its end of the WAL must not be older than the slot's and the position's LSNs."""
    publications_now = await publication_facts(sql, publications)
    slot_now = await slot_facts(sql, slot)
    return Facts(await server_facts(sql), slot_now, publications_now)


def preflight(facts: Facts, expected: Expected) -> Report:
    """Every check, before START_REPLICATION."""
    findings: list[Finding] = []
    for check in (
        check_server,
        check_room,
        check_place,
        check_slot,
        check_confirmed,
        check_end_of_wal,
        check_retention,
        check_publications,
    ):
        findings.extend(check(facts, expected))
    return report_of(findings)


def check_running(before: Facts, now: Facts, expected: Expected) -> Report:
    """The periodic check. `expected.resume_lsn` is the flush LSN of the standby status, read after `now` was loaded."""
    findings: list[Finding] = []
    for check in (check_server, check_place, check_slot, check_confirmed, check_publications):
        findings.extend(check(now, expected))
    findings.extend(check_inventory(before, now))
    known = set(preflight(before, expected).cautions)
    return report_of(finding for finding in findings if finding not in known)


def report_of(findings: Iterable[Finding]) -> Report:
    listed = list(findings)
    return Report(
        tuple(finding for finding in listed if isinstance(finding, WalgateError)),
        tuple(finding for finding in listed if isinstance(finding, Caution)),
    )
