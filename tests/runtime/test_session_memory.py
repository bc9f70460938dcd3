"""Each error that changes the next session changes just what it is about, and no other error
changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

import gateway.cli.main
import gateway.debezium.row_encoder
import gateway.runtime.supervisor  # noqa: F401  # with these, every class of errors is there
from gateway.errors import NeedsText, Retry, StopForOperator, WalgateError
from gateway.events.errors import NeedsOptional, UnknownBinary
from gateway.postgres.classify_errors import CannotDecode, LossReported
from gateway.postgres.standby_status import ServerSilent
from gateway.runtime.assign_column_rules import ColumnsUnknown
from gateway.runtime.kafka_transactions import WholeFirst
from gateway.runtime.quarantine import QuarantineRelation
from gateway.runtime.relation_registrar import RowsOfPartition
from gateway.runtime.replication_loop import ReadWhole
from gateway.runtime.session_memory import SessionEnd, SessionMemory
from gateway.snapshot.pending_chunks import ChunksAreStreamed
from gateway.startup.repeated_failure import DecodingFailed
from gateway.startup.server_notices import LeftOut, WalRemoved
from gateway.startup.timeline_checks import LeftBehind, NotPrimary
from gateway.transactions.machine import RolledBackMessages
from gateway.transactions.transaction import Quarantined
from schemas.lsn import Lsn

STOP = StopForOperator("it cannot be written")
RELATION = Quarantined(7, "public", "t", "cdc.public.t", "a reason", Lsn(5))
ENDED = SessionEnd(begun_lsn=100, resume_lsn=Lsn(200), reads_whole=True, server=("h", 1))
FAILED = DecodingFailed("division by zero", "22012")
CHANGES: list[tuple[WalgateError, dict[str, Any]]] = [
    (NeedsText("x"), {"text_only": True}),
    (UnknownBinary("public.t", "c", "point"), {"text_only": True}),
    (NeedsOptional("public.t", 7, "c", "a reason"), {"optional_fields": {(7, "c")}}),
    (RolledBackMessages("x"), {"whole_once": True, "whole_for_messages": True}),
    (ReadWhole(STOP), {"whole_once": True}),
    (ColumnsUnknown("x"), {"whole_once": True}),
    (ChunksAreStreamed("x"), {"whole_once": True}),
    (WholeFirst(STOP, Lsn(150)), {"careful_until": Lsn(150), "whole_once": True}),
    (
        WholeFirst(LossReported("x", LeftOut("x", ends_stream=True)), Lsn(150)),
        {
            "careful_until": Lsn(150),
            "whole_once": True,
            "reported": LeftOut("x", ends_stream=True, whole_until=150),
        },
    ),
    (QuarantineRelation(STOP, RELATION), {"quarantine": {7: RELATION}}),
    (RowsOfPartition("x"), {"partitions_have_topics": True}),
    (NotPrimary("x"), {"left_behind": [("h", 1)]}),
    (LeftBehind("x"), {"left_behind": [("h", 1)]}),
    (LossReported("x", LeftOut("x", ends_stream=True)), {"reported": LeftOut("x", ends_stream=True)}),
    (LossReported("x", WalRemoved("x")), {"reported": WalRemoved("x", 100, 1)}),
    (ServerSilent(31, 30), {"silence_limits_s": {200: 60}}),
]


def state() -> SessionMemory:
    return SessionMemory(ended=ENDED)


def changed(of: SessionMemory) -> dict[str, Any]:
    before = state()
    names = (field.name for field in fields(of))
    return {name: getattr(of, name) for name in names if getattr(of, name) != getattr(before, name)}


@pytest.mark.parametrize(("error", "expected"), CHANGES, ids=lambda value: type(value).__name__)
def test_an_error_changes_what_it_is_about(error: WalgateError, expected: dict[str, Any]) -> None:
    next_session = state()
    error.change(next_session)
    assert changed(next_session) == expected


def test_a_session_that_streamed_is_followed_by_one_that_streams() -> None:
    next_session = SessionMemory(ended=SessionEnd(reads_whole=False), whole_once=True)
    WholeFirst(STOP, Lsn(150)).change(next_session)
    assert not next_session.whole_once


def test_a_place_that_cannot_be_decoded_is_counted_at_its_resume_lsn() -> None:
    next_session = state()
    for times in (1, 2):
        CannotDecode("x", "", FAILED).change(next_session)
        reported = next_session.reported
        assert isinstance(reported, DecodingFailed) and (reported.resume_lsn, reported.times) == (200, times)
        assert next_session.repeated_failure is reported


@pytest.mark.parametrize(("begun_lsn", "times"), [(100, 2), (101, 1)])
def test_removed_wal_is_counted_at_the_lsn_at_which_the_session_began(begun_lsn: int, times: int) -> None:
    next_session = state()
    LossReported("x", WalRemoved("x")).change(next_session)
    next_session.ended = SessionEnd(begun_lsn=begun_lsn)
    LossReported("x", WalRemoved("x")).change(next_session)
    assert next_session.reported == WalRemoved("x", begun_lsn, times)


def test_the_server_left_last_is_tried_last() -> None:
    next_session = state()
    for host in ("a", "b", "a"):
        next_session.ended = SessionEnd(server=(host, 1))
        NotPrimary("x").change(next_session)
    assert next_session.left_behind == [("b", 1), ("a", 1)]


def _classes(of: type[WalgateError]) -> Iterator[type[WalgateError]]:
    for below in of.__subclasses__():
        yield below
        yield from _classes(below)


def test_no_other_error_changes_the_next_session() -> None:
    changing = {error for error in _classes(WalgateError) if "change" in vars(error)}
    assert changing == {type(error) for error, _ in CHANGES} - {UnknownBinary, LeftBehind} | {CannotDecode}
    next_session = state()
    Retry("x").change(next_session)
    assert changed(next_session) == {}
