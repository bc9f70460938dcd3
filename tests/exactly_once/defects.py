"""What can be wrong with a delivery. Each word is one promise of the design that was broken."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Defect(StrEnum):
    LOST = "a committed transaction or row is not there"
    DOUBLED = "a transaction or row is there more than once"
    TORN = "a transaction is there in part"
    GHOST = "something is there that was never committed"
    ORDER = "rows are not in the order in which they happened"
    LSN = "an LSN or a commit time is not the true one"
    MANIFEST = "a manifest does not add up"
    MARKERS = "the markers tell an impossible story"
    RISING = "commit LSNs do not rise strictly"
    EPOCH = "epochs go back, or were not announced"
    VOID = "in-progress rows of an earlier epoch count"
    KEY = "a record lies in another partition than its key says"
    VALUE = "a value is not the one that was written"
    POSITION = "the position is ahead of what is delivered, or goes back"
    UNSTABLE = "two attempts at the same event differ"


@dataclass(frozen=True, slots=True)
class Finding:
    defect: Defect
    detail: str

    def __str__(self) -> str:
        return f"{self.defect.name} ({self.defect}): {self.detail}"
