"""Walgate's records of the workload against what Debezium Server 3.6.3 wrote for it: each field of
schemas and records."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from tests.conftest import Database
from tests.debezium.answers import SLOT, Answers
from tests.debezium.comparison import differences, unused_reasons
from tests.debezium.encoded import Record, encoded
from tests.debezium.recorded import OPTIONS, STOPS_AT, load, shortened
from tests.debezium.scene import PUBLICATION, WITH_BINARY, run_workload


@pytest.mark.integration
async def test_every_field_is_debeziums_but_for_the_differences_that_are_meant(database: Database) -> None:
    sql = await database.connect()
    slot = f"{database.name}_slot"
    await run_workload(sql, slot)
    await compare(sql, slot)


async def test_and_so_it_is_of_recorded_messages() -> None:
    """The same without a server."""
    answers: Any = Answers()
    await compare(answers, SLOT)


async def compare(sql: asyncpg.Connection, slot: str) -> None:
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


def _is_compared(record: Record, options: str, *, binary: bool) -> bool:
    """`moneys` is not among the tables that are read in binary, nor are its transactions."""
    if record.topic.rpartition(".")[2] == STOPS_AT.get(options):
        return False
    return not (binary and record.topic.endswith((".moneys", ".transaction")))


def _shortened(record: Record) -> Record:
    return Record(record.topic, record.key, shortened(record.value), record.key_schema, record.value_schema)
