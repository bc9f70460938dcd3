"""A place in the WAL where the stream fails repeatedly: the resume LSN does not move, and the error
is the same.

pgoutput decodes each change with the catalog *as of the change*: row filters, column lists,
partitions. So the current catalog looks right, and no repair of it gets the stream past the place.
Yet some of these errors pass (a server is upgraded, another server takes over), and a single
occurrence proves nothing:

    each time      the error, how often it has occurred at this resume LSN, and since when, are in
                   the log, the status and the metrics
    a few times    the gateway waits longer each time; after a crash of the server, for minutes,
                   since each crash ends every session of every database
    then           exit code 78, with the LSN, PostgreSQL's message and the operator's choices

A session that has received all WAL that existed when it began has passed the place, and counting
starts again.

The count is part of the position that is written when an epoch begins. So a process that a
supervisor restarts after exit code 78 makes one attempt, not as many as the first one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gateway.errors import UNTIL_NOW, StopForOperator
from gateway.transactions.position import FailedPlace, Position
from schemas.lsn import Lsn

CERTAIN_TIMES: Final = 4
CERTAIN_TIMES_INTERNAL: Final = 8
"""Attempts for errors of the server itself (class XX), some of which pass."""
_FIRST_WAIT_S: Final = 2.0
_LONGEST_WAIT_S: Final = 60.0
_WAIT_AFTER_CRASH_S: Final = 60.0
_LONGEST_WAIT_AFTER_CRASH_S: Final = 600.0
_TIMES_OF_LONGEST_WAIT: Final = 10
_SOON_S: Final = 0.2
_CRASH: Final = "crash"

_PUBLICATIONS: Final = (
    "the publications of source.publications disagreed about the columns of a table when the change was made (in their column "
    "lists or in publish_generated_columns), and the server reads them as they were then: that they agree now helps later "
    "changes only. First make sure that they agree. Then, if one of these publications alone publishes every table that you "
    "need, set source.publications to that one, and nothing is lost. Otherwise "
)
_EXPRESSIONS: Final = (
    "the server evaluates row filters as they were when the change was made, so a filter that is corrected now helps later "
    "changes only. First make sure that no row filter of the publications can fail (walgate check names those that can). Then "
)
_CRASHES: Final = (
    "each attempt ends all sessions of the server, so the gateway makes no further one. The server's log says more. A cause that "
    "is known on all versions up to 18: with publish_via_partition_root, a row was written to a partition that is being detached "
    "(SELECT inhrelid::regclass FROM pg_inherits WHERE inhdetachpending). Complete the detachment first (ALTER TABLE ... DETACH "
    "PARTITION ... FINALIZE), which helps later changes only. The last transactions before that place may be undelivered too, if "
    "the server crashed before the gateway had received them and looked up their tables. Then "
)
_OTHERWISE: Final = (
    "the server's log says more. If a newer minor release of PostgreSQL is available, upgrade the server and start the gateway: "
    "nothing is lost. Otherwise "
)


@dataclass(frozen=True, slots=True)
class DecodingFailed:
    """The server reported an error about a change that it was to send. `message` is the server's,
    without values of rows; `change_lsn` is 0 if unknown; `is_of_publications` means that pgoutput
    itself rejects the combination of publications."""

    message: str
    sqlstate: str
    change_lsn: Lsn = Lsn(0)  # noqa: RUF009  # an int
    is_of_publications: bool = False
    resume_lsn: int = 0
    times: int = 1
    since: str = ""

    @property
    def cause(self) -> str:
        """Key by which repetitions of the same failure are recognized."""
        return self.sqlstate

    @property
    def certain_times(self) -> int:
        return CERTAIN_TIMES_INTERNAL if self.sqlstate.startswith("XX") else CERTAIN_TIMES


@dataclass(frozen=True, slots=True)
class ServerCrashed:
    """The server's process that reads the WAL ended without a message, and the server went through
    crash recovery."""

    message: str
    resume_lsn: int = 0
    times: int = 1
    since: str = ""

    @property
    def cause(self) -> str:
        """Key by which repetitions of the same failure are recognized."""
        return _CRASH

    @property
    def certain_times(self) -> int:
        return CERTAIN_TIMES


RepeatedFailure = DecodingFailed | ServerCrashed


def counted_again(
    before: object, now: RepeatedFailure, resume_lsn: int, moment: str, *, has_passed: bool
) -> RepeatedFailure:
    """Return `now` with the number of times that it has occurred. `before` is the previous report,
    and `moment` the current time in the format of the log. `has_passed` means that the session
    received all WAL that existed when it began."""
    is_same = isinstance(before, type(now)) and (before.cause, before.resume_lsn) == (now.cause, resume_lsn)
    if not is_same or has_passed or not isinstance(before, (DecodingFailed, ServerCrashed)):
        return replace(now, resume_lsn=resume_lsn, times=1, since=moment)
    return replace(now, resume_lsn=resume_lsn, times=before.times + 1, since=before.since)


def to_record(reported: object, position: Position) -> FailedPlace | None:
    """Return the failure at the resume LSN, to be recorded in the position of a new epoch, or None
    if there is none. The count is this process's own, or that of another process that has continued
    counting since. `reported` is the last report made in this process, or None."""
    counted = [position.failed_place]
    if isinstance(reported, (DecodingFailed, ServerCrashed)):
        counted.append(FailedPlace(reported.cause, Lsn(reported.resume_lsn), reported.times, reported.since))
    elif reported is not None:
        return None
    here = [failed for failed in counted if failed is not None and failed.resume_lsn == position.resume_lsn]
    return max(here, key=lambda failed: (failed.since, failed.times), default=None)


def from_record(position: Position) -> RepeatedFailure | None:
    """Return the failure that the position records for its resume LSN, or None, for the next
    count."""
    failed = position.failed_place
    if failed is None or failed.resume_lsn != position.resume_lsn:
        return None
    counted: RepeatedFailure = ServerCrashed("") if failed.cause == _CRASH else DecodingFailed("", failed.cause)
    return replace(counted, resume_lsn=failed.resume_lsn, times=failed.times, since=failed.since)


def wait_s(failure: RepeatedFailure) -> float:
    """Return the seconds to wait before the next attempt. The wait is short once the count is
    reached, since the next start then stops instead of trying. If it has not stopped, the waits go
    on."""
    if failure.times == failure.certain_times:
        return _SOON_S
    times = min(failure.times, _TIMES_OF_LONGEST_WAIT)
    if isinstance(failure, ServerCrashed):
        if times == 1:
            return _FIRST_WAIT_S
        return min(_WAIT_AFTER_CRASH_S * 2.0 ** (times - 2), _LONGEST_WAIT_AFTER_CRASH_S)
    return min(_FIRST_WAIT_S * 2.0 ** (times - 1), _LONGEST_WAIT_S)


def judge_repeated_failure(failure: RepeatedFailure, *, resume_lsn: int, slot: str) -> StopForOperator | None:
    """Return the error that stops the gateway; None if it is not certain yet, or the stream has
    passed the place."""
    if failure.times < failure.certain_times or failure.resume_lsn != resume_lsn:
        return None
    if isinstance(failure, ServerCrashed):
        return StopForOperator(
            f"the server has crashed {_often(failure)} while it read the WAL of slot {slot} after {Lsn(resume_lsn)}",
            hint=f"{_CRASHES}{UNTIL_NOW}",
        )
    place = f"the server cannot send the change at {failure.change_lsn or 'an unknown LSN'}"
    said = f"{place}, after the resume LSN {Lsn(resume_lsn)}; it has said so {_often(failure)}: {failure.message}"
    if failure.is_of_publications:
        return StopForOperator(said, hint=f"{_PUBLICATIONS}{UNTIL_NOW}")
    if failure.sqlstate[:2] in ("21", "22", "23", "54"):
        return StopForOperator(said, hint=f"{_EXPRESSIONS}{UNTIL_NOW}")
    return StopForOperator(said, hint=f"{_OTHERWISE}{UNTIL_NOW}")


def _often(failure: RepeatedFailure) -> str:
    return f"{failure.times} times since {failure.since}"
