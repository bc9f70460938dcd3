"""A partitioned table whose partitions are foreign tables was read as empty, without a word.

Story: without a local partition, there was no range of blocks to read, so the snapshot ended at
once. Without publish_via_partition_root, pg_publication_tables lists a foreign partition like a
table of its own, which was read as empty, too. When a foreign server was down, a REPLACE left its
rows out, so that consumers deleted them.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SETUP = """
CREATE SCHEMA far; CREATE EXTENSION postgres_fdw;
CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{host}', port '{port}', dbname '{database}');
CREATE USER MAPPING FOR public SERVER far OPTIONS (user '{user}', password '{password}');
CREATE TABLE far.rows (id int, v text); INSERT INTO far.rows SELECT g, 'far' FROM generate_series(100, 150) g;
"""
ROOT = """
CREATE TABLE public.{root} (id int, v text) PARTITION BY RANGE (id); ALTER TABLE public.{root} REPLICA IDENTITY FULL;
CREATE FOREIGN TABLE public.{root}_far PARTITION OF public.{root} FOR VALUES FROM (100) TO (200)
    SERVER far OPTIONS (schema_name 'far', table_name 'rows');
"""
LEAF = """
CREATE TABLE public.{root}_near PARTITION OF public.{root} FOR VALUES FROM (0) TO (100);
ALTER TABLE public.{root}_near REPLICA IDENTITY FULL;
INSERT INTO public.{root} SELECT g, 'near' FROM generate_series(1, 50) g;
"""
PUBLICATIONS = """
CREATE PUBLICATION roots FOR TABLE public.away, public.partly WITH (publish_via_partition_root = true);
CREATE PUBLICATION leaves FOR TABLE public.leafy;
"""
TABLES = ("away", "partly", "leafy_near")


async def _judge(scene: Scene) -> None:
    queries = {f"public.{table}": f"SELECT * FROM public.{table}" for table in TABLES}
    target = await scene.judge(queries, keyless=tuple(queries))
    assert f"{scene.prefix}.public.leafy_far" not in target.complete


async def test_rows_of_foreign_partitions_are_read_with_their_root_and_else_named(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    settings = {"source__publications": "roots,leaves"}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        address, sql, gateway = urlsplit(database.dsn), scene.sql, scene.gateway
        await sql.execute(
            SETUP.format(
                host=address.hostname,
                port=address.port,
                database=database.name,
                user=address.username,
                password=address.password,
            )
        )
        await sql.execute("".join(ROOT.format(root=root) for root in ("away", "partly", "leafy")))
        await sql.execute(LEAF.format(root="partly") + LEAF.format(root="leafy") + PUBLICATIONS)
        await gateway.streaming()
        await scene.snapshot_done()
        await _judge(scene)
        said = [event["message"] for event in gateway.events("warning")]
        assert any("public.away_far, public.partly_far. A snapshot reads their rows, but" in text for text in said), (
            said
        )
        assert any("public.leafy_far. PostgreSQL does not publish foreign tables" in text for text in said), said

        # The rows of a foreign server that is down stay in copies.
        await sql.execute("ALTER SERVER far OPTIONS (SET port '1')")
        await sql.execute("DELETE FROM public.partly_near WHERE id <= 10")
        command = '{"command": "start", "tables": ["public.partly"]}'
        await sql.execute("SELECT pg_logical_emit_message(true, 'walgate.snapshot', $1)", command)
        await gateway.logged('"tables_not_read"')
        told = gateway.events("table_unreadable")
        unread = told[-1]
        assert 'cannot be read: "public"."partly_far"' in unread["reason"] and "DETACH" in unread["hint"]
        # So do those of a table that is missing there.
        await sql.execute(
            f"ALTER TABLE far.rows RENAME TO renamed; ALTER SERVER far OPTIONS (SET port '{address.port}')"
        )
        await gateway.logged('"event": "tables_not_read"', times=2)
        first, *_, last = gateway.events("table_unreadable")[len(told) :]
        assert '"far.rows" does not exist' in first["reason"] and last["reason"] == unread["reason"]
        assert not gateway.events("partitions_not_read")
        await sql.execute("ALTER TABLE far.renamed RENAME TO rows; UPDATE far.rows SET v = 'new'")
        await gateway.logged('"table_readable"', times=2)
        await scene.snapshot_done(times=4)
        command = command.replace("partly", "away")
        await sql.execute("SELECT pg_logical_emit_message(true, 'walgate.snapshot', $1)", command)
        await scene.snapshot_done(times=5)
        await _judge(scene)
        assert await gateway.stop() == 0
