"""Walgate's records of the workload against what Debezium Server 3.6.3 wrote for it: each field of schemas and records."""

from __future__ import annotations

import asyncpg
import pytest

from tests.conftest import Database
from tests.debezium import workload
from tests.debezium.comparison import differences, unused_reasons
from tests.debezium.encoded import Record, encoded
from tests.debezium.recorded import OPTIONS, load, shortened
from tests.debezium.scene import PUBLICATION, prepare

pytestmark = pytest.mark.integration
WITH_BINARY = "with_binary"
NOT_RECORDED = {"text": "every_type"}
"""Options -> a table of which Debezium wrote no record under them."""


async def test_every_field_is_debeziums_but_for_the_differences_that_are_meant(database: Database) -> None:
    sql = await database.connect()
    slot = f"{database.name}_slot"
    await _run_workload(sql, slot)
    reasons: set[str] = set(unused_reasons([], [], of_one_run=False))
    for name, options in OPTIONS.items():
        theirs = load(name)
        for binary in (False, True):
            if binary and options.include_unknown_datatypes:
                continue  # of types without a binary form
            publication = WITH_BINARY if binary else PUBLICATION
            written = await encoded(sql, slot, publication, options, binary=binary)
            ours = [_shortened(each) for each in written if _is_compared(each, name, binary=binary)]
            expected = [each for each in theirs if _is_compared(each, name, binary=binary)]
            assert differences(expected, ours, of_one_run=False) == [], f"{name}, binary {binary}"
            reasons &= set(unused_reasons(expected, ours, of_one_run=False))
    assert reasons <= {
        r"\w+ /source/version",
        r"\w+ /source/sequence",
        r"transaction (key )?/id",
        r"\w+ /transaction/id",
        r"\w+ /(before|after)/[tx]_hstores?",  # as Java's hash table has them: of a few pairs often the same order
    }


async def _run_workload(sql: asyncpg.Connection, slot: str) -> None:
    await prepare(sql)
    tables = await sql.fetch(
        "select quote_ident(relname) from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' "
        "and relname <> 'moneys'"
    )
    await sql.execute(f"create publication {WITH_BINARY} for table {', '.join(row[0] for row in tables)}")
    await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    for statement in workload.STATEMENTS:
        await sql.execute(statement)


def _is_compared(record: Record, options: str, *, binary: bool) -> bool:
    """`moneys` is not among the tables that are read in binary, nor are its transactions."""
    if record.topic.rpartition(".")[2] == NOT_RECORDED.get(options):
        return False
    return not (binary and record.topic.endswith((".moneys", ".transaction")))


def _shortened(record: Record) -> Record:
    return Record(record.topic, record.key, shortened(record.value), record.key_schema, record.value_schema)
