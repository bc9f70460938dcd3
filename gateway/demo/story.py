"""The course of the demo: a shop with old rows is created, gateway and mirror start, the shop
opens, both catch up, and all tables are compared.

Meanwhile two other tasks run: one follows the marker topic; the other draws, and checks that
gateway and mirror still run. The first task that fails ends the story with its error, so that
nothing waits for a program that has ended. A wait for a program without progress has a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from gateway.build import build_name
from gateway.demo.buyers import Connection, Tally
from gateway.demo.delivered import Delivered, follow
from gateway.demo.gateway_process import GatewayProcess, slot_lag_bytes
from gateway.demo.mirror import Mirror
from gateway.demo.panel import Panel
from gateway.demo.verdict import TableVerdict, compare_table, connect_for_verdict
from gateway.demo.workload import OLD_ROWS, SCENE_COUNT, TABLES, create_shop, fill_shop, run_workload
from gateway.errors import StopForOperator
from gateway.local.guard import Child, Guard
from gateway.runtime.tasks import cancel
from schemas.topic_names import transaction_topic

STEPS = ("Gateway", "Spark mirror", "Workload", "Catch up", "Merge", "Comparison")
_REFRESH_S = 0.25
_STALL_TIMEOUT_S = 240.0
_BATCH_TIMEOUT_S = 600.0  # a batch may contain the whole import, on a busy machine
_KILL_AT = 0.4  # of the workload's time: the big import is open or just committed
_DOWN_S = 1.0
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class StoryOptions:
    seconds: float
    seed: int
    kill_gateway: bool


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the servers, and the names that this story may use there."""

    dsn: str
    bootstrap_servers: str
    registry_url: str
    prefix: str = "cdc"
    slot: str = "walgate"


class Story:
    def __init__(self, options: StoryOptions, panel: Panel, guard: Guard, addresses: Addresses) -> None:
        self._options = options
        self._panel = panel
        self._addresses = addresses
        self._gateway = GatewayProcess(guard, addresses.dsn, addresses.slot, _gateway_settings(addresses))
        self._mirror = Mirror(guard, guard.folder / "mirror")
        self._tally = Tally()
        self._delivered = Delivered()
        self._slot_lag_bytes = 0
        self._gateway_may_end = True
        self._mirror_may_end = False

    async def tell(self, facts: dict[str, Any]) -> None:
        """Run the story and fill `facts` with the verdict. Raises `PartFailed` or `StopForOperator`
        if there is no verdict."""
        connection = await asyncpg.connect(self._addresses.dsn, command_timeout=60)
        try:
            await create_shop(self._addresses.dsn)
            await fill_shop(self._addresses.dsn)
            await self._start()
            await self._with_watchers(self._play(), connection)
            verdicts = await self.judge()
        finally:
            await connection.close(timeout=2)
        facts.update(self._facts(verdicts))

    @property
    def _address_lines(self) -> tuple[str, str]:
        """Lines with the servers' addresses, to be copied while they run."""
        return (
            f"psql   {self._addresses.dsn}",
            f"topics {self._addresses.bootstrap_servers}, schemas {self._addresses.registry_url}",
        )

    async def _start(self) -> None:
        """Start the mirror, then the gateway. The mirror takes longest to start, and waits for the
        gateway's topics."""
        await self._mirror.start(
            self._addresses.bootstrap_servers, self._addresses.registry_url, self._addresses.prefix
        )
        with self._panel.step("Gateway") as step:
            await self._gateway.start()
            self._gateway_may_end = False
            names = f"reads slot {self._addresses.slot}, writes {self._addresses.prefix}.*"
            step.detail = f"{names}, {build_name()}"
        self._panel.note(*self._address_lines)

    async def _with_watchers(self, play: Coroutine[Any, Any, None], connection: Connection) -> None:
        """Run `play` to its end, or to the first failure of a watching task."""
        topic = transaction_topic(self._addresses.prefix)
        tasks = [
            asyncio.create_task(play),
            asyncio.create_task(follow(self._addresses.bootstrap_servers, topic, self._delivered)),
            asyncio.create_task(self._watch(connection)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel(tasks)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self) -> None:
        """Run the workload once the mirror reads, wait until all is delivered and merged, and stop
        both programs."""
        await self._await_mirror()
        await self._work()
        with self._panel.step("Catch up") as step:
            await self._catch_up()
            step.detail = f"the mirror has reached {self._mirror.progress.commit_lsn}"
        with self._panel.step("Merge") as step:
            await self._merge()
            step.detail = "all changes are in the Delta tables"
        self._panel.show(self._figures())
        self._panel.forget(*self._address_lines)
        self._mirror_may_end = self._gateway_may_end = True
        await self._mirror.stop()
        if code := await self._gateway.stop():
            raise self._gateway.child.failure(f"exited with code {code} when it was stopped")

    async def _await_mirror(self) -> None:
        with self._panel.step("Spark mirror") as step:
            await self._mirror.ready()
            step.detail = "applies transactions to Delta tables"

    async def _work(self) -> None:
        seconds, tally = self._options.seconds, self._tally
        parts = [run_workload(self._addresses.dsn, tally, seconds=seconds, seed=self._options.seed)]
        if self._options.kill_gateway:
            parts.append(self._kill_gateway())
        limit_s = seconds * 3 + _STALL_TIMEOUT_S
        with self._panel.step("Workload") as step:
            try:
                await asyncio.wait_for(_together(*parts), limit_s)
            except TimeoutError:
                raise StopForOperator(
                    f"the workload of {seconds:.0f} s had not finished after {limit_s:.0f} s"
                ) from None
            step.detail = f"{tally.transactions:,} transactions, {tally.row_changes:,} row changes committed"

    async def _kill_gateway(self) -> None:
        await asyncio.sleep(self._options.seconds * _KILL_AT)
        self._gateway_may_end = True
        await self._gateway.kill()
        self._panel.note("kill -9 of the gateway, in the middle of the workload; it is restarted")
        await asyncio.sleep(_DOWN_S)
        await self._gateway.start()
        self._gateway_may_end = False

    async def _catch_up(self) -> None:
        """Wait until every old row and every transaction is in Kafka, and the last transaction in
        the mirror."""
        delivered, tally, mirror = self._delivered, self._tally, self._mirror.progress
        await _advance(self._gateway.child, _STALL_TIMEOUT_S, lambda: delivered.is_all_read, lambda: True)
        await _advance(
            self._gateway.child, _STALL_TIMEOUT_S, lambda: delivered.transactions, lambda: tally.transactions
        )
        if delivered.transactions != tally.transactions:
            raise StopForOperator(
                f"{tally.transactions} transactions were committed, {delivered.transactions} are in the marker topic"
            )
        await _advance(
            self._mirror.child, _BATCH_TIMEOUT_S, lambda: mirror.commit_lsn, lambda: delivered.last_commit_lsn
        )

    async def _merge(self) -> None:
        """Wait until the changes that Spark can read already are in the tables that any program can
        read."""
        mirror, end_lsn = self._mirror.progress, self._delivered.last_commit_lsn
        await _advance(self._mirror.child, _BATCH_TIMEOUT_S, lambda: mirror.merged_lsn, lambda: end_lsn)

    async def judge(self) -> list[TableVerdict]:
        with self._panel.step("Comparison") as step:
            dumped = await self._mirror.dump([f"public.{table}" for table in TABLES])
            connection = await connect_for_verdict(self._addresses.dsn)
            try:
                verdicts = [await compare_table(connection, table, rows) for table, rows in dumped.items()]
            finally:
                await connection.close(timeout=2)
            step.detail = verdict_line(verdicts)
        for verdict in verdicts:
            for line in complaints(verdict):
                self._panel.note(line)
        return verdicts

    async def _watch(self, connection: Connection) -> None:
        """Draw, and raise if a program has ended that should not have."""
        while True:
            self._mirror.read_progress()
            self._gateway.measure()
            for child, may_end in (
                (self._gateway.child, self._gateway_may_end),
                (self._mirror.child, self._mirror_may_end),
            ):
                if child.exit_code is not None and not may_end:
                    raise child.failure(f"exited with code {child.exit_code}")
            self._slot_lag_bytes = await slot_lag_bytes(connection, self._addresses.slot)
            self._panel.show(self._figures())
            await asyncio.sleep(_REFRESH_S)

    def _figures(self) -> dict[str, str]:
        tally, delivered, mirror = self._tally, self._delivered, self._mirror.progress
        scene = f", {len(tally.done)}/{SCENE_COUNT} scenarios, last: {tally.done[-1]}" if tally.done else ""
        return {
            "shop": f"{tally.transactions:,} transactions, {tally.row_changes:,} row changes{scene}",
            "gateway": f"lag {_duration(delivered.lag_s)}, {delivered.events_per_s:,.0f} events/s, "
            f"peak {self._gateway.peak_rss_bytes / _MEGABYTE:.0f} MB, slot lag {self._slot_lag_bytes / _MEGABYTE:.1f} MB",
            "snapshot": f"{delivered.rows_read:,} rows read, {OLD_ROWS:,} were there before"
            + (", all tables complete" if delivered.is_all_read else ""),
            "kafka": f"{delivered.transactions:,} transactions, {delivered.events:,} events "
            f"({delivered.streamed} streamed, {delivered.prepared} prepared)",
            "mirror": f"{mirror.transactions:,}/{delivered.transactions + delivered.chunks:,} transactions rebuilt, "
            f"{mirror.changes:,} changes in {mirror.batches} micro-batches",
        }

    def _facts(self, verdicts: Sequence[TableVerdict]) -> dict[str, Any]:
        return {
            "equal": bool(verdicts) and all(verdict.equal for verdict in verdicts),
            "tables": len(verdicts),
            "rows_compared": sum(verdict.source_rows for verdict in verdicts),
            "transactions": self._tally.transactions,
            "transactions_rebuilt": self._mirror.progress.transactions - self._delivered.chunks,
            "rows_before": OLD_ROWS,
            "row_changes": self._tally.row_changes,
            "differing_tables": [verdict.table for verdict in verdicts if not verdict.equal],
            "worst_lag_s": round(self._delivered.worst_lag_s, 3),
            "gateway_peak_rss_mb": round(self._gateway.peak_rss_bytes / _MEGABYTE, 1),
            "gateway_starts": self._gateway.start_count,
            "seconds": self._options.seconds,
            "seed": self._options.seed,
        }


async def _together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all the coroutines concurrently. The first failure cancels the others and is raised
    itself, not in an ExceptionGroup."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _advance(child: Child, stall_s: float, measure: Callable[[], int], goal: Callable[[], int]) -> None:
    """Wait until the measure has reached the goal. Raises `PartFailed` if it does not change for
    `stall_s` seconds."""
    seen, moved_at = measure(), time.monotonic()
    while seen < goal():
        await asyncio.sleep(_REFRESH_S)
        if measure() != seen:
            seen, moved_at = measure(), time.monotonic()
        elif time.monotonic() - moved_at > stall_s:
            raise child.failure(f"made no progress for {stall_s:.0f} s")


def verdict_line(verdicts: Sequence[TableVerdict]) -> str:
    rows = sum(verdict.source_rows for verdict in verdicts)
    wrong = [verdict.table for verdict in verdicts if not verdict.equal]
    if wrong:
        return f"NOT EQUAL: {', '.join(wrong)}"
    return f"{len(verdicts)} tables, {rows:,} rows: every value equal"


def complaints(verdict: TableVerdict) -> list[str]:
    """Return lines that describe a table's differences; none if it is equal."""
    if verdict.equal:
        return []
    counts = f"{verdict.source_rows} in PostgreSQL, {verdict.mirror_rows} in the mirror"
    lines = [f"{verdict.table}: {verdict.differing_rows} rows differ; {counts}"]
    if verdict.missing_columns:
        lines.append(f"{verdict.table}: the mirror has no column {', '.join(verdict.missing_columns)}")
    return lines + [f"  {difference}" for difference in verdict.differences]


def _gateway_settings(addresses: Addresses) -> dict[str, str]:
    return {
        "WALGATE_SOURCE__DSN": addresses.dsn,
        "WALGATE_SOURCE__SLOT": addresses.slot,
        "WALGATE_SOURCE__TWO_PHASE": "true",
        "WALGATE_KAFKA__BOOTSTRAP_SERVERS": addresses.bootstrap_servers,
        "WALGATE_KAFKA__PREFIX": addresses.prefix,
        "WALGATE_REGISTRY__URL": addresses.registry_url,
    }


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
