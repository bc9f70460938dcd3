"""The engine of snapshots, without servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from gateway.config.settings import Settings
from gateway.snapshot.coordinator import SnapshotCoordinator
from gateway.snapshot.rules.table_progress import TableProgress
from gateway.snapshot.stored_state import StoredStates, TableState
from gateway.snapshot.table_task import TableTask

NOT_ASKED: Any = None
"""PostgreSQL and the stream have no part in it."""
STREAM: Any = SimpleNamespace(relations=SimpleNamespace(quarantined={}))


class Transactions:
    """Stands for a session in which every transaction commits."""

    def transaction(self, **_: object) -> Self:
        return self

    async def start(self) -> None: ...

    async def commit(self) -> None: ...


@pytest.fixture
def snapshot() -> SnapshotCoordinator:
    settings = Settings.model_validate(
        {
            "source": {"dsn": "postgresql://x", "slot": "s", "publications": ["p"]},
            "kafka": {"bootstrap_servers": "x", "prefix": "x", "dialect": "debezium"},
            "registry": {"url": "http://x"},
            "debezium": {"reselect_unavailable_values": True},
        }
    )
    return SnapshotCoordinator(
        settings, NOT_ASKED, STREAM, NOT_ASKED, NOT_ASKED, StoredStates(),
        login=NOT_ASKED, position_key=b"", frame=b"", is_first=True, text_only=False, publications=NOT_ASKED,
    )  # fmt: skip


def task_of(oid: int, name: str, progress: TableProgress | None = None, plan: Any = None) -> TableTask:
    """Return the task of a table whose progress was not set up by the coordinator."""
    task = TableTask(TableState(oid, "a", name, "s"))
    task._progress, task._plan = progress, plan
    return task
