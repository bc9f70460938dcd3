"""Types that the catalog does not show when their rows are read: dropped since, or made in a
transaction still open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from schemas.change_schema import MOST_DEFAULT_BYTES
from tests.evolution.delivered import Delivered
from tests.evolution.scene import MANY
from tests.support.theatre import Theatre, theatre

pytestmark = pytest.mark.integration

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN price AS numeric(8,2);
CREATE DOMAIN way AS int[];
CREATE TYPE pair AS (a int, b text);
CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[], p price, w way, two pair);
CREATE TABLE kept (code text, id int PRIMARY KEY);
ALTER TABLE kept REPLICA IDENTITY FULL;
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
ROW = "'glad', '{sad,NULL}', 1.5, '{1,2}', '(1,x)'"
AFTER: dict[str, Any] = {
    "m": "glad", "ms": ["sad", None], "p": Decimal("1.50"), "w": [1, 2], "two": "(1,x)",
}  # fmt: skip


@pytest_asyncio.fixture
async def stage(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Theatre]:
    async with theatre(topic_prefix, postgres, kafka, registry, tmp_path / "gateway.log") as stage:
        await stage.sql.execute(TYPES)
        await stage.gateway.streaming()
        yield stage
        assert await stage.gateway.stop() == 0, stage.gateway.log()


async def test_a_type_that_was_dropped_meanwhile_is_what_it_was(stage: Theatre) -> None:
    """The rows lay in the slot when their types, a key column's name and their table went."""
    await stage.sql.execute(f"INSERT INTO t VALUES (1, {ROW})")
    await stage.sql.execute("INSERT INTO kept VALUES ('a', 1)")
    (await stage.delivered(lambda found: bool(found.committed("kept")))).close()
    assert await stage.gateway.stop() == 0
    await stage.sql.execute(f"INSERT INTO t VALUES (2, {ROW})")
    await stage.sql.execute("UPDATE kept SET code = 'b'")
    await stage.sql.execute("ALTER TABLE kept RENAME id TO number")
    await stage.sql.execute("UPDATE kept SET code = 'c'")
    await stage.sql.execute("DROP TABLE kept, t; DROP TYPE mood, pair; DROP DOMAIN price, way")
    await stage.gateway.streaming()
    found = await stage.delivered(lambda found: len(found.committed("kept")) >= 3)
    found.close()
    assert found.rows("t") == [{"id": 1, **AFTER}, {"id": 2, **AFTER}]
    assert [(each.key, each.event["before"]) for each in found.committed("kept")][:2] == [
        ({"id": 1}, None),
        ({"id": 1}, {"code": "a", "id": 1}),  # keyed as before, though the catalog knows no such column any more
    ]
    assert len({each.schema_id for each in found.sent("t")}) == 1


async def test_an_array_of_a_type_made_in_a_transaction_still_open_is_text_until_an_operator_says_otherwise(
    stage: Theatre,
) -> None:
    """Nobody else sees it yet. When everybody does, the column does not change its Avro type under
    its readers. Of a domain the stream names the base type."""
    transaction = stage.sql.transaction()
    await transaction.start()
    await stage.sql.execute("CREATE DOMAIN amount AS int; CREATE TYPE size AS ENUM ('s', 'l')")
    await stage.sql.execute("CREATE TABLE made (id int PRIMARY KEY, n amount, sizes size[])")
    await stage.sql.execute(f"INSERT INTO made SELECT n, n, '{{s,NULL}}' FROM generate_series(10, {9 + MANY}) n")
    (await stage.delivered(has_sent_open_rows)).close()
    await transaction.commit()
    await stage.sql.execute("INSERT INTO made VALUES (1000, 7, '{l}')")
    (await stage.delivered(lambda found: len(found.committed("made")) > MANY)).close()
    assert await stage.gateway.stop() == 0
    await stage.sql.execute("INSERT INTO made VALUES (1001, 8, '{l}')")
    await stage.gateway.streaming()
    await stage.sql.execute("ALTER TABLE made ADD more int")
    await stage.sql.execute("INSERT INTO made VALUES (1002, 9, '{l}', 1)")
    found = await stage.delivered(lambda found: len(found.committed("made")) >= MANY + 3)
    found.close()
    rows = found.rows("made")
    assert rows[:-3] == [{"id": n, "n": n, "sizes": "{s,NULL}"} for n in range(10, 10 + MANY)]
    assert rows[-3:] == [
        {"id": 1000, "n": 7, "sizes": "{l}"},
        {"id": 1001, "n": 8, "sizes": "{l}"},
        {"id": 1002, "n": 9, "sizes": "{l}", "more": 1},
    ]
    assert "types_stay_text" in stage.gateway.log()
    assert await stage.gateway.stop() == 0
    await stage.gateway.streaming(schemas__on_incompatible="register")
    await stage.sql.execute("INSERT INTO made VALUES (1003, 10, '{l,NULL}', 2)")
    found = await stage.delivered(lambda found: len(found.committed("made")) >= MANY + 4)
    found.close()
    assert found.rows("made")[-1] == {"id": 1003, "n": 10, "sizes": ["l", None], "more": 2}


def has_sent_open_rows(found: Delivered) -> bool:
    return any(each.event["commit_lsn"] is None for each in found.sent("made"))


async def test_a_default_above_the_limit_is_left_out_of_the_schema_and_told(stage: Theatre) -> None:
    size = MOST_DEFAULT_BYTES + 1
    await stage.sql.execute(f"ALTER TABLE kept ADD small text DEFAULT 'x', ADD large text DEFAULT repeat('x', {size})")
    await stage.sql.execute("INSERT INTO kept VALUES ('a', 1, 'y', 'z')")
    found = await stage.delivered(lambda found: bool(found.committed("kept")))
    (schema,) = found.versions("kept").values()
    found.close()
    assert found.rows("kept") == [{"code": "a", "id": 1, "small": "y", "large": "z"}]
    row = next(field["type"][1] for field in schema["fields"] if field["name"] == "before")
    small, large = (field["pg.type"] for field in row["fields"][2:])
    assert small["attmissingval"] == {"avro": "020278"} and "attmissingval_size" not in small
    assert size < large["attmissingval_size"] < size + 10 and "attmissingval" not in large
    (told,) = stage.gateway.events("defaults_left_out")
    assert (told["relation"], told["columns"]) == ("public.kept", ["large"])
