"""Tables that inherit from a published table, as TimescaleDB's chunks do: those that are created
later are not published."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gateway.postgres.publication import publication_facts
from gateway.startup.publication_checks import check_publications
from tests.conftest import Database
from tests.startup.facts import EXPECTED, FACTS

pytestmark = pytest.mark.integration

SENT_AS = """
SELECT DISTINCT ('x' || encode(substr(data, 2, 4), 'hex'))::bit(32)::int8::oid::regclass::text AS name
FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', 'p')
WHERE get_byte(data, 0) = ascii('I')
"""
CHUNKS = """
CREATE SCHEMA chunks; CREATE TABLE readings (id int PRIMARY KEY);
CREATE TABLE chunks.c1 (PRIMARY KEY (id)) INHERITS (readings); CREATE PUBLICATION p FOR TABLE readings
"""


async def test_children_that_came_after_the_publication_are_named_until_they_are_published(source: Database) -> None:
    """The stream is the judge."""
    sql = await source.connect()
    await sql.execute(CHUNKS)
    slot = f"inherited_{source.name}"
    await sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)

    async def named_and_sent(*chunks: str) -> tuple[str, set[str]]:
        await sql.execute("; ".join(f"INSERT INTO chunks.{chunk} SELECT count(*) FROM readings" for chunk in chunks))
        sent = {row["name"] for row in await sql.fetch(SENT_AS, slot)}
        facts = replace(FACTS, publications=await publication_facts(sql, ["p"]))
        found = "; ".join(f"{each.message}. {each.hint}" for each in check_publications(facts, EXPECTED))
        await sql.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", slot)
        return found, sent

    try:
        assert await named_and_sent("c1") == ("", {"chunks.c1"})
        await sql.execute("CREATE TABLE chunks.c2 (PRIMARY KEY (id)) INHERITS (readings)")
        found, sent = await named_and_sent("c2")
        assert sent == set() and "and their rows are not sent: chunks.c2. " in found
        assert (await publication_facts(sql, ["p"], excluded=["chunks.*"]))["p"].inherited == ()
        (remedy,) = re.findall(r"ALTER PUBLICATION [^(,]* ADD TABLE [^(,]*", found)
        await sql.execute(remedy)
        assert await named_and_sent("c1", "c2") == ("", {"chunks.c1", "chunks.c2"})
        await sql.execute("CREATE TABLE chunks.c3 (PRIMARY KEY (id)) INHERITS (readings)")
        found, _ = await named_and_sent("c1")
        assert "and their rows are not sent: chunks.c3. " in found
        (remedy,) = re.findall(r"ALTER PUBLICATION [^(,]* ADD TABLES IN SCHEMA [^(,)]*", found)
        if source.server.version >= 15:
            await sql.execute(remedy.replace("...", "chunks"))
            await sql.execute("CREATE TABLE chunks.c4 (PRIMARY KEY (id)) INHERITS (readings)")
            assert await named_and_sent("c3", "c4") == ("", {"chunks.c3", "chunks.c4"})
    finally:
        await sql.execute("SELECT pg_drop_replication_slot($1)", slot)
