"""`python -m bench.encode` measures what the service does, so it must keep up with it. Its figures
are no test's business."""

from __future__ import annotations

import asyncio

import pytest

from bench.encode import STAGES, TABLES, TPC_B, W3COLUMNS, capture, measure
from bench.workloads import PUBLICATION
from gateway.local import Postgres


@pytest.mark.integration
@pytest.mark.parametrize(("shape", "size"), [(W3COLUMNS, 100), (TPC_B, 4)], ids=["one table", "four tables"])
async def test_the_bench_of_the_encoding_runs_through_every_stage(
    postgres: Postgres, shape: tuple[str, str], size: int
) -> None:
    try:
        captured = await capture(postgres, "bench", *shape, 200, size, binary=True)
    finally:
        sql = await postgres.connect()
        await sql.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}; DROP TABLE IF EXISTS {TABLES}")
        await sql.close()
    sums = await asyncio.to_thread(measure, captured, 1)
    assert len(sums) == len(STAGES) + 2 and all(
        figure > 0 for figure in sums
    )  # a table that is read, and Debezium's encoding
