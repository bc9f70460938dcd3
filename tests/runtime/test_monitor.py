"""The monitor's own figures, and that a defect of it freezes nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import SlotStatus
from gateway.runtime import monitor as module
from gateway.runtime.monitor import Monitor, alarm_level, growth_rate, wal_held
from tests.conftest import Database

MB = 1 << 20


def slot(safe_wal_bytes: int | None = None) -> SlotStatus:
    return SlotStatus("s", None, 100, 200, "reserved", safe_wal_bytes)


def test_the_nearer_limit_counts_and_tells_when_it_is_reached() -> None:
    held = wal_held(slot(safe_wal_bytes=90 * MB), 10 * MB, 2.0 * MB, 40 * MB)
    assert (held.limit_bytes, held.limit_by, held.seconds_to_full) == (40 * MB, "source.wal_budget_bytes", 15.0)
    held = wal_held(slot(safe_wal_bytes=20 * MB), 10 * MB, 2.0 * MB, 40 * MB)
    assert (held.limit_bytes, held.limit_by, held.seconds_to_full) == (30 * MB, "max_slot_wal_keep_size", 10.0)


def test_without_a_limit_or_without_growth_nothing_is_foretold() -> None:
    assert wal_held(slot(), 10 * MB, 2.0 * MB, None).limit_bytes is None
    assert wal_held(slot(), 10 * MB, 0.0, 40 * MB).seconds_to_full is None
    assert wal_held(slot(), 50 * MB, 0.0, 40 * MB).seconds_to_full == 0.0


@pytest.mark.parametrize(
    ("held", "rate", "level"),
    [(1, 0.0, 0), (9, 100.0, 0), (11, 0.01, 0), (11, 0.03, 1), (50, 0.0, 1), (80, 0.0, 2), (50, 0.2, 2), (95, 0.0, 3)],
)  # fmt: skip
def test_the_alarm_grows_with_the_share_and_with_the_haste(held: int, rate: float, level: int) -> None:
    assert alarm_level(wal_held(slot(), held * MB, rate * MB, 100 * MB)) == level


def test_the_rate_is_that_of_the_window() -> None:
    assert growth_rate(deque([(0.0, 100), (10.0, 400), (20.0, 300)])) == 10.0
    assert growth_rate(deque([(5.0, 100)])) == 0.0


def test_wal_that_grows_again_is_not_said_to_shrink() -> None:
    """The slot's restart_lsn moves in leaps: what falls, falls at once."""
    fallen = [(0.0, 1000), (10.0, 2000), (20.0, 100)]
    assert growth_rate(deque(fallen)) == -45.0
    assert growth_rate(deque([*fallen, (22.0, 120)])) == 0.0
    assert growth_rate(deque([*fallen, (22.0, 120), (30.0, 300)])) == 20.0


@pytest.mark.integration
async def test_a_blocker_whose_begin_is_hidden_grows_older(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented role may not see when the transactions of other roles began."""
    writer, sql = await database.connect(), await database.connect()
    role = f"r_{database.name}"
    await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{database.server.password}'")
    values: dict[str, Any] = {"source": {"dsn": database.dsn_of(role), "heartbeat_interval_s": 0}}
    board = StatusBoard()
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.1)
    await writer.execute("BEGIN; CREATE TABLE t (id int)")
    watching = asyncio.create_task(Monitor(Settings(**values), board)._watch_postgresql())
    pid, ages = writer.get_server_pid(), set[float]()
    async with asyncio.timeout(30):
        while max(ages, default=0.0) < 1.0:
            found = board.snapshot()
            ages |= {
                (found.server_time or 0.0) - blocker.since
                for blocker in found.blockers
                if blocker.pid == pid and blocker.age_is_at_least and blocker.since is not None
            }
            await asyncio.sleep(0.05)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await writer.execute("ROLLBACK")
    await sql.execute(f"DROP ROLE {role}")


async def test_a_defect_of_a_watch_is_told_and_the_watch_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {"source": {"dsn": "postgresql://u@127.0.0.1:1/d"}}
    board = StatusBoard()
    monitor = Monitor(Settings(**values), board)
    tries = 0

    async def broken() -> None:
        nonlocal tries
        tries += 1
        raise ValueError("a row's value")

    monkeypatch.setattr(module, "_AGAIN_S", (0.01, 0.01))
    task = asyncio.create_task(monitor._keep("kafka", broken))
    async with asyncio.timeout(10):
        while tries < 3:
            await asyncio.sleep(0.01)
    task.cancel()
    assert board.parts["kafka"].up is False and board.parts["kafka"].error == "the monitor failed: ValueError"
