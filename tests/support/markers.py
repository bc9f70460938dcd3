"""The marker topic by itself: is it a legal story, and which transactions does it say are
committed?

EPOCH                                   everything open is void; prepared transactions stay
BEGIN (rows) COMMIT                     next to each other
STREAM_START STREAM_STOP                a segment; segments of several transactions interleave
STREAM_ABORT STREAM_COMMIT              of a transaction that had a segment in this epoch
BEGIN_PREPARE PREPARE, STREAM_PREPARE   then, in any epoch, COMMIT_PREPARED or ROLLBACK_PREPARED with the same manifest
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.exactly_once.defects import Defect, Finding
from tests.support.delivered import Record

COMMITTING = ("COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED")


@dataclass(slots=True)
class Story:
    """What the markers tell. `committed` in the order of the topic, `prepared` are those still open
    at its end."""

    committed: list[Record] = field(default_factory=list)
    prepared: dict[tuple[str, int], Record] = field(default_factory=dict)
    epoch: int = 0
    findings: list[Finding] = field(default_factory=list)
    _current: Record | None = None
    _streams: set[int] = field(default_factory=set)
    _newest_lsn: int = 0
    _committed_keys: set[tuple[int, int]] = field(default_factory=set)

    def take(self, marker: Record) -> None:
        value = marker.value
        kind = value["kind"]
        if kind == "EPOCH":
            self._begin_epoch(marker)
            return
        if value["epoch"] != self.epoch:
            self._report(Defect.EPOCH, marker, f"written in epoch {value['epoch']}, the newest is {self.epoch}")
        getattr(self, f"_{kind.lower()}")(marker, value["xid"])
        if kind in COMMITTING:
            self._commit_order(marker)

    def _report(self, defect: Defect, marker: Record, what: str) -> None:
        self.findings.append(Finding(defect, f"{marker.value['kind']} at offset {marker.offset}: {what}"))

    def _begin_epoch(self, marker: Record) -> None:
        epoch = marker.value["epoch"]
        if epoch <= self.epoch:
            self._report(Defect.EPOCH, marker, f"epoch {epoch} after {self.epoch}")
        self.epoch = epoch
        self._current = None
        self._streams.clear()

    def _commit_order(self, marker: Record) -> None:
        xid, commit_lsn = marker.value["xid"], marker.value["marker_lsn"]
        if (xid, commit_lsn) in self._committed_keys:
            self._report(Defect.DOUBLED, marker, f"transaction {xid} was committed before")
            return
        if commit_lsn <= self._newest_lsn:
            self._report(Defect.RISING, marker, f"commit LSN {commit_lsn:X} after {self._newest_lsn:X}")
        self._newest_lsn = max(commit_lsn, self._newest_lsn)
        self._committed_keys.add((xid, commit_lsn))
        self.committed.append(marker)

    def _demand(self, holds: bool, marker: Record, what: str) -> None:
        if not holds:
            self._report(Defect.MARKERS, marker, what)

    def _open(self, marker: Record, _xid: int) -> None:
        self._demand(self._current is None, marker, "inside another transaction or segment")
        self._current = marker

    def _close(self, marker: Record, xid: int, kind: str) -> None:
        opened = self._current
        legal = opened is not None and opened.value["kind"] == kind and opened.value["xid"] == xid
        self._demand(legal, marker, f"without {kind} of {xid} before it")
        if opened is not None and kind == "BEGIN" and legal:
            self._demand(
                opened.value["marker_lsn"] == marker.value["marker_lsn"], marker, "BEGIN had another commit LSN"
            )
        self._current = None

    def _end_stream(self, marker: Record, xid: int) -> None:
        self._demand(self._current is None, marker, "inside another transaction or segment")
        self._demand(xid in self._streams, marker, f"{xid} had no segment in this epoch")
        self._streams.discard(xid)

    _begin = _begin_prepare = _open

    def _commit(self, marker: Record, xid: int) -> None:
        self._close(marker, xid, "BEGIN")

    def _stream_start(self, marker: Record, xid: int) -> None:
        self._open(marker, xid)
        self._streams.add(xid)

    def _stream_stop(self, marker: Record, xid: int) -> None:
        self._close(marker, xid, "STREAM_START")

    def _stream_commit(self, marker: Record, xid: int) -> None:
        self._end_stream(marker, xid)

    def _stream_abort(self, marker: Record, xid: int) -> None:
        if marker.value["subxid"] == xid:
            self._end_stream(marker, xid)
        else:
            self._demand(xid in self._streams, marker, f"{xid} had no segment in this epoch")

    def _prepare(self, marker: Record, xid: int) -> None:
        self._close(marker, xid, "BEGIN_PREPARE")
        self.prepared[marker.value["gid"], xid] = marker

    def _stream_prepare(self, marker: Record, xid: int) -> None:
        self._end_stream(marker, xid)
        self.prepared[marker.value["gid"], xid] = marker

    def _commit_prepared(self, marker: Record, xid: int) -> None:
        self._demand(self._current is None, marker, "inside another transaction or segment")
        prepared = self.prepared.pop((marker.value["gid"], xid), None)
        if prepared is None:
            self._report(Defect.MARKERS, marker, f"{xid} was not prepared")
        elif prepared.value["manifest"] != marker.value["manifest"]:
            self._report(Defect.MANIFEST, marker, f"another manifest than that of the PREPARE of {xid}")

    _rollback_prepared = _commit_prepared


def read_story(markers: list[Record]) -> Story:
    story = Story()
    for marker in markers:
        story.take(marker)
    return story
