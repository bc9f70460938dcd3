"""What table marks state, before those of other tables are left out."""

from __future__ import annotations

import pytest

from schemas.markers import SnapshotChunk
from spark_consumer.reader.markers import CommittedTransaction
from spark_consumer.reader.table_marks import marks_of
from spark_consumer.tables import TableName


def end(offset: int, commit_lsn: int, name: str = "", snapshot_id: str = "one") -> CommittedTransaction:
    chunk = SnapshotChunk(snapshot_id, "FILL", 7 if name else 0, "public" if name else "", name)
    return CommittedTransaction(
        offset, "SNAPSHOT_END", commit_lsn, 0, None, 1, 1, None, None, 0, (), (), (), snapshot=chunk
    )


@pytest.mark.parametrize(
    ("ends", "ends_with_table"),
    [
        ([end(0, 20, "left_out"), end(1, 20)], True),
        ([end(0, 20, "wanted"), end(1, 20)], True),
        ([end(0, 10, "left_out"), end(1, 20)], False),
        ([end(0, 20, "left_out", "another"), end(1, 20)], False),
    ],
)
def test_the_end_of_all_says_whether_it_ends_with_a_table(
    ends: list[CommittedTransaction], ends_with_table: bool
) -> None:
    """Also if that table is not wanted."""
    marks = marks_of(ends, lambda table: table == TableName("public", "wanted"))
    (whole,) = [mark for mark in marks if mark.table is None]
    assert whole.facts.get("ends_with_table", False) is ends_with_table
    assert all("ends_with_table" not in mark.facts for mark in marks if mark.table is not None)
