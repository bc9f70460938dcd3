"""Readers leave the event loop to the stream."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from gateway.events.row_encoder import RowEncoder
from gateway.pgoutput.relation import Relation
from gateway.relations.describe import describe
from gateway.relations.type_catalog import TYPES_QUERY, read_types
from gateway.snapshot.chunk_reader import _SHARED_STEP_BYTES, ReadChunk, read_chunk
from gateway.snapshot.copy_decoder import CopyDecoder
from gateway.snapshot.read_plan import ReadPlan, as_message, read_plan, survey
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import TableProgress
from gateway.snapshot.rules.visibility import parse_visibility
from gateway.snapshot.sql import CURRENT_SNAPSHOT
from gateway.transactions.native_record_writer import EventVersion
from tests.conftest import Database

ROWS = 40_000
NOT_ASKED: Any = None


@pytest.mark.parametrize("is_shared", [True, False])
async def test_one_reader_takes_a_small_step_in_a_round_where_others_wait(
    is_shared: bool, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of all readers; where the stream has nothing else they are larger, and side by side."""
    sessions = [await database.connect() for _ in range(2)]
    plan = await _plan(sessions[0])
    judge = StalenessJudge(parse_visibility(await sessions[0].fetchval(CURRENT_SNAPSHOT)), 0)
    steps: list[int] = []
    feed = CopyDecoder.feed

    def counted(rows: CopyDecoder, piece: bytes) -> None:
        steps.append(len(piece))
        feed(rows, piece)

    monkeypatch.setattr(CopyDecoder, "feed", counted)
    turn = asyncio.Lock() if is_shared else None
    reading = [asyncio.create_task(_read(session, plan, judge, turn)) for session in sessions]
    rounds = 0
    while not all(task.done() for task in reading):
        await asyncio.sleep(0)
        rounds += bool(steps)
    found = [await task for task in reading]
    assert [len(waiting.rows) for waiting in found] == [ROWS, ROWS]
    assert (max(steps) <= _SHARED_STEP_BYTES) == is_shared
    assert not is_shared or rounds >= len(steps)


async def _plan(sql: asyncpg.Connection, row_count: int = ROWS) -> ReadPlan:
    await sql.execute("CREATE TABLE public.t (id int PRIMARY KEY, word text)")
    await sql.execute(f"INSERT INTO public.t SELECT i, 'row ' || i FROM generate_series(1, {row_count}) i")
    await sql.execute("CREATE PUBLICATION turns FOR TABLE public.t")
    oid = await sql.fetchval("SELECT 'public.t'::regclass::oid::int8")
    surveyed = (await survey(sql, ["turns"], [oid]))[oid]
    relation: Relation = as_message(surveyed.relation)
    types = read_types(await sql.fetch(TYPES_QUERY, [column.type_oid for column in relation.columns]))
    encoder = RowEncoder(describe(relation, types, [], {}, is_key_whole=True), 7, 8)
    return read_plan(surveyed, EventVersion("public.t", 7, encoder, NOT_ASKED), "x.public.t", "x", text_only=False)


async def _read(sql: asyncpg.Connection, plan: ReadPlan, judge: StalenessJudge, turn: asyncio.Lock | None) -> ReadChunk:
    table = TableProgress(judge, plan.surveyed.leaves, 16 << 20)
    table.begin()
    table.sizer.blocks = 1 << 16
    chunk = table.next_chunk()
    assert chunk is not None
    return await read_chunk(sql, chunk, plan, ["turns"], lambda number, waiting: None, turn)


@pytest.mark.parametrize("row_count", [1, ROWS])
@pytest.mark.parametrize("ends_by", ["an error", "a cancellation"])
async def test_a_read_that_ends_when_the_server_has_sent_all_does_not_wait_for_an_answer(
    ends_by: str, row_count: int, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to cancel then: a driver that cancels the COPY waits 60 s and gives up the
    connection."""
    session, other = [await database.connect() for _ in range(2)]
    plan = await _plan(session, row_count)
    judge = StalenessJudge(parse_visibility(await session.fetchval(CURRENT_SNAPSHOT)), 0)

    def fails(rows: CopyDecoder, piece: bytes) -> None:
        raise ValueError("not a row")

    monkeypatch.setattr(CopyDecoder, "feed", fails)
    turn = asyncio.Lock()
    await turn.acquire()  # it waits with its first piece
    reading = asyncio.create_task(_read(session, plan, judge, turn))
    state = "SELECT state || ' ' || query FROM pg_stat_activity WHERE pid = $1"
    async with asyncio.timeout(20):
        while not (await other.fetchval(state, session.get_server_pid())).startswith("idle in transaction COPY"):
            await asyncio.sleep(0.01)
    if ends_by == "an error":
        turn.release()
    else:
        reading.cancel()
    done, _ = await asyncio.wait({reading}, timeout=10)
    assert done
    with pytest.raises(ValueError if ends_by == "an error" else asyncio.CancelledError):
        reading.result()
