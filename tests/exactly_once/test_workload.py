"""The workload and its log: both witnesses agree, and every shape occurs."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conftest import Database
from tests.exactly_once.history import load_truth
from tests.exactly_once.shapes import SHAPES
from tests.exactly_once.workload import PUBLICATION, TABLES, Workload, create_tables

pytestmark = pytest.mark.integration


async def test_the_log_agrees_with_postgresql_about_every_transaction(database: Database) -> None:
    connection = await database.connect()
    await create_tables(connection)
    workload = Workload(database.dsn, seed=3, pause_s=0.005)
    await workload.run_transactions(300)
    last_xid = await workload.finish()
    truth = await load_truth(connection, PUBLICATION)
    assert truth.transactions[-1].xid == last_xid
    assert {shape for logged in truth.transactions if (shape := logged.shape) != "one"} == SHAPES.keys() - {"aborted"}
    assert workload.rolled_back_count > 0
    # Row counts by the log are those of the tables, for the tables that are never truncated.
    balance: Counter[str] = Counter()
    for logged in truth.transactions:
        for statement in logged.statements:
            sign = {"INSERT": 1, "DELETE": -1}.get(statement.operation, 0)
            balance[statement.relation] += sign * len(statement.keys)
    for table in set(TABLES) - {"emptied"}:
        assert balance[f"work.{table}"] == await connection.fetchval(f"SELECT count(*) FROM work.{table}")
    await connection.close()
