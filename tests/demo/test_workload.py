"""The shop does what its tally says, all of it, and again for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.demo import scenes
from gateway.demo.buyers import IDS_PER_BUYER, Tally
from gateway.demo.scenes import FIRST_ID, SCENES, forget_imports
from gateway.demo.workload import BUYER_COUNT, create_shop, run_workload
from tests.conftest import Database

pytestmark = pytest.mark.integration

SECONDS = 3.0
# What the scenes and the import write into the tables that nobody else touches there, without the
# time of day.
_STAGED = f"SELECT md5(string_agg(i::text, '|' ORDER BY order_id, line)) FROM items i WHERE order_id > {FIRST_ID}"
# Columns that buyers write once: how many of their later changes there is time for differs from run
# to run.
_FIRST_CUSTOMERS = "SELECT name, profile, avatar, tags FROM customers WHERE id = ANY ($1) ORDER BY id"


@pytest.fixture(autouse=True)
def small_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the demo itself needs an import of its own size (tests/install/test_dist.py)."""
    monkeypatch.setattr(scenes, "BULK_ROWS", 20_000)


async def test_the_tally_equals_what_postgresql_decodes(database: Database) -> None:
    await create_shop(database.dsn)
    connection = await database.connect()
    slot = f"tally_{database.name}"[:63]
    await connection.execute("SELECT pg_create_logical_replication_slot($1, 'test_decoding')", slot)
    tally = Tally()
    try:
        await run_workload(database.dsn, tally, seconds=SECONDS, seed=1)
        lines = await connection.fetch(
            "SELECT xid::text, split_part(data, ' ', 1) AS word, data LIKE 'message: transactional: 0%' AS free "
            "FROM pg_logical_slot_get_changes($1, NULL, NULL, 'skip-empty-xacts', '1')",
            slot,
        )
    finally:
        await connection.execute("SELECT pg_drop_replication_slot($1)", slot)
        await connection.close()
    words = Counter(line["word"] for line in lines)
    changed = {line["xid"] for line in lines if line["word"] not in ("BEGIN", "COMMIT") and not line["free"]}
    assert words["table"] == tally.row_changes
    assert len(changed) == tally.transactions
    assert words["message:"] == 2
    assert tally.rolled_back == 3
    assert len(tally.done) == len(SCENES) + 1
    assert tally.row_changes > scenes.BULK_ROWS


async def test_the_same_seed_makes_the_same_rows(database: Database) -> None:
    connection = await database.connect()
    first_ids = [number * IDS_PER_BUYER + 1 for number in range(1, BUYER_COUNT + 1)]
    seen = []
    for _ in range(2):
        await create_shop(database.dsn)
        await run_workload(database.dsn, Tally(), seconds=0.5, seed=7)
        seen.append((await connection.fetchval(_STAGED), await connection.fetch(_FIRST_CUSTOMERS, first_ids)))
        await connection.execute("DROP PUBLICATION walgate; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await connection.close()
    assert seen[0] == seen[1]
    assert len(seen[0][1]) == BUYER_COUNT


async def test_a_shop_that_is_opened_again_goes_on_with_other_ids(database: Database) -> None:
    await create_shop(database.dsn)
    connection = await database.connect()
    counts = []
    for run in (0, 7):
        await run_workload(database.dsn, Tally(), seconds=0.5, seed=1, run=run)
        counts.append(await connection.fetchval("SELECT count(*) FROM customers"))
    await forget_imports(connection)
    assert counts[1] > counts[0]
    assert await connection.fetchval("SELECT count(*) FROM items WHERE sku LIKE 'bulk-%'") == 0
