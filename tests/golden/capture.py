"""Makes the golden files of one server again:  python -m tests.golden.capture --dsn postgresql://postgres@host/postgres

The server needs wal_level=logical, max_prepared_transactions > 0 and a superuser. Everything
happens in a database `walgate_golden` that is made and dropped for each scenario. The files of
other server versions are not touched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import asyncpg

from tests.golden.scenarios import SCENARIOS, Capture, Scenario

FOLDER = Path(__file__).parent
DATABASE = "walgate_golden"
# As the gateway pins its own sessions; the work memory is the smallest that there is.
SESSION = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "logical_decoding_work_mem": "64kB",
}


async def capture_all(dsn: str) -> None:
    administrator = await asyncpg.connect(dsn)
    try:
        version_num: int = administrator.get_server_version().major
        for scenario in SCENARIOS:
            if any(version_num >= capture.oldest_version for capture in scenario.captures):
                await administrator.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8'")
                try:
                    await capture_scenario(dsn, scenario, version_num)
                finally:
                    await administrator.execute(f"DROP DATABASE {DATABASE}")
    finally:
        await administrator.close()


async def capture_scenario(dsn: str, scenario: Scenario, major: int) -> None:
    connection = await asyncpg.connect(dsn, database=DATABASE, server_settings=SESSION)
    try:
        for statement in scenario.setup:
            await connection.execute(statement)
        await connection.execute(
            f"SELECT pg_create_logical_replication_slot('{DATABASE}', 'pgoutput', false, {scenario.two_phase})"
        )
        try:
            for statement in scenario.sql:
                await connection.execute(statement)
            for capture in scenario.captures:
                if major >= capture.oldest_version:
                    await capture_once(connection, scenario, capture, major)
        finally:
            await connection.execute(f"SELECT pg_drop_replication_slot('{DATABASE}')")
    finally:
        await connection.close()


async def capture_once(
    connection: asyncpg.Connection[asyncpg.Record], scenario: Scenario, capture: Capture, major: int
) -> None:
    names = await connection.fetchval(
        "SELECT string_agg(quote_ident(pubname), ',' ORDER BY pubname) FROM pg_publication"
    )
    options = {**capture.options, "publication_names": names}
    if capture.immediate:
        await connection.execute("SET debug_logical_replication_streaming = immediate")
    messages = await connection.fetch(
        f"SELECT lsn::text, xid::text, data FROM pg_logical_slot_peek_binary_changes('{DATABASE}', NULL, NULL, VARIADIC $1)",
        [word for option in options.items() for word in option],
    )
    facts = {
        "server_version": str(await connection.fetchval("SHOW server_version")).split()[0],
        "description": scenario.description,
        "capture": {**asdict(capture), "options": options},
        "two_phase_slot": scenario.two_phase,
        "setup": scenario.setup,
        "sql": scenario.sql,
    }
    lines = [json.dumps({"lsn": lsn, "xid": int(xid), "hex": data.hex()}) for lsn, xid, data in messages]
    text = json.dumps(facts, indent=1, ensure_ascii=False)[:-2] + ',\n "messages": [\n' + ",\n".join(lines) + "\n]}\n"
    path = FOLDER / f"postgresql-{major}" / f"{scenario.name}.{capture.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    print(f"{path.parent.name}/{path.name}: {len(messages)} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True)
    asyncio.run(capture_all(parser.parse_args().dsn))
