"""Every command of README.md, docs/quickstart.md, docs/own-servers.md, docs/tail.md and
docs/snapshot.md, and those that docs/monitoring.md names in its text. Those that need Docker are
not run here."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.local import LocalParts
from tests.walk.walk import OWN_DATABASE, ROOT, TIMEOUT_S, Walk, commands, prepare, shop, until, walk

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

INSERTED = "INSERT INTO orders SELECT max(id) + 1, 'new' FROM orders;"
UPDATED = "UPDATE orders SET note = 'two words' WHERE id = 1;"


@pytest_asyncio.fixture
async def walker(tmp_path: Path) -> AsyncIterator[Walk]:
    async with LocalParts() as parts:
        await shop(parts.postgres)
        yield walk(parts.postgres, parts.kafka, parts.registry, tmp_path)


async def test_every_command_does_what_the_page_says(walker: Walk) -> None:
    await prepare(walker)
    check, run, mirror = commands(*OWN_DATABASE)[-5:-2]  # before the commands that install
    page = commands("docs/own-servers.md", "Configure and run")[-3:]
    assert [" ".join(command.split()) for command in page] == [check, run, mirror]
    await walker.run(check, "the gateway would start")
    async with walker.gateway():
        await read(walker)
        await tail(walker)
        await operate(walker)
        await mirrored(walker, mirror)
    await walker.run("walgate status", "nothing is reading the slot", "NOT IN USE", code=1)


async def read(walker: Walk) -> None:
    _, example = commands("docs/quickstart.md", "Read a topic")
    await walker.run_again(example, "was there before")
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert len(list(filter(None, program.splitlines()))) == 8
    (walker.folder / "follow.py").write_text(walker.here(program))
    program_of_page = f"python -u {walker.folder}/follow.py"  # Ctrl-C ends it as any program of asyncio
    await walker.run_until(program_of_page, "public.orders INSERT", change=INSERTED, code=-signal.SIGINT)


async def tail(walker: Walk) -> None:
    changes, topics, _ = commands("docs/quickstart.md", "Inspect the stream")
    await walker.run_until(changes, "two words", change=UPDATED)
    await walker.run_until(topics, '"message": "Read"', '"message": "Update"', '"message": "COMMIT"')
    walker.replaced["--publication other"] = "--publication walgate"
    export, plain, chosen, limited = commands("docs/tail.md", "From PostgreSQL")
    walker.export(export)
    await walker.run_until(plain, "Begin", 'new: id=1 note="two words"', "Commit", change=UPDATED)
    await walker.run_until(chosen, "two words", change=UPDATED)
    walker.replaced["--limit 100"] = "--limit 3"
    if shutil.which("jq") is None:
        walker.replaced[" | jq ."] = ""
    async with walker.running(limited) as (process, output):
        while process.returncode is None:
            await walker.sql(UPDATED)
            await asyncio.sleep(0.5)
        assert process.returncode == 0 and '"message": "Update"' in output(), output()
    fresh, old = commands("docs/tail.md", "From Kafka")
    await walker.run_until(fresh, "two words", change=UPDATED)
    await walker.run_until(old, "was there before")
    await captured(walker)


async def captured(walker: Walk) -> None:
    await walker.sql("SELECT pg_create_logical_replication_slot('slot', 'pgoutput');")
    await walker.sql(UPDATED)
    peek, given, record = commands("docs/tail.md", "Captured messages and records")
    names = {"PGHOST": "127.0.0.1", "PGPORT": str(walker.postgres.port), "PGUSER": "walgate", "PGDATABASE": "shop"}
    walker.environment |= names
    await walker.run(peek, "Begin", "two words", "Commit")
    await walker.run(given, "Begin  commit_lsn=0/16B3F48")
    assert record == "walgate decode record.bin"
    for name in names:
        del walker.environment[name]
    await walker.sql("SELECT pg_drop_replication_slot('slot');")


async def operate(walker: Walk) -> None:
    """What the text of docs/monitoring.md and docs/snapshot.md names."""
    await walker.sql(*commands("docs/monitoring.md", "Query PostgreSQL"))
    await walker.run("walgate health", "streaming")
    await walker.run("walgate status", "streaming for", "public.orders")
    await walker.run("walgate status --json", '"asked": "gateway"')
    await walker.run_until("walgate status --watch", "streaming for")
    await walker.run("walgate check --json", '"exit_code": 0')
    await walker.sql(*commands("docs/snapshot.md", "Commands"))
    for each in ("pause", "resume", "start public.items", "start --verify public.orders", "cancel"):
        await walker.run(f"walgate snapshot {each}")
    await walker.run("walgate snapshot status", "public.orders")
    await walker.run("walgate version", "0.")


async def mirrored(walker: Walk, mirror: str) -> None:
    async with walker.running(mirror, timeout_s=None) as (process, output):

        def has_both() -> bool:
            assert process.returncode is None, output()
            return "public.orders" in output() and "public.items" in output()

        await until(has_both, mirror, output, 2 * TIMEOUT_S)  # Spark starts, and reads a backlog
        for verify in commands("docs/snapshot.md", "Verify a mirror"):
            await walker.run(verify)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, output()
    await walker.run("walgate dump --mirror /data/mirror --table public.orders", "two words")
