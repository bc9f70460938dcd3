"""The status of mirrors, as their own HTTP ports report it (`walgate mirror --http`), and how far
each mirror lags behind Kafka.

A mirror joins no consumer group, so only the mirror itself knows what it has written. The setting
`http.mirrors` names the ports.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

MOST_COMMITS: Final = 4096
MIRROR_STATES: Final = ("running", "waiting")


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """Status of a mirror.

    `up` is None before the first query. `error` is the reason why the mirror does not answer.
    `merged_lsn` is 0 if nothing is merged. `lag_seconds` is the age of the oldest commit that is in
    Kafka but not in the mirror, or None if unknown. `oldest_waiting_time` is the commit time of the
    first transaction that the mirror has yet to write, as the mirror reports it.
    """

    url: str
    up: bool | None = None
    since: float = 0.0
    error: str = ""
    prefix: str = ""
    state: str = ""
    waits_for: str = ""
    commit_lsn: int = 0
    commit_time: float | None = None
    merged_lsn: int = 0
    stale_tables: int = 0
    filling_tables: int = 0
    last_error: str = ""
    last_error_time: float | None = None
    lag_seconds: float | None = None
    oldest_waiting_time: float | None = None

    @property
    def knows_itself(self) -> bool:
        """Whether the mirror knows what it has written or how far it lags. A mirror that has just
        started does not know yet."""
        return bool(self.commit_lsn) or self.lag_seconds is not None


def read_mirror(url: str, told: Any) -> MirrorStatus:
    """Return the status from `told`, the content of a mirror's /status. Raises ValueError,
    TypeError or OverflowError if `told` is not the status of a mirror."""
    if not isinstance(told, Mapping) or told.get("state") not in MIRROR_STATES:
        raise ValueError(
            "the response is not a mirror's status: http.mirrors must contain the address that was given to walgate mirror "
            "with --http"
        )
    error = told.get("last_error") or {}
    if not isinstance(error, Mapping):
        raise ValueError("the response is not a mirror's status: last_error is not an object")
    return MirrorStatus(
        url=url,
        up=True,
        prefix=str(told.get("prefix", "")),
        state=str(told["state"]),
        waits_for=str(told.get("waits_for", "")),
        commit_lsn=int(told.get("commit_lsn", 0)),
        commit_time=_moment(told.get("commit_time")),
        merged_lsn=int(told.get("merged_lsn", 0)),
        stale_tables=int(told.get("stale_tables", 0)),
        filling_tables=int(told.get("filling_tables", 0)),
        last_error=str(error.get("message", "")),
        last_error_time=_moment(error.get("time")),
        lag_seconds=_moment(told.get("lag_seconds")),
        oldest_waiting_time=_moment(told.get("oldest_waiting_time")),
    )


def _moment(value: Any) -> float | None:
    """Return a finite number, or None for None. Raises ValueError or TypeError for anything
    else."""
    if value is None:
        return None
    found = float(value)
    if not isfinite(found):
        raise ValueError("the response is not a mirror's status: a time or a lag is not finite")
    return found


class CommitTimes:
    """Recently delivered commits, as (LSN, commit time) in order. Of the commits between two calls
    of `note`, only the newest is kept, so a lag is too short by at most the time between these
    calls."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._times: list[float] = []

    def note(self, lsn: int, moment: float | None) -> None:
        if moment is None or (self._lsns and lsn <= self._lsns[-1]):
            return
        self._lsns.append(lsn)
        self._times.append(moment)
        if len(self._lsns) > MOST_COMMITS:
            half = MOST_COMMITS // 2
            self._lsns = self._lsns[:half:2] + self._lsns[half:]
            self._times = self._times[:half:2] + self._times[half:]

    def lag_s(self, mirror: MirrorStatus, now: float) -> float | None:
        """Return the lag of a mirror in seconds; `now` is by the server's clock.

        The lag is an upper bound if the mirror has not reached the first commit that is known here.
        If no commit is known, or the mirror has written nothing yet, the mirror's own report
        determines the lag. While the mirror does not answer, such a lag keeps growing.
        """
        if not self._lsns or not mirror.commit_lsn:
            if mirror.oldest_waiting_time is not None:
                return max(now - mirror.oldest_waiting_time, 0.0)
            return mirror.lag_seconds if mirror.up else None
        if mirror.commit_lsn >= self._lsns[-1]:
            return 0.0
        index = bisect_right(self._lsns, mirror.commit_lsn)
        oldest = self._times[index] if index or mirror.commit_time is None else mirror.commit_time
        return max(now - oldest, 0.0)
