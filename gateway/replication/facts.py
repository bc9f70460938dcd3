"""What the checks know, what they expect, and what they may find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.lsn import Lsn
from gateway.operate.errors import WalgateError
from gateway.replication.publication import PublicationFacts
from gateway.replication.server import ServerFacts
from gateway.replication.slot import SlotFacts

# What remains when changes are gone for good.
NEW_START: Final = "drop the slot and start anew, with new copies of the tables"


@dataclass(frozen=True, slots=True)
class Caution:
    """Worth an operator's look; nothing is lost."""

    message: str
    hint: str


Finding = WalgateError | Caution


@dataclass(frozen=True, slots=True)
class Expected:
    """What settings and position record say. `resume_lsn` None: there is no position, this is the first start.

    `slot_made`: the intent to make the slot is on record, so that one may already be there. `backend_pid`: our own
    walsender, once it runs.
    """

    slot: str
    publications: tuple[str, ...]
    resume_lsn: Lsn | None = None
    system_identifier: str | None = None
    timeline: int | None = None
    database: str | None = None
    adopt_slot: bool = False
    slot_made: bool = False
    two_phase: bool = False
    failover: bool = False
    backend_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    server: ServerFacts
    slot: SlotFacts | None
    publications: Mapping[str, PublicationFacts]
