"""When a stream is ended so that its slot can be moved on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.lsn import Lsn
from gateway.operate.board import Board
from gateway.operate.errors import Retry
from gateway.operate.settings import Settings
from gateway.service.memory import SessionMemory
from gateway.service.release import WalBudget
from tests.judgement.facts import ACTIVE, with_slot

FULL = with_slot(restart_lsn=Lsn(100), confirmed_flush_lsn=Lsn(200))


def budget(memory: SessionMemory, action: str) -> WalBudget:
    values: dict[str, Any] = {"source": {"dsn": "postgresql://u@h/d", "wal_budget_bytes": 500, "on_wal_budget": action}}
    return WalBudget(Settings(**values), memory, Board())


def test_a_stream_is_ended_at_the_budget_where_the_setting_says_so() -> None:
    memory = SessionMemory(position=ACTIVE)
    budget(memory, "warn").check(FULL)
    budget(memory, "advance").check(with_slot(restart_lsn=Lsn(1900), confirmed_flush_lsn=Lsn(1950)))
    with pytest.raises(Retry, match=r"source\.wal_budget_bytes is 500"):
        budget(memory, "advance").check(FULL)


def test_a_stream_goes_on_while_the_slot_would_not_be_moved_yet() -> None:
    budget(SessionMemory(position=ACTIVE, release_again_at=time.monotonic() + 60), "advance").check(FULL)
    budget(SessionMemory(), "advance").check(FULL)  # no position was read
