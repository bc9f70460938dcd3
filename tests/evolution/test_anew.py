"""What applications do to their tables without asking anybody: none of it stops the gateway."""

from __future__ import annotations

import asyncio
import signal
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.local import Kafka, Postgres, Registry
from tests.support.theatre import theatre

pytestmark = pytest.mark.integration

EX_CONFIG = 78
BEFORE = """
CREATE TABLE made (id int PRIMARY KEY, c text);
CREATE TABLE halves (a int, b int GENERATED ALWAYS AS (a / 2) STORED, PRIMARY KEY (a, b));
CREATE TABLE paid (id int PRIMARY KEY, m money, q tsquery, r regtype);
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
WHILE_AWAY = """
INSERT INTO made VALUES (1, 'old');
INSERT INTO halves VALUES (4);
INSERT INTO paid VALUES (1, 1234.5, 'a & (b | !c:*)', 'int4');
DROP TABLE made;
CREATE TABLE made (c float8, id text PRIMARY KEY);
INSERT INTO made VALUES (0.5, 'new');
CREATE DOMAIN age AS int; CREATE DOMAIN ages AS int[]; CREATE DOMAIN price AS numeric(8,2);
CREATE TABLE short (id int PRIMARY KEY, a age, l ages, p price);
INSERT INTO short VALUES (1, 41, '{1,NULL}', 1.5);
DROP TABLE short; DROP DOMAIN age, ages, price;
"""


async def test_tables_and_types_made_anew_and_generated_keys_stop_nothing(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with theatre(topic_prefix, postgres, kafka, registry, tmp_path / "gateway.log") as stage:
        await stage.sql.execute(BEFORE)
        await stage.gateway.streaming()
        await stage.sql.execute("INSERT INTO made VALUES (0, 'known')")
        (await stage.delivered(lambda found: bool(found.committed("made")))).close()
        assert await stage.gateway.stop() == 0
        for statement in WHILE_AWAY.split(";\n"):
            if statement.strip():
                await stage.sql.execute(statement)
        await stage.gateway.streaming()
        await stage.sql.execute("INSERT INTO halves VALUES (6)")
        found = await stage.delivered(
            lambda found: len(found.committed("halves")) > 1 and bool(found.committed("short"))
        )
        found.close()
        assert found.rows("made") == [{"id": 0, "c": "known"}, {"id": 1, "c": "old"}, {"c": 0.5, "id": "new"}]
        assert [each.key for each in found.committed("made")] == [{"id": 0}, {"id": 1}, {"id": "new"}]
        assert [(each.key, each.event["after"]) for each in found.committed("halves")] == [
            (None, {"a": 4}),
            (None, {"a": 6}),
        ]
        assert found.rows("paid") == [{"id": 1, "m": "$1,234.50", "q": "'a' & ( 'b' | !'c':* )", "r": "integer"}]
        short = found.rows("short")
        assert short == [{"id": 1, "a": 41, "l": [1, None], "p": short[0]["p"]}]
        assert Decimal(short[0]["p"]) == Decimal("1.50")  # as text: the Type message lacks precision and scale
        told = stage.gateway.events("table_recreated")
        # Twice, if the restart in text mode comes before these rows are delivered.
        assert 1 <= len(told) <= 2
        assert all(each["relation"] == "public.made" and "column c changed" in each["note"] for each in told)
        cautions = [event["message"] for event in stage.gateway.events("warning")]
        assert any("events of public.halves have no key" in said for said in cautions), cautions
        texts = [event["types_without_binary_decoder"] for event in stage.gateway.events("text_tuples")]
        assert texts == [], "the tables' types have binary decoders"

        await stage.sql.execute("ALTER TABLE made ALTER c TYPE text")  # the same table: a person is asked
        await stage.sql.execute("INSERT INTO made VALUES ('x', 'newer')")
        assert await stage.gateway.wait() == EX_CONFIG
        assert "column c changed from float8" in stage.gateway.last_words()


async def test_a_stop_at_any_moment_of_a_start_exits_with_0(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """From the first line of its own code on: what the interpreter does before is not ours."""
    async with theatre(topic_prefix, postgres, kafka, registry, tmp_path / "gateway.log") as stage:
        await stage.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
        for delay_s in (0.0, 0.2, 0.6, 1.2):
            stage.gateway.start()
            status = Path(f"/proc/{stage.gateway.pid}/status")
            async with asyncio.timeout(60):
                while not takes_sigterm(status.read_text()):
                    await asyncio.sleep(0.001)
            await asyncio.sleep(delay_s)
            stage.gateway.signal(signal.SIGTERM)
            assert await stage.gateway.wait() == 0, (delay_s, stage.gateway.log())


def takes_sigterm(status: str) -> bool:
    """SigCgt: a mask of the signals that have a handler."""
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
