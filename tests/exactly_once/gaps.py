"""The longest times in which no commit became readable, each with what was broken then and what the
gateways logged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from tests.exactly_once.chaos import Fault
from tests.support.gateway_process import GatewayProcess

LONGEST: Final = 3
"""As many gaps are described."""
_ADORNMENT: Final = frozenset({"timestamp", "level", "event", "logger"})


@dataclass(frozen=True, slots=True)
class Gap:
    """`begun` and `ended` in seconds of the monotonic clock: the commits on both sides became
    readable then."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    def faults_of(self, faults: Sequence[Fault]) -> list[Fault]:
        return [fault for fault in faults if fault.begun < self.ended and fault.ended > self.begun]

    def whole_s(self, faults: Sequence[Fault]) -> list[float]:
        """The times within the gap in which nothing was broken, in their order; of each its
        seconds."""
        whole, until = [], self.begun
        for fault in sorted(self.faults_of(faults), key=lambda fault: fault.begun):
            if fault.begun > until:
                whole.append(fault.begun - until)
            until = max(until, fault.ended)
        if until < self.ended:
            whole.append(self.ended - until)
        return whole


def longest_gaps(seen: Sequence[float]) -> list[Gap]:
    """The longest first."""
    gaps = [Gap(earlier, later) for earlier, later in pairwise(seen)]
    return sorted(gaps, key=lambda gap: -gap.seconds)[:LONGEST]


def described_gap(gap: Gap, gateways: Sequence[GatewayProcess], faults: Sequence[Fault], begun: float) -> str:
    """Times in seconds since `begun`."""
    whole = gap.whole_s(faults)
    heading = (
        f"gap of {gap.seconds:.1f} s from second {gap.begun - begun:.0f}, of which nothing was broken for "
        f"{sum(whole):.1f} s, at most {max(whole, default=0.0):.1f} s at a time:"
    )
    during = [described_fault(fault, begun) for fault in gap.faults_of(faults)]
    first = time.time() - time.monotonic()
    logged = [
        f"{at - begun:6.1f} s  gateway {number}: {text}"
        for at, number, text in sorted(_logged(gateways, first))
        if gap.begun - 1 <= at <= gap.ended + 1
    ]
    return "\n".join((heading, *during, *logged))


def described_fault(fault: Fault, begun: float) -> str:
    return f"{fault.begun - begun:6.0f} to {fault.ended - begun:4.0f} s  {fault.what}"


def _logged(gateways: Sequence[GatewayProcess], first: float) -> Iterator[tuple[float, int, str]]:
    """What a gateway logged at info and above: when (monotonic), which one, event and fields."""
    for number, gateway in enumerate(gateways, 1):
        for line in gateway.log().splitlines():
            if line.startswith("{"):
                entry: dict[str, Any] = json.loads(line)
                at = datetime.fromisoformat(entry["timestamp"]).timestamp() - first
                yield at, number, _as_line(entry)


def _as_line(entry: dict[str, Any]) -> str:
    fields = (f"{name}={value}" for name, value in entry.items() if name not in _ADORNMENT)
    return " ".join((entry["event"], *fields))
