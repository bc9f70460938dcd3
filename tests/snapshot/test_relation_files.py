"""Of what changes below a relation, only that is a reason to read it again which no event tells of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.snapshot.relation_files import LeafContent, RelationFiles, unsent

ONE, TWO = LeafContent(1, 10, "a"), LeafContent(2, 20, "a")
PLAIN = RelationFiles("public", "t", False, (ONE,))
PARTED = RelationFiles("public", "t", True, (ONE, TWO))


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (PLAIN, PLAIN, ""),
        (PLAIN, replace(PLAIN, leaves=(replace(ONE, filenode=11),)), ""),  # VACUUM FULL, TRUNCATE
        (PLAIN, replace(PLAIN, leaves=(replace(ONE, columns="b"),)), ""),  # ADD COLUMN
        (PLAIN, replace(PLAIN, leaves=(LeafContent(1, 11, "b"),)), "ALTER TABLE has rewritten it"),
        (PLAIN, replace(PLAIN, name="u"), "it was renamed from public.t"),
        (PARTED, PARTED, ""),
        (PARTED, replace(PARTED, leaves=(ONE, TWO, LeafContent(3, 30, "a"))), ""),  # CREATE TABLE ... PARTITION OF
        (PARTED, replace(PARTED, leaves=(ONE, TWO, LeafContent(3, 30, "a", True))), "a partition was attached"),
        (PARTED, replace(PARTED, leaves=(ONE, replace(TWO, is_attached=True))), ""),  # was noted already
        (PARTED, replace(PARTED, leaves=(TWO,)), "a partition was detached or dropped"),
        (PARTED, replace(PARTED, leaves=(ONE, replace(TWO, columns="b"))), ""),
        (PARTED, replace(PARTED, leaves=(ONE, replace(TWO, filenode=21))), "a partition was rewritten or truncated"),
    ],
)
def test_rows_have_changed_without_an_event(before: RelationFiles, now: RelationFiles, reason: str) -> None:
    assert unsent(before, now) == reason
