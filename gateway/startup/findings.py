"""Findings of the checks: errors, whose class determines what happens next, and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError

_GRAVEST_FIRST: Final[tuple[type[WalgateError], ...]] = (DataGap, StopForOperator, RetrySlowly, Retry)


@dataclass(frozen=True, slots=True)
class OperatorWarning:
    """A condition that the operator should know about. The gateway goes on, and nothing is lost.
    `hint` is the SQL statement or the setting that changes the condition."""

    message: str
    hint: str


Finding = WalgateError | OperatorWarning


@dataclass(frozen=True, slots=True)
class Report:
    errors: tuple[WalgateError, ...]
    warnings: tuple[OperatorWarning, ...]

    def raise_errors(self) -> None:
        """Raise all errors as one error of the gravest class; do nothing if there are none."""
        if not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        worst = next(kind for kind in _GRAVEST_FIRST if any(isinstance(error, kind) for error in self.errors))
        raise worst(
            "\n".join(error.message for error in self.errors), hint="\n".join(e.hint for e in self.errors if e.hint)
        )


def report_of(findings: Iterable[Finding]) -> Report:
    listed = list(findings)
    return Report(
        tuple(finding for finding in listed if isinstance(finding, WalgateError)),
        tuple(finding for finding in listed if isinstance(finding, OperatorWarning)),
    )
