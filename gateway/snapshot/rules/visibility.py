"""The transactions that a PostgreSQL snapshot sees: `pg_current_snapshot()` (PostgreSQL manual,
9.27.10).

The order of commits in the stream is not the order in which they become visible. A commit is
decoded and sent while it still waits for a synchronous standby, and no snapshot sees it until that
wait is over. A transaction that was received is therefore compared with the snapshot: the order of
arrival does not show what the snapshot sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.errors import StopForOperator

_WRAP: Final = 1 << 32
_HALF: Final = _WRAP // 2
_EPOCH: Final = -_WRAP
"""Mask of the bits of a 64-bit id that the protocol does not send."""


class UnreadableSnapshot(StopForOperator):
    """`pg_current_snapshot()` returned text that is not in the documented format."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """A PostgreSQL snapshot. `running` has the top-level transactions between `xmin` and `xmax`
    that had not ended when it was taken. All ids have 64 bits."""

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    def sees(self, xid: int) -> bool:
        """Return whether the transaction had ended when the snapshot was taken. A transaction that
        was rolled back also counts as seen, since it has changed nothing."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def widen(self, xid: int) -> int:
        """Return the 64-bit id of a recent transaction whose 32-bit id, as in the protocol, is
        `xid`. This is the possible id that is nearest to `xmax`."""
        wide = self.xmax & _EPOCH | xid
        distance = wide - self.xmax
        if distance > _HALF:
            return wide - _WRAP
        return wide + _WRAP if distance <= -_HALF else wide


def parse_visibility(text: str) -> Visibility:
    """Parse `xmin:xmax:xip_list`. Raises UnreadableSnapshot."""
    try:
        xmin, xmax, running = text.split(":")
        return Visibility(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))
    except ValueError:
        raise UnreadableSnapshot(f"not a pg_snapshot value: {text!r}, expected xmin:xmax:xip_list") from None
