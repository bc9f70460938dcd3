"""Which transactions a snapshot sees: `pg_current_snapshot()` (PostgreSQL manual, 9.27.10).

Commit order in the stream is not the order in which commits become visible: a commit is decoded and
sent while it still waits for a synchronous standby, and no snapshot sees it until that wait is
over. So a transaction that was received is compared with the snapshot, and nothing is concluded
from the order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.errors import StopForOperator

_WRAP: Final = 1 << 32
_HALF: Final = _WRAP // 2
_EPOCH: Final = -_WRAP
"""The bits of a 64-bit id that are not on the wire."""


class UnreadableSnapshot(StopForOperator):
    """`pg_current_snapshot()` answered something else than documented."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """`running` holds the top-level transactions between `xmin` and `xmax` that had not ended. All
    ids have 64 bits."""

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    def sees(self, xid: int) -> bool:
        """Whether the transaction had ended. One that was rolled back is seen too: it has changed
        nothing."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def widen(self, xid: int) -> int:
        """The 64-bit id of a transaction of this time, from the 32 bits on the wire: the nearest
        one to `xmax`."""
        wide = self.xmax & _EPOCH | xid
        distance = wide - self.xmax
        if distance > _HALF:
            return wide - _WRAP
        return wide + _WRAP if distance <= -_HALF else wide


def parse_visibility(text: str) -> Visibility:
    """From `xmin:xmax:xip_list`. Raises UnreadableSnapshot."""
    try:
        xmin, xmax, running = text.split(":")
        return Visibility(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))
    except ValueError:
        raise UnreadableSnapshot(f"not a pg_snapshot value: {text!r}, expected xmin:xmax:xip_list") from None
