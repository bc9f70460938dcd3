"""`walgate dump`, where no Spark is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_consumer.delta_files import DeltaFiles
from spark_consumer.dump import DumpedTable


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
