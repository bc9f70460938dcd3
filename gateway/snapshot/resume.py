"""Resume the tables that an earlier session has begun and not finished.

A table goes on where it was if nothing that its chunks depend on has changed. The remaining chunks
have the stored keys and the stored ranges. `begun` has the ranges that were begun and not finished,
`untouched` the number of the first leaf that was not begun. A table begins again if it is read as a
whole, or if its columns, files or publications have changed (`fingerprint`). It also begins again
after a gap, since rows that were read may have been changed or removed without an event. The same
holds after a session that takes no snapshots (`unwatched`), since it records no keys.

Where a table begins again, its purpose FILL becomes REPLACE. It stays FILL if the only reason is
that the table is read as a whole, and none of its rows were sent.

A reselection goes on even then, since it reads rows as they are now. The whole table is read
instead if its key columns have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from gateway.snapshot.progress_log import log_quarantined
from gateway.snapshot.read_plan import ReadPlan, ReadPlans, Surveyed
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.stored_state import (
    RESELECT,
    StoredStates,
    TableState,
    encode_stream,
    encode_table,
    segment_key,
    table_key,
)
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import SETTLED, TableTasks
from gateway.snapshot.toast_reselection import has_its_keys

log = structlog.get_logger()

SURVEYED_AT_ONCE: Final = 50
"""Maximum number of tables in one survey, since each of its statements has to end in time."""


def unwatched(states: StoredStates, frame: bytes, position_key: bytes) -> dict[bytes, bytes | None]:
    """Return the records that a session without snapshots stores before it delivers changes: each
    unfinished table begins again, and the recorded changes of the stream are void. None removes a
    record. Nothing is returned if they are stored already, or if no snapshot was ever taken."""
    stream = states.stream
    if stream is None:
        return {}
    records: dict[bytes, bytes | None] = {}
    for oid, state in states.tables.items():
        if state.status in SETTLED or state.is_not_found or state.purpose == RESELECT:
            continue
        again = state.begun_again()
        if state != again:
            records[table_key(position_key, oid)] = encode_table(frame, again)
        for segment in states.keys.get(oid, ()):
            records[segment_key(position_key, oid, segment)] = None
    void = replace(stream, floor=0, unseen=(), is_active=False, has_unwatched=True)
    if stream != void:
        records[position_key] = encode_stream(frame, void)
    return records


class Resumption:
    """Resume tables before the stream starts. `is_after_gap`: changes were lost since the last
    transaction."""

    def __init__(self, tasks: TableTasks, plans: ReadPlans, *, is_after_gap: bool) -> None:
        self._tasks = tasks
        self._plans = plans
        self._is_after_gap = is_after_gap

    def cancel_quarantined(self, unfinished: Sequence[TableState]) -> list[TableState]:
        """Cancel the snapshots of tables in quarantine, and return the states of the others."""
        quarantined = [
            state for state in unfinished if state.relation_oid in self._tasks.quarantined and not state.is_not_found
        ]
        for state in quarantined:
            self._tasks.cancel(self._tasks.restore(state, is_after_gap=self._is_after_gap).oid)
        if quarantined:
            log_quarantined([f"{state.schema}.{state.name}" for state in quarantined])
        return [state for state in unfinished if state not in quarantined]

    async def resume(self, unfinished: Sequence[TableState]) -> None:
        """Resume these tables; changes must be recorded already. Whether waiting tables, perhaps
        10,000, are still published is left to the check of the catalog that follows."""
        tasks = self._tasks
        begun = []
        for state in unfinished:
            if state.is_not_found:
                tasks.restored_is_unpublished(state.relation_oid)
            elif state.status == Status.WAITING.value or (self._is_after_gap and state.purpose != RESELECT):
                tasks.restore(state, is_after_gap=self._is_after_gap)
            else:
                begun.append(state)
        going_on = []
        for start in range(0, len(begun), SURVEYED_AT_ONCE):
            going_on += await self._restore_begun(begun[start : start + SURVEYED_AT_ONCE])
        for plan in await self._plans.of(going_on):
            self._go_on(tasks.by_oid[plan.surveyed.relation.relation_oid], plan)
        if tasks.by_oid:
            whole = tasks.snapshot
            log.info("snapshot_resumed", tables=len(tasks.by_oid), snapshot_id=whole.id, **whole.pause_fields)

    async def _restore_begun(self, states: Sequence[TableState]) -> list[Surveyed]:
        """Restore tables that were begun, and return those that can go on."""
        surveyed = await self._plans.survey([state.relation_oid for state in states])
        going_on = []
        for state in states:
            relation = surveyed.get(state.relation_oid)
            if relation is None:
                self._tasks.restored_is_unpublished(state.relation_oid)
            elif self._can_go_on(self._tasks.restore(state, is_after_gap=self._is_after_gap), relation):
                going_on.append(relation)
        return going_on

    def _can_go_on(self, task: TableTask, surveyed: Surveyed) -> bool:
        """Return whether the table can go on where it was."""
        return task.is_reselect or task.state.fingerprint == surveyed.fingerprint

    def _go_on(self, task: TableTask, plan: ReadPlan) -> None:
        if has_its_keys(task, plan) if task.is_reselect else not plan.is_read_at_once:
            self._tasks.resume(task, plan)
