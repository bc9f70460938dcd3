"""The result of `walgate check`, as text or as JSON, and its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from gateway.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE
from gateway.errors import DataGap, StopForOperator
from gateway.startup.findings import Finding, OperatorWarning
from gateway.startup.role_checks import for_provider

Area = Literal["settings", "postgresql", "kafka", "registry", "resume_lsn"]
Outcome = Literal["ok", "warning", "waits", "stops"]
AREAS: Final[tuple[Area, ...]] = ("settings", "postgresql", "kafka", "registry", "resume_lsn")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A line of the report. The outcome `warning` means that the gateway would start nevertheless,
    `waits` that it would wait for a repair, and `stops` that it would exit (78)."""

    area: Area
    outcome: Outcome
    message: str
    remedy: str = ""


class CheckReport:
    """The results of a check, in the order in which they were found."""

    def __init__(self) -> None:
        self.results: list[CheckResult] = []

    def ok(self, area: Area, message: str) -> None:
        self.results.append(CheckResult(area, "ok", message))

    def add(self, area: Area, findings: Iterable[Finding], provider: str = "") -> bool:
        """Add findings; return False if one of them would prevent a start."""
        is_fine = True
        for finding in findings:
            reworded = for_provider(finding, provider)
            outcome = _outcome_of(finding)
            is_fine = is_fine and outcome == "warning"
            self.results.append(CheckResult(area, outcome, reworded.message, reworded.hint))
        return is_fine


def _outcome_of(finding: Finding) -> Outcome:
    if isinstance(finding, OperatorWarning):
        return "warning"
    return "stops" if isinstance(finding, (StopForOperator, DataGap)) else "waits"


def exit_code(checked: Iterable[CheckResult]) -> int:
    """Return 0 if the gateway would start; 1 if it would wait for a repair; 78 if an operator must
    make a decision or change a setting."""
    outcomes = {each.outcome for each in checked}
    return EXIT_CONFIGURATION if "stops" in outcomes else EXIT_FAILURE if "waits" in outcomes else 0


def as_json(checked: list[CheckResult]) -> dict[str, Any]:
    return {"exit_code": exit_code(checked), "findings": [asdict(each) for each in checked]}


_TITLES: Final[dict[Area, str]] = {"resume_lsn": "resume LSN"}
_MARKS: Final[dict[Outcome, str]] = {"ok": "ok", "warning": "WARNING", "waits": "WAITS", "stops": "STOPS"}


def render(checked: list[CheckResult]) -> str:
    """Return the report as text: a line for each result, followed by its remedy."""
    lines = []
    for area in AREAS:
        for each in (one for one in checked if one.area == area):
            lines.append(f"{_TITLES.get(area, area):<11} {_MARKS[each.outcome]:<8} {each.message}")
            if each.remedy:
                lines.extend(f"{'':<21}{part}" for part in each.remedy.splitlines())
    wrong = sum(each.outcome in ("waits", "stops") for each in checked)
    warnings = sum(each.outcome == "warning" for each in checked)
    verdict = (
        "the gateway would start"
        if not wrong
        else f"{wrong} {'problem prevents' if wrong == 1 else 'problems prevent'} the gateway from starting"
    )
    lines.append(f"{verdict}; {warnings} {'warning' if warnings == 1 else 'warnings'}")
    return "\n".join(lines)
