"""What a session makes of its end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config.settings import Settings
from gateway.errors import RetrySlowly, StopForOperator, WalgateError
from gateway.kafka.transaction_delivery import TransactionTimedOut
from gateway.observe.status_board import StatusBoard
from gateway.postgres.classify_errors import StreamCut
from gateway.postgres.server import Recovery
from gateway.runtime.replication_loop import ReadWhole
from gateway.runtime.session import CrashedHere, Session
from gateway.runtime.session_memory import SessionMemory, StreamEnd
from gateway.snapshot.pending_chunks import ChunksAreStreamed
from gateway.transactions.machine import RolledBackMessages
from gateway.transactions.position import Position
from schemas.lsn import Lsn

NOT_ASKED: Any = None
_NOWHERE = Lsn(0)


def settings_of(dialect: str = "walgate", **source: object) -> Settings:
    return Settings.model_validate(
        {
            "source": {"dsn": "postgresql://x", "slot": "s", "publications": ["p"], **source},
            "kafka": {"bootstrap_servers": "x", "prefix": "x", "dialect": dialect},
            "registry": {"url": "http://x"},
        }
    )


def hint_of(*, error: WalgateError | None, dialect: str = "walgate", skip_lsn: Lsn = _NOWHERE, **source: object) -> str:
    """Of a transaction that has timed out twice. `error` has ended the session before."""
    memory = SessionMemory()
    if error is not None:
        error.change(memory)
    session = Session(settings_of(dialect, **source), NOT_ASKED, memory)
    session._choose_streaming(Position("71", 1, "shop", "s", "cdc", ("p",), "1.0", skip_lsn=skip_lsn))
    session._stop_if_again(Lsn(1), TransactionTimedOut("too long"))
    with pytest.raises(StopForOperator) as stop:
        session._stop_if_again(Lsn(1), TransactionTimedOut("too long"))
    return stop.value.hint


@pytest.mark.parametrize(
    ("offered", "error", "settings"),
    [
        ("source.messages = false", RolledBackMessages("x"), {"messages": True}),
        ("", RolledBackMessages("x"), {"messages": True, "skip_lsn": Lsn(5)}),
        ("", RolledBackMessages("x"), {"messages": False}),
        ("", ChunksAreStreamed("x"), {"messages": True}),
        ("", ReadWhole(StopForOperator("x")), {"messages": True}),
        ("", None, {"messages": True}),
        ("", None, {"messages": True, "skip_lsn": Lsn(5)}),
        ("source.large_transactions = stream", None, {"messages": True, "large_transactions": "whole"}),
        ("", None, {"messages": True, "dialect": "debezium"}),
    ],
)
def test_a_transaction_that_takes_too_long_twice_is_offered_the_way_to_smaller_parts(
    offered: str, error: WalgateError | None, settings: dict[str, Any]
) -> None:
    hint = hint_of(error=error, **settings)
    assert hint.startswith("raise kafka.transaction_timeout_s")
    for way in ("source.messages = false", "source.large_transactions = stream"):
        assert (way in hint) == (way == offered)


class Cut(Session):
    """A session whose stream the server cuts, with the last closed Kafka transaction not
    durable."""

    async def _run(self, stack: AsyncExitStack, stop: asyncio.Event) -> None:
        self._kafka = cast(Any, SimpleNamespace(closed_lsn=Lsn(300), durable_lsn=Lsn(200), received_until=Lsn(400)))
        self._stream = cast(Any, SimpleNamespace(failure=StreamCut("the server closed the connection")))
        raise self.error

    error: WalgateError


@pytest.mark.parametrize(
    "error", [StreamCut("the server closed the connection"), RetrySlowly("the broker does not answer")]
)
async def test_a_cut_stream_is_counted_at_the_lsn_with_which_the_next_session_resumes(error: WalgateError) -> None:
    """Otherwise the count and the position never agree, and the server is crashed for ever."""
    memory = SessionMemory()
    session = Cut(settings_of(), StatusBoard(), memory)
    session.error = error
    with pytest.raises(WalgateError):
        await session.run(asyncio.Event())
    assert memory.cut is not None
    assert (memory.cut.resume_lsn, memory.cut.received_until, memory.ended.resume_lsn) == (200, 400, 200)


async def test_a_server_that_crashes_on_is_waited_for_even_if_the_start_has_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the fourth crash, the start decides at once."""
    crashes = iter(range(1, 20))

    async def recovery(sql: object) -> Recovery:
        return Recovery("00000001", str(next(crashes)))

    monkeypatch.setattr("gateway.runtime.session.recovery_of", recovery)
    memory = SessionMemory()
    waited: list[int] = []
    for times in range(1, 8):
        memory.cut = StreamEnd("cut", Lsn(200), Recovery("00000001"), has_passed=False, received_until=Lsn(400))
        session = Session(settings_of(), StatusBoard(), memory)
        try:
            await session._note_crash(NOT_ASKED)
        except CrashedHere:
            waited.append(times)
    assert waited == [2, 3, 5, 6, 7]


async def test_a_crash_is_counted_after_another_host_of_the_dsn_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby answers while the server is starting again."""
    answers = iter((Recovery(), Recovery("00000001", "0/300")))

    async def recovery(sql: object) -> Recovery:
        return next(answers)

    monkeypatch.setattr("gateway.runtime.session.recovery_of", recovery)
    memory = SessionMemory(
        cut=StreamEnd("cut", Lsn(200), Recovery("00000001"), has_passed=False, received_until=Lsn(400))
    )
    for reported in (False, True):
        await Session(settings_of(), StatusBoard(), memory)._note_crash(NOT_ASKED)
        assert (memory.reported is not None) == reported
    assert memory.careful_until == 400 and memory.cut is None
