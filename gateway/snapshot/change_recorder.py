"""Switch the recording of the stream's changes on and off. Changes are recorded while a snapshot is
in progress, and always if rows are reselected (debezium.reselect_unavailable_values). Recording
begins before the first boundary is emitted, so the judge has the ids of all transactions from then
until a table begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import asyncpg

from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.connection import transaction
from gateway.snapshot.change_tracking import MessageObserver, RecordingObserver
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import TableProgress
from gateway.snapshot.rules.visibility import parse_visibility
from gateway.snapshot.sql import CURRENT_SNAPSHOT, NEW_XID
from gateway.snapshot.stored_state import StreamState
from gateway.transactions.machine import TransactionMachine

_EVERY_XID = 1 << 62

OnMessage = Callable[[str, bytes, int, bool], object | None]


class ChangeRecorder:
    """Give the state machine the observer that records changes, or one that only receives messages.
    The ids of all transactions are recorded from `start` on, and the keys of a relation from
    `begin` on.

    `judge` is None while nothing is recorded. `first_xid` is a 64-bit transaction id that was
    assigned when recording began. `on_message` is called for Walgate's own logical messages at all
    times.
    """

    def __init__(self, sql: asyncpg.Connection, machine: TransactionMachine, on_message: OnMessage) -> None:
        self._sql = sql
        self._machine = machine
        self._on_message = on_message
        self.judge: StalenessJudge | None = None
        self.first_xid = 0
        self._observer: RecordingObserver | None = None

    def listen(self) -> None:
        """Stop recording changes; go on receiving messages."""
        self._machine.set_observer(MessageObserver(self._on_message))
        self.judge = self._observer = None

    async def start(self, durable: StreamState | None) -> StalenessJudge:
        """Record changes from now on, unless they are recorded already, and return the judge.

        `durable` is what an earlier session stored about the stream. Raises WalgateError.
        """
        if self.judge is not None:
            return self.judge
        visibility = parse_visibility(await self._fetch(CURRENT_SNAPSHOT))
        # `durable` lacks what this session has received without recording it. No transaction can
        # arrive between this check and `set_observer`: nothing is awaited there.
        goes_on = durable is not None and durable.is_active and self._machine.transaction_count == 0
        if durable is not None and goes_on:
            judge = StalenessJudge(visibility, durable.floor, durable.unseen)
        else:
            judge = StalenessJudge(visibility, _EVERY_XID)
        self.judge = judge
        self._observer = RecordingObserver(self._machine, judge, self._on_message)
        self._machine.set_observer(self._observer)
        # Transactions that were received before have lower ids than one that is assigned now.
        with classified_errors("snapshot"):
            async with transaction(self._sql):
                self.first_xid = int(await self._fetch(NEW_XID))
        if judge.floor == _EVERY_XID:
            judge.wait_for_all_below(self.first_xid)
        return judge

    async def observe_snapshot(self) -> None:
        """Take a PostgreSQL snapshot and let the judge forget the transactions that the snapshot
        sees."""
        if self.judge is not None:
            self.judge.observe(parse_visibility(await self._fetch(CURRENT_SNAPSHOT)))

    async def _fetch(self, query: str) -> str:
        with classified_errors("snapshot"):
            value: str = await self._sql.fetchval(query)
        return value

    def begin(self, relation_oid: int, progress: TableProgress, schema_ids: Sequence[int]) -> None:
        assert self._observer is not None
        self._observer.begin(relation_oid, progress, list(schema_ids))

    def end(self, relation_oid: int) -> None:
        if self._observer is not None:
            self._observer.end(relation_oid)
