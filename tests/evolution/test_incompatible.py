"""Changes that no reader of old events could follow: where the gateway stops, what it says, and
that no way on loses rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from gateway.local import Kafka, Postgres, Registry
from schemas.compatibility import incompatible_columns
from tests.evolution.delivered import Delivered
from tests.evolution.scene import MANY, SITUATIONS, UNDONE_SITUATION, new_ids, old_ids
from tests.evolution.scenes_incompatible import INCOMPATIBLE
from tests.support import stock_registry
from tests.support.theatre import Theatre, theatre

pytestmark = pytest.mark.integration

EX_CONFIG = 78

# -- schemas.on_incompatible = register: each scene in each situation
# ------------------------------------------------------

Row = dict[str, Any]
ROWS: Final[dict[str, tuple[Callable[[int], Row], Callable[[int], Row]]]] = {
    "text_to_int": (lambda n: {"id": n, "c": "12"}, lambda n: {"id": n, "c": 13}),
    "int_to_text": (lambda n: {"id": n, "c": 12}, lambda n: {"id": n, "c": "x"}),
    "another_scale": (lambda n: {"id": n, "c": Decimal("1.25")}, lambda n: {"id": n, "c": Decimal("1.0625")}),
    "added_again": (lambda n: {"id": n, "c": "x"}, lambda n: {"id": n, "c": date(2026, 1, 2)}),
    "made_again": (lambda n: {"id": n, "c": "x"}, lambda n: {"c": 0.1, "id": str(n)}),
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("scene", INCOMPATIBLE)
def test_a_registered_change_delivers_each_row_in_its_own_form(
    registered: Delivered, scene: str, situation: str
) -> None:
    old, new = ROWS[scene]
    rows = registered.rows(f"{scene}_{situation}")
    assert rows == [*map(old, old_ids(situation)), *map(new, new_ids(situation))]
    changes = [incompatible_columns(*pair) for pair in pairwise(registered.versions(f"{scene}_{situation}").values())]
    assert any(changes), "the scene was compatible"
    assert len(changes) == (2 if scene == "made_again" and situation == UNDONE_SITUATION else 1)


# -- schemas.on_incompatible = stop: one change, and the ways on
# -----------------------------------------------------------

BEFORE = "INSERT INTO t SELECT n, 'old', '1' FROM generate_series(1, 3) n"
IN_TRANSACTION = ("BEGIN", "INSERT INTO t VALUES (4, 'old', '4')", "ALTER TABLE t ALTER c TYPE int USING c::int",
                  "INSERT INTO t VALUES (5, 'new', 5)", "COMMIT")  # fmt: skip
AFTER = "INSERT INTO t VALUES (6, 'new', 6)"
EXPECTED: Final = [
    *({"id": n, "form": "old", "c": "1"} for n in range(1, 4)),
    {"id": 4, "form": "old", "c": "4"},
    {"id": 5, "form": "new", "c": 5},
    {"id": 6, "form": "new", "c": 6},
]


@pytest_asyncio.fixture
async def stage(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Theatre]:
    async with theatre(topic_prefix, postgres, kafka, registry, tmp_path / "gateway.log") as stage:
        await stage.sql.execute("CREATE TABLE t (id int PRIMARY KEY, form text, c text)")
        await stage.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
        await stage.gateway.streaming()
        await stage.sql.execute(BEFORE)
        await rows(stage, 3)
        yield stage


async def stopped(stage: Theatre, change: str = "column c changed from text (string) to int4 (int)") -> str:
    """What the gateway said at its end, for a person to act on."""
    assert await stage.gateway.wait() == EX_CONFIG, stage.gateway.log()
    said = stage.gateway.last_words()
    assert "public.t" in said and change in said
    assert "schemas.on_incompatible=register" in said and f"{stage.name}.public.t-value" in said
    return said


async def rows(stage: Theatre, count: int) -> list[Row]:
    found = await stage.delivered(lambda found: len(found.committed("t")) >= count)
    found.close()
    return found.rows("t")


async def test_the_first_way_registers_every_change_and_loses_nothing(stage: Theatre) -> None:
    for statement in IN_TRANSACTION:
        await stage.sql.execute(statement)
    await stopped(stage)
    stage.gateway.start()
    await stopped(stage)  # again, until a person decides
    assert await rows(stage, 3) == EXPECTED[:3], "a part of the transaction was delivered"
    await stage.gateway.streaming(schemas__on_incompatible="register")
    await stage.sql.execute(AFTER)
    assert await rows(stage, len(EXPECTED)) == EXPECTED
    assert await stage.gateway.stop() == 0
    await stage.gateway.streaming()  # what was registered once needs no permission any more
    await stage.sql.execute("UPDATE t SET c = 7 WHERE id = 6")
    assert (await rows(stage, len(EXPECTED) + 1))[-1] == {"id": 6, "form": "new", "c": 7}
    assert await stage.gateway.stop() == 0


async def test_the_second_way_registers_this_change_by_hand_and_loses_nothing(stage: Theatre) -> None:
    for statement in IN_TRANSACTION:
        await stage.sql.execute(statement)
    await stopped(stage)
    (refused,) = stage.gateway.events("schema_rejected")
    await asyncio.to_thread(register_by_hand, stage.registry.url, refused["subject"], refused["schema"])
    await stage.gateway.streaming()
    await stage.sql.execute(AFTER)
    assert await rows(stage, len(EXPECTED)) == EXPECTED
    assert await stage.gateway.stop() == 0


def register_by_hand(url: str, subject: str, text: str) -> None:
    """What an operator does with any client of the registry."""
    assert json.loads(text)["name"] == "Change"
    with SchemaRegistryClient(stock_registry.settings(url)) as client:
        client.set_compatibility(subject, "NONE")
        client.register_schema(subject, Schema(text, "AVRO"))
        client.set_compatibility(subject, "BACKWARD")


async def test_a_change_that_is_rolled_back_in_the_source_needs_no_decision(stage: Theatre) -> None:
    """The transaction was streamed while it was open: that is no reason to stop. Rolled back, it is
    never sent again."""
    transaction = stage.sql.transaction()
    await transaction.start()
    await stage.sql.execute(IN_TRANSACTION[2])
    await stage.sql.execute(f"INSERT INTO t SELECT n, 'new', 5 FROM generate_series(10, {9 + MANY}) n")
    await stage.flush()
    await stage.gateway.logged("the transaction will be received again, with the streaming")
    await transaction.rollback()
    await stage.sql.execute("INSERT INTO t VALUES (4, 'old', '4')")
    assert await rows(stage, 4) == EXPECTED[:4]
    assert await stage.gateway.stop() == 0


async def test_a_form_that_was_rolled_back_does_not_bind_later_ones(stage: Theatre) -> None:
    """Its schema is the registry's newest, and would be read wrongly by the one of the second
    try."""
    transaction = stage.sql.transaction()
    await transaction.start()
    await stage.sql.execute("ALTER TABLE t ADD more int")
    await stage.sql.execute(f"INSERT INTO t SELECT n, 'new', 5, n FROM generate_series(10, {9 + MANY}) n")
    (
        await stage.delivered(lambda found: bool(found.sent("t")) and found.sent("t")[-1].event["commit_lsn"] is None)
    ).close()
    await transaction.rollback()
    await stage.sql.execute("INSERT INTO t VALUES (4, 'old', '4')")
    await stage.sql.execute("ALTER TABLE t ADD more text")
    await stage.sql.execute("INSERT INTO t VALUES (5, 'new', '5', 'x')")
    assert await rows(stage, 5) == [*EXPECTED[:4], {"id": 5, "form": "new", "c": "5", "more": "x"}]
    with SchemaRegistryClient(stock_registry.settings(stage.registry.url)) as client:
        subject = f"{stage.name}.public.t-value"
        assert len(client.get_versions(subject)) == 3
        assert client.get_compatibility(subject) == "BACKWARD"
    await stage.sql.execute("ALTER TABLE t DROP more; ALTER TABLE t ADD more date; INSERT INTO t VALUES (6)")
    await stopped(stage, "column more changed from text (string) to date (date)")
