"""The check that is repeated while the stream runs. Its errors end the session, and its warnings
are for the operator.

The check never decides that changes were lost, because its facts are not ordered relative to the
position. If changes seem to be lost, the session ends, and the next start judges with proof.
Problems that are repaired at the server (such as a missing publication) are only reported: the
stream goes on, and the server reports if it has left out changes.
"""

from __future__ import annotations

from gateway.errors import Retry, RetrySlowly, StopForOperator
from gateway.startup.facts import Expected, Facts, SlotFacts
from gateway.startup.findings import Finding, OperatorWarning, Report, report_of
from gateway.startup.publication_checks import check_inventory, check_publications
from gateway.startup.server_checks import check_left_behind, check_server
from gateway.startup.slot_checks import check_holder, check_retention, check_slot
from gateway.startup.synchronous_standby import check_synchronous
from schemas.lsn import Lsn

_CHECKS = (
    check_server,
    check_left_behind,
    check_slot,
    check_holder,
    check_publications,
    check_retention,
    check_synchronous,
)


def check_held(slot: SlotFacts | None, resume_lsn: Lsn) -> None:
    """Raise Retry if the slot was advanced beyond the resume LSN during the start.

    This is called directly after START_REPLICATION, before anything is confirmed. From then on, no
    other process can move the slot, but another process may have moved it since the start last
    looked. The server then sends changes from the slot's LSN, without any notice.
    """
    if slot is not None and slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > resume_lsn:
        raise Retry(
            f"slot {slot.name} was advanced to {slot.confirmed_flush_lsn} during startup, beyond the resume LSN {resume_lsn}"
        )


def check_running(before: Facts, now: Facts, expected: Expected) -> Report:
    """Check the facts `now`. `before` has the facts of the previous check, so that each change is
    reported once."""
    findings: list[Finding] = []
    for check in _CHECKS:
        findings.extend(check(now, expected))
    if now.slot is None:
        findings.append(Retry(f"slot {expected.slot} no longer exists"))
    findings.extend(check_inventory(before, now))
    return report_of(map(_while_running, findings))


def _while_running(finding: Finding) -> Finding:
    if isinstance(finding, StopForOperator):
        return Retry(finding.message, hint=finding.hint)
    if isinstance(finding, RetrySlowly):
        return OperatorWarning(finding.message, finding.hint)
    return finding
