"""Relation message and catalog facts together: which columns are identity, and what is said of
unknown types."""

from __future__ import annotations

import pytest

from gateway.pgoutput.relation import Column, Relation
from gateway.relations.describe import describe
from schemas.relation import Kind, ReplicaIdentity, TypeFacts

FACTS = {25: TypeFacts(25, "pg_catalog", "text", Kind.BASE)}


def relation(identity: ReplicaIdentity, *keys: bool) -> Relation:
    columns = tuple(Column(key, f"c{number}", 25, -1) for number, key in enumerate(keys))
    return Relation(None, 16400, "public", "t", identity, columns)


def identity_names(message: Relation, *primary_key: str) -> list[str]:
    return [column.name for column in describe(message, FACTS, primary_key).identity_columns]


@pytest.mark.parametrize("identity", [ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX])
def test_identity_columns_are_those_that_the_wire_marks(identity: ReplicaIdentity) -> None:
    assert identity_names(relation(identity, False, True, True), "c0") == ["c1", "c2"]


def test_nothing_has_no_identity_whatever_the_primary_key() -> None:
    assert identity_names(relation(ReplicaIdentity.NOTHING, False, False), "c0") == []


def test_under_full_the_primary_key_of_the_catalog_counts() -> None:
    assert identity_names(relation(ReplicaIdentity.FULL, True, True, True), "c2", "c0") == ["c0", "c2"]
    assert identity_names(relation(ReplicaIdentity.FULL, True, True)) == []


def test_under_full_a_primary_key_that_is_not_sent_whole_does_not_count() -> None:
    assert identity_names(relation(ReplicaIdentity.FULL, True, True), "c0", "not_published") == []


def test_a_type_without_facts_is_unknown_with_the_name_of_its_type_message() -> None:
    message = Relation(
        None, 1, "s", "t", ReplicaIdentity.DEFAULT, (Column(False, "a", 70000, -1), Column(False, "b", 70001, -1))
    )
    first, second = describe(message, FACTS, (), {70000: ("public", "mood")}).columns
    assert (first.facts.kind, first.facts.namespace, first.facts.name) == (Kind.UNKNOWN, "public", "mood")
    assert (second.facts.kind, second.facts.name) == (Kind.UNKNOWN, "")
