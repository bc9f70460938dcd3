"""PostgreSQL's own regression suite as a load: what its developers found worth a test passes
through the gateway.

The gateway has its default settings, but one partition for each table and no snapshots, and
publishes all tables. It may stop for a change of type only, and then goes on in the way that its
message names. At the end every table that is left is held against the one that a stock reader
rebuilds from Kafka. `-k "part0"` runs one of eight parts.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from pathlib import Path

import asyncpg
import pytest
from confluent_kafka.schema_registry import ConfigCompatibilityLevel, Schema, SchemaRegistryClient, ServerConfig

from gateway.local import Kafka, Postgres, Registry
from tests.regression.pictures import compare, rebuild
from tests.regression.sql import FILL, first_file, regression_files
from tests.support import stock_registry
from tests.support.delivered import Decoder, read_delivered
from tests.support.gateway_process import GatewayProcess

PARTS = 8
FILE_TIMEOUT_S = 60.0
CAUGHT_UP_TIMEOUT_S = 300.0
DATABASE = "regression"

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


class Load:
    def __init__(self, server: Postgres, registry: Registry, gateway: GatewayProcess, slot: str, folder: Path) -> None:
        self.server = server
        self.gateway = gateway
        self.slot = slot
        self.folder = folder
        self.stops: list[str] = []
        self.cut_off: list[str] = []
        self.sql: asyncpg.Connection
        self._registry = SchemaRegistryClient(stock_registry.settings(registry.url))

    def run(self, file: Path) -> None:
        """As pg_regress runs it; errors are part of it."""
        environment = os.environ | {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.server.port),
            "PGUSER": "postgres",
            "PGPASSWORD": self.server.password,
            "PGDATABASE": DATABASE,
            "PGTZ": "America/Los_Angeles",
            "PGDATESTYLE": "Postgres, MDY",
            "PGOPTIONS": "-c intervalstyle=postgres_verbose",
            "PG_ABS_SRCDIR": str(self.folder),
            "PG_ABS_BUILDDIR": str(self.folder),
            "PG_LIBDIR": str(self.folder),
            "PG_DLSUFFIX": ".so",
        }
        with (self.folder / f"{file.stem}.out").open("wb") as output:
            psql = subprocess.Popen(
                [self.server.program("psql"), "-X", "-q", "-f", file],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                psql.wait(FILE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.cut_off.append(file.stem)
                psql.kill()
                psql.wait()

    async def tidied(self) -> None:
        """Nothing of a file stands in the way of the next: sessions that were cut off, prepared
        transactions."""
        await self.sql.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'psql'"
        )
        for (gid,) in await self.sql.fetch("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            await self.sql.execute(f"ROLLBACK PREPARED '{gid}'")

    async def caught_up(self) -> None:
        """Everything committed so far is in Kafka; each stop meanwhile is left as its message
        says."""
        lsn = await self.sql.fetchval("SELECT pg_current_wal_lsn()::text")
        await self.sql.execute("INSERT INTO walgate_beat DEFAULT VALUES")  # something to confirm behind it
        confirmed = (
            "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = $2"
        )
        deadline = time.monotonic() + CAUGHT_UP_TIMEOUT_S
        while not await self.sql.fetchval(confirmed, lsn, self.slot):
            if not self.gateway.is_running:
                await self._go_on()
            assert time.monotonic() < deadline, self.gateway.log_tail()
            await asyncio.sleep(0.05)

    async def _go_on(self) -> None:
        assert self.gateway.exit_code == 78, self.gateway.log_tail()
        said = self.gateway.last_words()
        assert "could not read" in said and re.search(r"column .* changed from", said), said
        assert "register the rejected schema" in said, said
        self.stops.append(said.splitlines()[0])
        refused = self.gateway.events("schema_rejected")[-1]
        await asyncio.to_thread(self._register, refused["subject"], refused["schema"])
        await self.gateway.streaming()

    def close(self) -> None:
        self._registry.__exit__()  # type: ignore[no-untyped-call]
        self.sql.terminate()

    def _register(self, subject: str, schema: str) -> None:
        self._registry.set_config(subject, ServerConfig(ConfigCompatibilityLevel.NONE))
        self._registry.register_schema(subject, Schema(schema, "AVRO"))
        self._registry.set_config(subject, ServerConfig(ConfigCompatibilityLevel.BACKWARD))


@pytest.mark.parametrize("part", range(PARTS), ids="part{}".format)
async def test_the_regression_suite_stops_for_changes_of_type_only_and_every_table_is_right(
    part: int, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    files = await asyncio.to_thread(regression_files)
    share = files[part * len(files) // PARTS : (part + 1) * len(files) // PARTS]
    async with Postgres(18, databases=[DATABASE]) as server:
        settings = {
            "source__dsn": server.database_dsn(DATABASE),
            "source__slot": topic_prefix,
            "kafka__bootstrap_servers": kafka.bootstrap_servers,
            "kafka__prefix": topic_prefix,
            "kafka__partitions": 1,
            "registry__url": registry.url,
        }
        gateway = GatewayProcess(tmp_path / "gateway.log", settings)
        load = Load(server, registry, gateway, topic_prefix, tmp_path)
        load.sql = await server.connect(DATABASE)
        try:
            await load.sql.execute("CREATE TABLE walgate_beat (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
            await load.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
            await gateway.streaming()
            await asyncio.to_thread(load.run, first_file())
            await load.sql.execute(FILL)
            for file in share:
                await asyncio.to_thread(load.run, file)
                await load.tidied()
                await load.caught_up()
            assert await gateway.stop() == 0
            delivered = await asyncio.to_thread(read_delivered, kafka.bootstrap_servers, registry.url, topic_prefix)
            with Decoder(registry.url) as decoder:
                tables = await asyncio.to_thread(rebuild, delivered, decoder)
            result = await compare(load.sql, tables)
        finally:
            await gateway.end()
            load.close()
    print(
        f"part {part}: {len(share)} files ({share[0].stem} to {share[-1].stem}; cut off: {load.cut_off}), "
        f"{len(delivered.events)} changes of {len(tables)} tables; {len(load.stops)} stops; "
        f"{result.whole} tables with {result.rows} rows compared, {result.counted} counted"
    )
    print("\n".join(load.stops))
    assert not result.findings, f"{len(result.findings)} tables differ:\n" + "\n".join(result.findings[:30])
    assert len(delivered.events) > 10_000 and result.whole > 30
