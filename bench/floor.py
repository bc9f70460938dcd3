"""pg_recvlogical to /dev/null: the fastest rate of the walsender. The time includes the program's
own start, some 20 ms."""

from __future__ import annotations

import asyncio
import os
import time

from bench.cost import busy_s, cpu_s
from bench.run import Run
from bench.scene import Backlogged
from bench.workloads import PUBLICATION


async def drain(backlogged: Backlogged, *, binary: bool) -> Run:
    postgres = backlogged.parts.postgres
    sql = await backlogged.connect()
    async with backlogged.slot_copy(sql) as slot:
        busy, begun = busy_s(), time.monotonic()
        process = await asyncio.create_subprocess_exec(
            postgres.program("pg_recvlogical"),
            *("-h", "127.0.0.1", "-p", str(postgres.port), "-U", "postgres", "-d", backlogged.database),
            *("--slot", slot, "--start", "--no-loop", "-f", "/dev/null", "--endpos", backlogged.last_lsn),
            *("-o", "proto_version=4", "-o", f"publication_names={PUBLICATION}", "-o", "messages=true"),
            *("-o", f"binary={'true' if binary else 'false'}"),
            env={**os.environ, "PGPASSWORD": postgres.password},
        )
        ended = asyncio.create_task(process.wait())
        walsender_pid: int | None = None
        walsender_cpu_s = 0.0
        while not ended.done():
            await asyncio.wait({ended}, timeout=0.1)
            if walsender_pid is None:
                walsender_pid = await sql.fetchval(
                    "select active_pid from pg_replication_slots where slot_name = $1", slot
                )
            walsender_cpu_s = max(walsender_cpu_s, cpu_s(walsender_pid))
        took_s = time.monotonic() - begun
        busy = busy_s() - busy
    await sql.close()
    if ended.result():
        raise RuntimeError(f"pg_recvlogical ended with {ended.result()}")
    return Run(
        rows=backlogged.changes, took_s=took_s, walsender_cpu_s=walsender_cpu_s, other_cpu_s=busy - walsender_cpu_s
    )
