"""Messages of the server within the stream: warnings, and errors that report a loss. They are
classified by the source file or function that raises them, never by the text, which may be
translated.

A walsender warns in three situations (PostgreSQL 14 to 18):

* `LoadPublications` in pgoutput.c, 18 and newer: a publication did not exist at the point of the
  WAL that is being decoded, and its changes are left out. Older servers end the stream there, with
  SQLSTATE 42704.
* `StandbySlotsHaveCaughtup` in slot.c, 17 and newer: a failover slot waits for a standby of
  `synchronized_standby_slots` that is down (55000), or whose slot does not exist (22023). The
  server sends nothing until the standby is back, and loses nothing.
* `quickdie` in postgres.c: the server is in an immediate shutdown (57P01, 57P02, 57P03).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from gateway.errors import UNTIL_NOW, DataGap, StopForOperator, WalgateError
from gateway.startup.repeated_failure import DecodingFailed, RepeatedFailure, ServerCrashed, judge_repeated_failure

_SHUTDOWN_CLASS: Final = "57P"
_OUTPUT_PLUGIN_FILE: Final = "pgoutput.c"
_STANDBY_ROUTINES: Final = ("StandbySlotsHaveCaughtup", "WaitForStandbyConfirmation")


class NoticeKind(Enum):
    """The kind of a notice, which decides what follows from it."""

    SHUTDOWN = auto()
    """The server shuts down: reconnect."""
    LEFT_OUT = auto()
    """Changes may have been left out: `judge_reported` decides."""
    STANDBY = auto()
    """The server waits for a standby, and the gateway waits too."""
    OTHER = auto()
    """The notice is logged; the changes that are sent are not affected."""


class Notice(Protocol):
    """The fields of a NoticeResponse that are not translated."""

    @property
    def sqlstate(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def routine(self) -> str: ...


def kind_of(notice: Notice) -> NoticeKind:
    if notice.sqlstate.startswith(_SHUTDOWN_CLASS):
        return NoticeKind.SHUTDOWN
    if notice.file == _OUTPUT_PLUGIN_FILE:
        return NoticeKind.LEFT_OUT
    if notice.routine in _STANDBY_ROUTINES:
        return NoticeKind.STANDBY
    return NoticeKind.OTHER


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A publication is missing at the point of the WAL that the server decodes. `message` is the
    server's. `ends_stream` means that it was an error instead of a warning (before 18): decoding
    does not get past this point. Transactions that commit before `whole_until` were received, and
    are to be delivered first."""

    message: str
    ends_stream: bool
    whole_until: int = 0


@dataclass(frozen=True, slots=True)
class WalRemoved:
    """The server could not open WAL that it needs. This has happened `times` times in a row at the
    same `resume_lsn`."""

    message: str
    resume_lsn: int = 0
    times: int = 1


Reported = LeftOut | WalRemoved | RepeatedFailure
_CERTAIN_TIMES: Final = 3
"""The number of reports after which it is certain that WAL was removed. A server that was just
promoted or restored may find the segment a moment later."""


def judge_reported(
    reported: Reported, *, resume_lsn: int, may_be_older: bool, missing: tuple[str, ...], slot: str
) -> WalgateError | None:
    """Return the error that follows from a report; None if it is harmless or not certain yet.
    `may_be_older` means that the slot was adopted and may have been created before the
    publications, and that nothing was delivered from it yet. `missing` are publications that do not
    exist now."""
    if isinstance(reported, LeftOut):
        if resume_lsn < reported.whole_until:
            return None
        return _judge_left_out(reported, may_be_older, missing, slot)
    if isinstance(reported, (DecodingFailed, ServerCrashed)):
        return judge_repeated_failure(reported, resume_lsn=resume_lsn, slot=slot)
    if reported.times < _CERTAIN_TIMES or reported.resume_lsn != resume_lsn:
        return None
    return DataGap(
        f"the server has removed WAL that slot {slot} needs: {reported.message}",
        hint=f"changes after the resume LSN can no longer be read: {UNTIL_NOW}",
    )


def _judge_left_out(left_out: LeftOut, may_be_older: bool, missing: tuple[str, ...], slot: str) -> WalgateError | None:
    if not may_be_older:
        now = (
            f"publications that still do not exist: {', '.join(missing)}"
            if missing
            else "it exists now, so it was recreated"
        )
        return DataGap(
            f"the server cannot send changes, because a publication did not exist when they were made ({left_out.message}); "
            f"{now}",
            hint="if source.publications was just changed, set it back and start the gateway: nothing is lost. If the "
            "publication was renamed, set source.publications to its new name and start the gateway. Otherwise, changes to "
            "its tables can no longer be sent through this slot, and recreating the publication is not enough: "
            + (
                "first recreate the missing publications (CREATE PUBLICATION ... FOR TABLE ...), then "
                if missing
                else ""
            )
            + UNTIL_NOW,
        )
    if left_out.ends_stream:
        return StopForOperator(
            f"slot {slot} was created before its publication, and this version of PostgreSQL cannot decode changes from such a "
            f"slot ({left_out.message})",
            hint="nothing has been delivered yet: run walgate accept-gap --until-now, which recreates the slot, "
            "and start the gateway. Changes committed before the slot is recreated will not be sent: to get "
            "the current rows, take a snapshot of the tables (docs/gap.md)",
        )
    return None
