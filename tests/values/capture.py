"""`python -m tests.values.capture <dsn>`: writes golden.json, what a real server makes of values in
text and in binary.

For each case of the oracle with a built-in type: `format('%s', v)` (the output function) and
`<typsend>(v)`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import asyncpg

from tests.values.oracle import SESSION
from tests.values.test_oracle import CASES, USER_TYPES, generated

GOLDEN = Path(__file__).with_name("golden.json")
FIRST_USER_OID = 16384
PER_CASE = 15
NO_SEND_FUNCTION_OF_ITS_OWN = {"refcursor"}


async def capture(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, server_settings=SESSION)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(USER_TYPES.replace("CREATE PUBLICATION everything FOR ALL TABLES;", ""))
        cases = [case for case in CASES if not case.extension and case.type not in NO_SEND_FUNCTION_OF_ITS_OWN]
        values = [row for case in cases for row in await _values(connection, case.type, case.literals)]
        version = await connection.fetchval("SHOW server_version")
        lines = ",\n".join(json.dumps(row) for row in values)
        GOLDEN.write_text(f'{{"server_version": "{version}", "values": [\n{lines}\n]}}\n', "utf-8")
    finally:
        await transaction.rollback()  # nothing stays in the database
        await connection.close()


async def _values(connection: asyncpg.Connection, type_name: str, literals: object) -> list[dict[str, object]]:
    await connection.execute(f"CREATE TEMP TABLE one (v {type_name}) ON COMMIT DROP")
    oid, typmod, send = await connection.fetchrow(
        "SELECT t.oid::int8, a.atttypmod, nullif(t.typsend, 0)::regproc::text FROM pg_attribute a "
        "JOIN pg_type t ON t.oid = a.atttypid WHERE attrelid = 'one'::regclass AND attname = 'v'"
    )
    rows: list[dict[str, object]] = []
    if oid < FIRST_USER_OID and send is not None:
        for literal in generated(literals, PER_CASE):  # type: ignore[arg-type]
            if (
                literal is None
                or len(literal) > 120
                or not await connection.fetchval("SELECT accepts($1, $2)", literal, type_name)
            ):
                continue
            text, binary = await connection.fetchrow(
                f"WITH w AS (INSERT INTO one VALUES ($1::text::{type_name}) RETURNING v) "
                f"SELECT format('%s', v), {send}(v) FROM w",
                literal,
            )
            if len(text) > 400:
                continue
            row = {"type": type_name, "oid": oid, "typmod": typmod, "text": text, "binary": binary.hex()}
            if row not in rows:
                rows.append(row)
    await connection.execute("DROP TABLE one")
    return rows


if __name__ == "__main__":
    asyncio.run(capture(sys.argv[1]))
