"""The periodic check while the stream runs: raises what ends the session, reports what an operator
should know.

It never says that changes were lost: its facts are not ordered against the position. What looks
like it ends the session, and the next start judges with proof. What is to be repaired at the server
(a missing publication, say) is reported: the stream goes on, and the server says when it left
changes out.
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
    """Right behind START_REPLICATION, before anything is confirmed: from here on nobody else can
    move the slot, but between the last look of the start and here somebody could. The server then
    sends from where the slot is, without a word."""
    if slot is not None and slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > resume_lsn:
        raise Retry(
            f"slot {slot.name} was advanced to {slot.confirmed_flush_lsn} during startup, beyond the resume LSN {resume_lsn}"
        )


def check_running(before: Facts, now: Facts, expected: Expected) -> Report:
    """`before`: the look before this one, so that each change is told once."""
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
