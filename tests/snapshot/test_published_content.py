"""A relation is read again for what changes below it without an event, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.snapshot.rules.published_content import (
    FILE_UNKNOWN,
    Account,
    LeafContent,
    Membership,
    PublishedContent,
    TypeVersion,
    unsent,
)

ONE, TWO = LeafContent(1, 10, "a"), LeafContent(2, 20, "a")
PLAIN = PublishedContent("public", "t", False, (ONE,))
PARTED = PublishedContent("public", "t", True, (ONE, TWO))


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
def test_rows_have_changed_without_an_event(before: PublishedContent, now: PublishedContent, reason: str) -> None:
    """As far as records of gateways tell that kept no account."""
    assert unsent(before, now) == reason


LISTED = Membership(7, "100", "p", "iudt", "16384 100 ", True)
OTHER = Membership(8, "100", "q", "iudt", "all", True)
ACCOUNT = Account("90", "91", "92", 10, (LISTED,), (TypeVersion(500, "93"), TypeVersion(501, "93")))
LEAF = LeafContent(1, 10, "a", toast=5)
KEPT = PublishedContent("public", "t", False, (LEAF,), ACCOUNT)
ROOT = PublishedContent("public", "t", True, (replace(LEAF, is_attached=True, attachment="80/"),), ACCOUNT)
NEW_FILE = replace(KEPT, leaves=(replace(LEAF, filenode=11, toast=6),))
EMPTIED = replace(KEPT, leaves=(replace(LEAF, filenode=11),))


ROOTS = Membership(9, "100", "r", "iudt", "16390 100 80/", True, via_root=True)
PART = replace(KEPT, account=replace(ACCOUNT, is_partition=True))
LATELY = LeafContent(3, FILE_UNKNOWN, "")
"""It was announced by the stream, and not looked at."""


def with_account(content: PublishedContent, **changes: object) -> PublishedContent:
    assert content.account is not None
    return replace(content, account=replace(content.account, **changes))  # type: ignore[arg-type]


def publishing(content: PublishedContent, *memberships: Membership) -> PublishedContent:
    return with_account(content, memberships=memberships)


KEEPING = replace(LISTED, actions="i")
DELETING = replace(LISTED, actions="iud")


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (KEPT, KEPT, ""),
        (KEPT, with_account(KEPT, moved="101"), "it was in another schema for a time"),
        (KEPT, with_account(KEPT, named="101"), "it had another name for a time"),
        (KEPT, with_account(KEPT, named="101", owner=11), ""),
        (KEPT, with_account(KEPT, types=(*ACCOUNT.types, TypeVersion(502, "101"))), ""),
        (
            KEPT,
            with_account(KEPT, types=(TypeVersion(500, "101"), TypeVersion(501, "93"))),
            "a label of an enum was renamed, or an attribute of a composite type was added or dropped",
        ),
        (
            KEPT,
            publishing(KEPT, replace(LISTED, listing="16385 101 ")),
            "publication p did not contain it for a time, or has changed its row filter or column list",
        ),
        (KEPT, publishing(KEPT, replace(LISTED, version="101")), "publication p changed what is published of it"),
        (KEPT, publishing(KEPT, OTHER), "publications p, q changed what is published of it"),
        (KEPT, publishing(KEPT, LISTED, OTHER), ""),
        (publishing(KEPT, LISTED, OTHER), publishing(KEPT, LISTED, replace(OTHER, actions="i")), ""),
        (
            publishing(KEPT, replace(LISTED, is_whole=False)),
            publishing(KEPT, replace(LISTED, is_whole=False), OTHER),
            "publication q changed what is published of it",
        ),
        (KEPT, NEW_FILE, "it was rewritten or truncated"),
        (KEPT, replace(NEW_FILE, leaves=(replace(NEW_FILE.leaves[0], columns="b"),)), "ALTER TABLE has rewritten it"),
        (KEPT, EMPTIED, ""),
        (
            publishing(KEPT, DELETING),
            publishing(EMPTIED, DELETING),
            "it was truncated, and no publication of it publishes truncate",
        ),
        (publishing(KEPT, KEEPING), publishing(EMPTIED, KEEPING), ""),
        (
            ROOT,
            replace(ROOT, leaves=(replace(ROOT.leaves[0], attachment="81/"),)),
            "a partition was detached for a time",
        ),
        (ROOT, replace(ROOT, leaves=(replace(ROOT.leaves[0], filenode=11),)), "a partition was rewritten or truncated"),
        # A publication of roots sends rows of a partition as rows of its root, whatever others send.
        (PART, publishing(PART, LISTED, ROOTS), "publication r changed what is published of it"),
        (PART, publishing(PART, LISTED, OTHER), ""),
        (
            publishing(PART, LISTED, replace(ROOTS, via_root=False)),
            publishing(PART, LISTED, replace(ROOTS, via_root=False, version="101")),
            "publication r changed what is published of it",
        ),
        (
            publishing(ROOT, LISTED, ROOTS),
            publishing(ROOT, LISTED, replace(ROOTS, version="101")),
            "publication r changed what is published of it",
        ),
        (
            publishing(ROOT, replace(LISTED, via_root=True)),
            publishing(ROOT, replace(LISTED, via_root=True), ROOTS),
            "",
        ),
        (with_account(KEPT, removals=3), with_account(KEPT, removals=3), ""),
        (
            with_account(KEPT, removals=3),
            with_account(KEPT, removals=4),
            "a publication may have sent more of it for a time",
        ),
        # The server discarded its statistics.
        (with_account(KEPT, removals=3), with_account(KEPT, removals=0), ""),
        (
            with_account(KEPT, removals=3),
            with_account(KEPT, removals=1),
            "a publication may have sent more of it for a time",
        ),
        (with_account(KEPT, removals=0), with_account(KEPT, removals=0), ""),
        (
            with_account(KEPT, removals=0),
            with_account(KEPT, removals=3),
            "a publication may have sent more of it for a time",
        ),
        (with_account(KEPT, removals=None), with_account(KEPT, removals=4), ""),
        (with_account(KEPT, generated="2,3"), with_account(KEPT, generated="3"), "a column is no longer generated"),
        (with_account(KEPT, generated="2"), with_account(KEPT, generated="2,4"), ""),
        (ROOT, replace(ROOT, leaves=(*ROOT.leaves, LeafContent(3, 30, "a"))), ""),
        (
            ROOT,
            replace(ROOT, leaves=(*ROOT.leaves, LeafContent(3, 0, "a"))),
            "a foreign table was attached as a partition",
        ),
        (replace(ROOT, leaves=(*ROOT.leaves, LATELY)), ROOT, "a partition was detached or dropped"),
        (
            replace(ROOT, leaves=(*ROOT.leaves, LATELY)),
            replace(ROOT, leaves=(*ROOT.leaves, LeafContent(3, 30, "a"))),
            "",
        ),
        (
            replace(ROOT, leaves=(*ROOT.leaves, LATELY)),
            replace(ROOT, leaves=(*ROOT.leaves, LeafContent(3, 30, "a", is_attached=True))),
            "a partition was attached",
        ),
        # pg_upgrade: nothing of the catalog is what it was, but for oids, files and names
        (
            KEPT,
            with_account(publishing(KEPT, OTHER), made="1", moved="1", named="1", types=(TypeVersion(500, "1"),)),
            "",
        ),
        (ROOT, with_account(replace(ROOT, leaves=(replace(ROOT.leaves[0], attachment="1/"),)), made="1"), ""),
        (with_account(KEPT, made="1"), replace(KEPT, name="u"), "it was renamed from public.t"),
    ],
)
def test_the_account_tells_more(before: PublishedContent, now: PublishedContent, reason: str) -> None:
    assert unsent(before, now) == reason


@pytest.mark.parametrize("now", [NEW_FILE, replace(ROOT, leaves=(replace(ROOT.leaves[0], filenode=11),))])
def test_a_file_that_has_rows_from_before_is_a_copy(now: PublishedContent) -> None:
    before = ROOT if now.is_partitioned else KEPT
    assert unsent(before, now) != "" == unsent(before, now, {1})
