"""An error in a row, through the whole gateway: it says which row of which transaction, and no
value of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from schemas.lsn import Lsn
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess

NewGateway = Callable[..., GatewayProcess]

SEEDED = """
from gateway.values import column_codec as codec
from schemas.avro_types import Form

def broken(value):
    if len(value) > 3:
        raise {error}(f"that is {{value!r}}")
    return b"\\2\\0"

codec._FROM_BINARY[Form.BYTES] = codec._FROM_TEXT[Form.BYTES] = broken

from gateway.cli.main import main
main()
"""
SECRET = "4111111111111111"
ROW_BEFORE_VALUE = len(b"N\0\3" + b"b\0\0\0\4\0\0\0\1" + b"b\0\0\0\5hello")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_encoder_error_says_where_it_was_met(
    database: Database, new_gateway: NewGateway, streamed: bool
) -> None:
    sql = await database.connect()
    await sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text, b bytea); CREATE PUBLICATION walgate FOR ALL TABLES"
    )
    gateway = new_gateway()
    gateway.code = SEEDED.format(error="ValueError")
    await gateway.streaming()
    transaction = sql.transaction()
    await transaction.start()
    xid = await sql.fetchval("SELECT pg_current_xact_id()::text::int8")
    async with sql.transaction():  # a savepoint
        if streamed:
            await sql.execute("INSERT INTO t SELECT n, repeat('x', 300), '' FROM generate_series(1000, 1999) n")
        first_lsn = Lsn.parse(await sql.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
        await sql.execute("INSERT INTO t VALUES (1, 'hello', $1)", SECRET.encode())
        if streamed:
            await sql.execute("INSERT INTO t SELECT n, repeat('x', 300), '' FROM generate_series(2000, 2999) n")
    await transaction.commit()
    assert await gateway.wait() == 78
    said = gateway.last_words()
    found = re.search(
        r"public\.t, column b: the value at byte (\d+) is not a valid bytea in binary format \(ValueError\) "
        r"\(INSERT of public\.t, transaction (\d+), commit LSN ([0-9A-F]+/[0-9A-F]+), LSN ([0-9A-F]+/[0-9A-F]+)\)",
        said,
    )
    assert found is not None, said
    assert int(found[1]) == 5 + ROW_BEFORE_VALUE  # also of a streamed one, which is read again whole for its commit LSN
    assert int(found[2]) == xid
    assert Lsn.parse(found[3]) > Lsn.parse(found[4])
    assert first_lsn <= Lsn.parse(found[4]) < first_lsn + 10_000
    assert SECRET not in gateway.log() and SECRET.encode().hex() not in gateway.log()


async def test_an_error_that_nobody_foresaw_says_where_it_was_met_too(
    database: Database, new_gateway: NewGateway
) -> None:
    sql = await database.connect()
    await sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text, b bytea); CREATE PUBLICATION walgate FOR ALL TABLES"
    )
    gateway = new_gateway()
    gateway.code = SEEDED.format(error="TypeError")
    await gateway.streaming()
    await sql.execute("INSERT INTO t VALUES (1, 'hello', $1)", SECRET.encode())
    assert await gateway.wait() == 78
    said = gateway.last_words()
    assert re.search(
        r"TypeError in .*row_encoder\.py:\d+ .*broken "
        rf"\(INSERT of public\.t, column b at byte {5 + ROW_BEFORE_VALUE}, transaction \d+, commit LSN \S+, LSN \S+\)",
        said,
    ), said
    assert SECRET not in gateway.log()
