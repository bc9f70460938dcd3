"""Errors of a value that real servers cannot send are told from those of a row filter: the names of
the servers' functions differ between releases."""

from __future__ import annotations

import asyncpg
import pytest

from gateway.errors import StopForOperator
from gateway.postgres.classify_errors import CannotDecode, _server_message, classify_in_stream
from tests.conftest import Database

pytestmark = pytest.mark.integration

PRINTS = {
    "22021": r"SELECT convert_from('\xff', 'UTF8')",
    "22P05": r"SELECT convert_from('\x81', 'WIN1252')",
    "22008": "SELECT (interval '2000000000 hours' * 1.2)::text",
}
COMPUTES = {"22008": "SELECT timestamp '294276-12-31' + interval '1 year'"}


async def test_a_value_that_cannot_be_sent_is_no_error_of_a_row_filter(source: Database) -> None:
    sql = await source.connect()
    for is_of_value, queries in ((True, PRINTS), (False, COMPUTES)):
        for sqlstate, query in queries.items():
            if is_of_value and sqlstate == "22008" and sql.get_server_version().major > 14:
                assert await sql.fetchval(query) == "2400000000:00:00"
                continue
            with pytest.raises(asyncpg.PostgresError) as raised:
                await sql.execute(query)
            assert raised.value.sqlstate == sqlstate
            error = classify_in_stream(_server_message(raised.value), "stream", binary=False, is_streaming=True)
            assert type(error) is (StopForOperator if is_of_value else CannotDecode), (query, error)
