"""Many relations that are announced together."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Retry
from gateway.pgoutput.relation import Relation
from gateway.runtime.native_dialect import NativeRelation
from gateway.runtime.relation_registrar import RelationRegistrar
from schemas.relation import ReplicaIdentity
from tests.snapshot.test_resume import DESCRIPTION

RELATIONS = [(Relation(None, oid, "public", f"t{oid}", ReplicaIdentity.DEFAULT, ()), None) for oid in range(50)]


async def test_once_the_registry_has_failed_no_other_relation_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would wait as long for it."""
    tried = 0

    async def nothing(*_: object) -> None: ...

    async def described(*_: object) -> NativeRelation:
        return NativeRelation(DESCRIPTION, "cdc")

    async def registered(*_: object) -> None:
        nonlocal tried
        tried += 1
        number = tried
        await asyncio.sleep(0)
        raise Retry(f"no answer to {number}")

    for name, stub in {
        "_make_topics": nothing,
        "_look": nothing,
        "_described": described,
        "_registered": registered,
    }.items():
        monkeypatch.setattr(RelationRegistrar, name, stub)
    with pytest.raises(Retry, match="no answer to 1$"):
        await RelationRegistrar.__new__(RelationRegistrar).announce_all(RELATIONS)
    assert tried <= 8
