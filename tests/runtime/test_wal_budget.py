"""When a stream is ended so that its slot can be moved on."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.config.settings import Settings
from gateway.errors import Retry
from gateway.observe.metrics import REGISTRY
from gateway.observe.status_board import StatusBoard
from gateway.runtime import wal_budget as module
from gateway.runtime.session_memory import SessionMemory
from gateway.runtime.wal_budget import WalBudget
from gateway.startup.facts import Facts
from gateway.startup.wal_release import ReleasedWal, is_released
from gateway.transactions.position import Gap, Position
from schemas.lsn import Lsn
from tests.startup.facts import ACTIVE, EXPECTED, with_slot

FULL = with_slot(restart_lsn=Lsn(100), confirmed_flush_lsn=Lsn(200))


def budget(memory: SessionMemory, action: str) -> WalBudget:
    values: dict[str, Any] = {"source": {"dsn": "postgresql://u@h/d", "wal_budget_bytes": 500, "on_wal_budget": action}}
    return WalBudget(Settings(**values), memory, StatusBoard())


def test_a_stream_is_ended_at_the_budget_where_the_setting_says_so() -> None:
    memory = SessionMemory(position=ACTIVE)
    budget(memory, "warn").check(FULL)
    budget(memory, "advance").check(with_slot(restart_lsn=Lsn(1900), confirmed_flush_lsn=Lsn(1950)))
    with pytest.raises(Retry, match=r"source\.wal_budget_bytes is 500"):
        budget(memory, "advance").check(FULL)


def test_a_stream_goes_on_while_the_slot_would_not_be_moved_yet() -> None:
    budget(SessionMemory(position=ACTIVE, release_again_at=time.monotonic() + 60), "advance").check(FULL)
    budget(SessionMemory(), "advance").check(FULL)  # no position was read


def with_wal(flush_lsn: int, slot_lsn: int) -> Facts:
    """Up to `flush_lsn`, and a slot that holds what is behind `slot_lsn`."""
    found = with_slot(restart_lsn=Lsn(slot_lsn), confirmed_flush_lsn=Lsn(slot_lsn))
    return replace(found, server=replace(found.server, flush_lsn=Lsn(flush_lsn)))


class SlowServer:
    """Stands for Catalog: the connection is lost while the slot is advanced. `moves`: and the
    server advances it all the same."""

    expected = EXPECTED

    def __init__(self, *, moves: bool) -> None:
        self.facts = FULL
        self.moves = moves
        self.asked: list[Lsn] = []

    async def look(self) -> Facts:
        return self.facts

    async def advance_slot(self, end_lsn: Lsn) -> None:
        self.asked.append(end_lsn)
        if self.moves:
            self.facts = with_wal(self.facts.server.flush_lsn, end_lsn)
        raise Retry("advancing the slot: the connection was lost")


async def test_a_slot_that_was_advanced_without_an_answer_is_told_once() -> None:
    memory, server = SessionMemory(position=ACTIVE), SlowServer(moves=True)
    kept: Any = server
    before = REGISTRY.get_sample_value("walgate_slot_advances_total")
    assert before is not None
    with capture_logs() as told:
        with pytest.raises(Retry):
            await budget(memory, "advance").keep(kept)
        assert told == []
        for _ in range(2):
            await budget(memory, "advance").keep(kept)
    (event,) = told
    end_lsn = FULL.server.flush_lsn
    assert (event["event"], event["first_lsn"], event["end_lsn"]) == ("slot_advanced", "0/C8", str(end_lsn))
    assert REGISTRY.get_sample_value("walgate_slot_advances_total") == before + 1
    assert memory.released is not None and memory.released.has_freed and server.asked == [end_lsn]


async def test_a_slot_that_was_not_advanced_has_no_gap() -> None:
    """The server was restarted before it had begun, and what held the WAL has ended."""
    memory, server = SessionMemory(position=ACTIVE), SlowServer(moves=False)
    kept: Any = server
    with pytest.raises(Retry):
        await budget(memory, "advance").keep(kept)
    server.facts = with_slot(restart_lsn=Lsn(1900), confirmed_flush_lsn=Lsn(1950), active_pid=7)
    await budget(memory, "advance").keep(kept)
    assert memory.released is not None  # that session may be the one that advances it
    server.facts = with_slot(restart_lsn=Lsn(1900), confirmed_flush_lsn=Lsn(1950))
    await budget(memory, "advance").keep(kept)
    assert memory.released is None


async def test_a_later_advance_that_was_not_made_is_made_when_the_server_is_back() -> None:
    memory, server = SessionMemory(position=ACTIVE), SlowServer(moves=True)
    kept: Any = server
    with pytest.raises(Retry):
        await budget(memory, "advance").keep(kept)
    await budget(memory, "advance").keep(kept)
    first_lsn = FULL.server.flush_lsn
    assert memory.released is not None and memory.released.told_lsn == first_lsn
    server.facts = with_wal(first_lsn + 1000, first_lsn)
    server.moves, memory.release_again_at = False, 0.0
    with pytest.raises(Retry):
        await budget(memory, "advance").keep(kept)
    server.facts, server.moves = with_wal(first_lsn + 2000, first_lsn), True
    with pytest.raises(Retry):
        await budget(memory, "advance").keep(kept)
    assert server.asked == [first_lsn, first_lsn + 1000, first_lsn + 2000]


class Recorder:
    """Stands for Bootstrap: the steps of accept_gap end with this position."""

    position = ACTIVE

    def __init__(self, *_: object) -> None: ...

    def fresh_position(self, _: Facts) -> Position:
        return ACTIVE

    async def carry_out(self, _catalog: object, _steps: object) -> Position:
        return self.position


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_gap_is_told_only_if_it_was_recorded(is_recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot was not advanced after all, or changes were lost in another way too."""
    released = ReleasedWal(Lsn(100), Lsn(200))
    gap = Gap(Lsn(100), Lsn(200), released.reason)
    monkeypatch.setattr(Recorder, "position", replace(ACTIVE, resume_lsn=Lsn(200), gap=gap if is_recorded else None))
    monkeypatch.setattr(module, "Bootstrap", Recorder)
    memory, server = SessionMemory(position=ACTIVE, released=released), SlowServer(moves=True)
    kept: Any = server
    with capture_logs() as told:
        await budget(memory, "advance").record(kept)
    assert [event["event"] for event in told] == ["gap_recorded"] * is_recorded
    assert memory.released is None
    assert is_released(Recorder.position) == is_recorded
