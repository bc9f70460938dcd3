"""`walgate dump`, where no Spark is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.relation import change_schema
from spark_consumer.mirror.delta_files import DeltaFiles
from spark_consumer.mirror.dump import DumpedTable
from spark_consumer.mirror.shape import TableShape
from tests.spark_consumer.feeder import INT8, TEXT, relation


@pytest.mark.parametrize(
    ("columns", "special"),
    [
        (["id", "_special"], "_special"),
        (["special", "_special", "is_special", "____________"], "_special"),
        (["_special", "id", "__special"], "__special"),
        (["__special", "id", "_special", "___special"], "___special"),
    ],
)
def test_a_column_of_the_source_is_not_taken_for_the_special_texts(columns: list[str], special: str) -> None:
    table = DumpedTable("public.t", 1, DeltaFiles(Path(), columns={name: name for name in columns}))
    assert table.special == special
    assert table.columns == [name for name in columns if name != special]


@pytest.mark.parametrize("names", [(), ("_special",), ("__special",), ("___special", "_special", "special")])
def test_the_column_of_special_texts_is_found_again(names: tuple[str, ...]) -> None:
    described = relation("items", {"id": INT8, **dict.fromkeys(names, TEXT)}, ("id",))
    shape = TableShape.of(change_schema(described, "cdc"))
    columns = {name: name for name in (*shape.columns, shape.special_column)}
    assert DumpedTable("public.items", 1, DeltaFiles(Path(), columns=columns)).columns == ["id", *names]
