"""A session that takes no snapshots comes between two that do: it records no keys of the changes
that it delivers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from gateway.snapshot.resume import unwatched
from gateway.snapshot.rules.ranges_to_read import TidRange
from gateway.snapshot.stored_state import NOT_TO_BE_READ, RESELECT, StoredStates, StreamState, TableState, decode_states
from schemas.records import SNAPSHOT_STATE
from schemas.wire_format import frame
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene

KEY = b"123/shop/walgate"
HALF_READ = TableState(1, "public", "t", "s", "FILL", "READING", "f", 1, (TidRange(0, 1, None),), (3,), 1, 2, 3)
BEGINS_AGAIN = TableState(1, "public", "t", "s", "REPLACE")
ACTIVE = StreamState(7, (8, 9), True, "s", paused=True)
VOID = StreamState(snapshot_id="s", paused=True, has_unwatched=True)
KEPT = (
    TableState(2, "public", "done", "s", status="DONE", row_count=5),
    TableState(3, "public", "known", "", status=NOT_TO_BE_READ),
    TableState(4, "public", "reselected", "", RESELECT, "READING", "f"),
    TableState.not_found(5),
)


def stored(*tables: TableState, stream: StreamState | None = ACTIVE) -> StoredStates:
    return StoredStates(stream, {state.relation_oid: state for state in tables}, {1: {0: [b"1"]}, 4: {0: [b"4"]}})


def after(states: StoredStates) -> StoredStates:
    records = unwatched(states, frame(1), KEY)
    written = {key: value for key, value in records.items() if value is not None}
    return decode_states(written, {1: SNAPSHOT_STATE})


@pytest.mark.parametrize("purpose", ["FILL", "REPLACE", "VERIFY"])
@pytest.mark.parametrize("status", ["WAITING", "READING", "ENDING"])
def test_unfinished_tables_begin_again(purpose: str, status: str) -> None:
    found = after(stored(replace(HALF_READ, purpose=purpose, status=status), *KEPT))
    wanted = "REPLACE" if purpose == "FILL" else purpose
    assert found == StoredStates(VOID, {1: replace(BEGINS_AGAIN, purpose=wanted)})


def test_keys_to_be_read_again_are_void() -> None:
    records = unwatched(stored(HALF_READ), frame(1), KEY)
    assert records[KEY + b"#1.0"] is None and KEY + b"#4.0" not in records


def test_a_second_session_without_snapshots_stores_nothing() -> None:
    states = stored(BEGINS_AGAIN, *KEPT, stream=VOID)
    states.keys.clear()
    assert not unwatched(states, frame(1), KEY)


def test_nothing_is_stored_if_no_snapshot_was_ever_taken() -> None:
    assert not unwatched(stored(stream=None), frame(1), KEY)


ROW_COUNT, MOVED = 2002, 1900  # seven rows fill a block, so that only the first blocks have room
SLOWLY = {"snapshot__chunk_bytes": 100_000, "snapshot__rows_per_s": 200}
SETUP = f"""
CREATE TABLE public.t (id int PRIMARY KEY, n int, pad text, big text) WITH (autovacuum_enabled = false);
ALTER TABLE public.t ALTER pad SET STORAGE PLAIN, ALTER big SET STORAGE EXTERNAL;
INSERT INTO public.t SELECT i, 0, repeat('p', 1000), CASE i WHEN {MOVED} THEN repeat('b', 5000) END
FROM generate_series(1, {ROW_COUNT}) i;
DELETE FROM public.t WHERE id BETWEEN 1 AND 20;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.t
"""
BLOCK = f"SELECT (ctid::text::point)[0]::int FROM public.t WHERE id = {MOVED}"


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_row_that_moves_meanwhile_keeps_its_toasted_value(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """It moves from a block that was not read to one that was. A table that is published only then
    replaces the rows that consumers have of it."""
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **SLOWLY) as scene:
        sql, gateway = scene.sql, scene.gateway
        await sql.execute(SETUP)
        await sql.execute("VACUUM (INDEX_CLEANUP ON) public.t")
        await gateway.streaming()
        await scene.in_the_middle(ROW_COUNT // 10)
        assert await gateway.stop() == 0
        await gateway.streaming(snapshot__mode="never")
        before = await sql.fetchval(BLOCK)
        other = await database.connect()  # the first session goes on where it wrote last
        await other.execute(f"UPDATE public.t SET n = 1 WHERE id = {MOVED}")
        assert await sql.fetchval(BLOCK) < 10 < before
        await sql.execute("CREATE TABLE public.late (id int PRIMARY KEY); INSERT INTO public.late VALUES (1), (2)")
        await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.late")
        await sql.execute("INSERT INTO public.late VALUES (3)")
        await scene.delivered()
        assert await gateway.stop() == 0
        await gateway.streaming(snapshot__rows_per_s=100_000)
        await scene.snapshot_done()
        names = "public.t", "public.late"
        target = await scene.judge({name: f"SELECT * FROM {name}" for name in names}, keyless=())
        assert {target.purposes[f"{topic_prefix}.{name}"] for name in names} == {"REPLACE"}
        assert await gateway.stop() == 0
