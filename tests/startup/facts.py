"""Facts of a server, a slot and a publication that are as they must be, for tests to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.startup.facts import (
    Expected,
    Facts,
    PublicationFacts,
    PublishedColumn,
    PublishedRelation,
    ServerFacts,
    SlotFacts,
    Stored,
)
from gateway.transactions.position import Position
from schemas.lsn import Lsn

ID = PublishedColumn("id", 23, -1, "integer")
NAME = PublishedColumn("name", 25, -1, "text")
ORDERS = PublishedRelation(101, "shop", "orders", "DEFAULT", ("id",), (ID, NAME), None)
ITEMS = PublishedRelation(102, "shop", "items", "DEFAULT", ("id",), (ID,), None)
PUBLICATION = PublicationFacts(
    7, "p", False, False, frozenset({"insert", "update", "delete", "truncate"}), (ORDERS, ITEMS)
)
SERVER = ServerFacts(
    "71",
    1,
    "shop",
    5,
    180006,
    "logical",
    Lsn(2000),
    "UTF8",
    60.0,
    max_prepared_transactions=10,
    used_slots=1,
    used_senders=1,
)
SLOT = SlotFacts("s", "pgoutput", "logical", "shop", None, Lsn(900), Lsn(1000), "reserved", None, False, failover=False)
FACTS = Facts(SERVER, SLOT, {"p": PUBLICATION})
EXPECTED = Expected("s", ("p",))
FRESH = Position("71", 1, "shop", "s", "cdc", ("p",), "1.0")
ACTIVE = replace(FRESH, state="ACTIVE", epoch=4, resume_lsn=Lsn(1500), last_commit_lsn=Lsn(1400))
STORED = Stored({ACTIVE.key: ACTIVE}, marker_topic_used=True)


def marked(marked_lsn: int, *, newest: int | None) -> Stored:
    """What is stored if the newest marker that the position knows is not the newest one there."""
    known = replace(ACTIVE, marked_lsn=Lsn(marked_lsn))
    return replace(STORED, positions={known.key: known}, newest_commit_lsn=None if newest is None else Lsn(newest))


def with_server(**change: Any) -> Facts:
    return replace(FACTS, server=replace(SERVER, **change))


def with_slot(**change: Any) -> Facts:
    return replace(FACTS, slot=replace(SLOT, **change))


def with_publication(**change: Any) -> Facts:
    return replace(FACTS, publications={"p": replace(PUBLICATION, **change)})


def without_slot() -> Facts:
    return replace(FACTS, slot=None)
