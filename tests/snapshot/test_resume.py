"""A snapshot that an earlier session had begun goes on, also where somebody has locked one of its
tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from gateway.config.settings import Settings
from gateway.events.row_encoder import RowEncoder
from gateway.pgoutput.relation import Relation
from gateway.snapshot import read_plan
from gateway.snapshot.coordinator import SnapshotCoordinator
from gateway.snapshot.read_plan import ReadPlans, Surveyed, survey
from gateway.snapshot.resume import SURVEYED_AT_ONCE
from gateway.snapshot.rules.published_content import Account, Membership, PublishedContent
from gateway.snapshot.rules.ranges_to_read import Leaf
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.stored_state import TableState, decode_states
from gateway.snapshot.table_task import TableTask
from gateway.startup.facts import PublishedColumn, PublishedRelation
from gateway.transactions.native_record_writer import EventVersion
from gateway.transactions.record_writer import RelationVersion
from schemas.records import SNAPSHOT_STATE
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.wire_format import frame
from tests.conftest import Database
from tests.snapshot.conftest import NOT_ASKED, Transactions

INT4 = TypeFacts(23, "pg_catalog", "int4", Kind.BASE)
DESCRIPTION = RelationDescription(1, "public", "t", ReplicaIdentity.DEFAULT, (ColumnDescription("id", INT4, -1, True),))
PUBLISHED = PublishedRelation(1, "public", "t", "DEFAULT", ("id",), (PublishedColumn("id", 23, -1, "integer"),), "...")
SURVEYED = Surveyed(
    relation=PUBLISHED, is_partitioned=False, is_heap=True, leaves=(Leaf(1, 1, 100),), leaf_names=("public.t",),
    row_filter="(id > 5)", fingerprint="f", content=PublishedContent("public", "t", False, ()),
)  # fmt: skip
HALF_READ = TableState(1, "public", "t", "s", status="READING", fingerprint="f", untouched=0, row_count=7)


class Server(Transactions):
    """What the engine asks itself: the rest is asked of `survey`."""

    async def fetchval(self, query: str) -> str:
        return "10:10:" if "snapshot" in query else "10"

    async def execute(self, _: str) -> None: ...

    async def rollback(self) -> None: ...

    def is_closed(self) -> bool:
        return False

    def is_in_transaction(self) -> bool:
        return True


class Machine:
    transaction_count = 0

    def set_observer(self, _: object) -> None: ...

    def in_force(self, _: int) -> None:
        return None


class Survey:
    """Of one table; somebody has it locked for the time being."""

    def __init__(self) -> None:
        self.is_locked = self.is_heap = True
        self.fingerprint = "f"
        self.asked: list[int] = []

    async def __call__(
        self, _: object, publications: Sequence[str], relation_oids: Sequence[int], *, prints_filters: bool = True
    ) -> dict[int, Surveyed]:
        self.asked.append(len(relation_oids))
        if self.is_locked and prints_filters:
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        row_filter = SURVEYED.row_filter if prints_filters else None
        found = replace(SURVEYED, row_filter=row_filter, fingerprint=self.fingerprint, is_heap=self.is_heap)
        return {1: found} if 1 in relation_oids else {}


@pytest.fixture
def locked(snapshot: SnapshotCoordinator, monkeypatch: pytest.MonkeyPatch) -> Survey:
    async def register(relations: Sequence[tuple[Relation, object]]) -> list[tuple[RelationVersion, str]]:
        return [(EventVersion("public.t", 1, RowEncoder(DESCRIPTION, 1, 2), NOT_ASKED), "topic") for _ in relations]

    asked: Any = Server(), Machine()
    snapshot._recorder._sql, snapshot._recorder._machine = asked
    snapshot._plans._sql, snapshot._plans._machine = asked
    snapshot._plans._register = register
    found = Survey()
    monkeypatch.setattr(read_plan, "survey", found)
    return found


async def resume(snapshot: SnapshotCoordinator, *states: TableState) -> None:
    await snapshot._record_changes()
    await snapshot._resumption.resume(states)


def where(task: TableTask) -> tuple[Status, int, bool]:
    """Its status, how many rows were read, and whether more may be."""
    return task.status, 0 if task.progress is None else task.progress.row_count, task.is_readable


async def test_a_table_that_is_locked_at_the_start_goes_on_where_it_was(
    snapshot: SnapshotCoordinator, locked: Survey
) -> None:
    """It is not one that has left its publications; it is read as soon as its row filter can be
    printed."""
    await resume(snapshot, HALF_READ)
    assert not snapshot._tasks.unpublished
    task = snapshot._tasks.active[1]
    assert where(task) == (Status.READING, 7, False)
    await snapshot._end_tables()  # what was read whole ends no earlier
    await snapshot._find_plans()
    assert where(task) == (Status.READING, 7, False)
    assert task.is_blocked(time.monotonic())
    locked.is_locked = False
    snapshot._tasks.block([task], 0.0)
    await snapshot._find_plans()
    assert where(task) == (Status.READING, 7, True)


async def test_a_table_that_was_changed_under_the_lock_is_restarted(
    snapshot: SnapshotCoordinator, locked: Survey
) -> None:
    await resume(snapshot, HALF_READ)
    locked.is_locked, locked.fingerprint = False, "other"
    await snapshot._find_plans()
    assert snapshot._tasks.active[1].status is Status.WAITING
    assert snapshot._tasks.active[1].state.purpose == "REPLACE"


@pytest.mark.parametrize(("row_count", "purpose"), [(0, "FILL"), (7, "REPLACE")])
async def test_a_table_that_is_read_at_once_begins_again_and_replaces_what_was_sent_of_it(
    row_count: int, purpose: str, snapshot: SnapshotCoordinator, locked: Survey
) -> None:
    locked.is_locked = locked.is_heap = False
    await resume(snapshot, replace(HALF_READ, row_count=row_count))
    task = snapshot._tasks.by_oid[1]
    assert task.status is Status.WAITING
    ((_, plan),) = await snapshot._plans_of([task], time.monotonic())
    snapshot._tasks.set_up(task, plan)
    assert task.state.purpose == purpose


async def test_only_what_no_publication_holds_is_left(snapshot: SnapshotCoordinator, locked: Survey) -> None:
    await resume(snapshot, HALF_READ, replace(HALF_READ, relation_oid=2))
    assert snapshot._tasks.unpublished == {2} and [*snapshot._tasks.by_oid] == [1]


async def test_only_what_was_begun_is_surveyed_and_not_all_of_it_at_once(
    snapshot: SnapshotCoordinator, locked: Survey
) -> None:
    """Thousands may wait. The check of the catalog forgets those that have left."""
    locked.is_locked = False
    waiting = [TableState(oid, "public", f"t{oid}", "s") for oid in range(1000, 3000)]
    begun = [replace(HALF_READ, relation_oid=oid) for oid in range(1, 120)]
    reselected = replace(HALF_READ, relation_oid=120, purpose="RESELECT")
    await resume(snapshot, *waiting, TableState.not_found(5000), *begun, reselected)
    assert locked.asked == [SURVEYED_AT_ONCE, SURVEYED_AT_ONCE, 20]
    assert snapshot._tasks.unpublished == {5000, *range(2, 121)}
    assert [*snapshot._tasks.by_oid] == [*range(1000, 3000), 1]


async def test_that_a_table_begins_again_after_a_gap_is_durable(snapshot: SnapshotCoordinator, locked: Survey) -> None:
    """Another session that comes before the table can be read does not know of the gap."""
    snapshot._resumption._is_after_gap = True
    await resume(snapshot, HALF_READ)
    snapshot._tasks._frame = frame(1)
    records = snapshot._tasks.take_states(set(), with_stream=False)
    written = {key: value for key, value in records.items() if value is not None}
    (stored,) = decode_states(written, {1: SNAPSHOT_STATE}).tables.values()
    assert (stored.status, stored.purpose, stored.row_count) == ("WAITING", "REPLACE", 0)


ACCOUNT = Account("1", "2", "3", 10, (Membership(5, "6", "p", "iudt", "all", True),), ())
CHANGED_ACCOUNT = replace(ACCOUNT, memberships=(Membership(5, "7", "p", "iudt", "all", True),))


@pytest.mark.parametrize(("before", "floor"), [(ACCOUNT, 10), (CHANGED_ACCOUNT, 20), (None, 20)])
async def test_a_table_waits_for_no_transaction_that_began_after_it_was_published_and_changes_were_recorded(
    before: Account | None, floor: int, snapshot: SnapshotCoordinator, locked: Survey
) -> None:
    """Otherwise each of many tables would wait for those that are open when it begins."""
    tasks, content = snapshot._tasks, replace(SURVEYED.content, account=ACCOUNT)
    if before is not None:
        tasks.contents.is_now(1, replace(content, account=before))
    await snapshot._record_changes()
    tasks.contents.is_now(1, content)
    tasks.add(TableState(1, "public", "t", ""), misses_keys=False)
    (plan,) = await snapshot._plans.of([replace(SURVEYED, content=content)])
    tasks.set_up(tasks.by_oid[1], plan)
    tasks.begin(tasks.by_oid[1], (), 20)
    progress = tasks.by_oid[1].progress
    assert progress is not None and progress.track is not None and progress.track.floor == floor


@pytest.mark.integration
async def test_without_its_row_filter_a_table_is_found_whoever_has_locked_it(database: Database) -> None:
    sql, other = await database.connect(), await database.connect()
    await sql.execute("""
        CREATE TABLE kept (id int PRIMARY KEY); CREATE TABLE part (id int PRIMARY KEY);
        CREATE PUBLICATION held FOR TABLE kept, part WHERE (id > 5); SET lock_timeout = '100ms'
    """)
    oids = [row[0] for row in await sql.fetch("SELECT oid::int8 FROM pg_class WHERE relname IN ('kept', 'part')")]
    before = await survey(sql, ["held"], oids)
    await other.execute("BEGIN; LOCK part, kept IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await survey(sql, ["held"], oids)
    found = await survey(sql, ["held"], oids, prints_filters=False)
    assert {oid: each.fingerprint for oid, each in found.items()} == {
        oid: each.fingerprint for oid, each in before.items()
    }
    assert {each.relation.name: each.row_filter for each in before.values()} == {"kept": "", "part": "((id > 5))"}
    assert {each.relation.name: each.row_filter for each in found.values()} == {"kept": "", "part": None}


@pytest.mark.integration
async def test_of_many_tables_only_the_locked_ones_have_no_row_filter(database: Database) -> None:
    sql, other = await database.connect(), await database.connect()
    names = [f"t{number}" for number in range(9)]
    await sql.execute("".join(f"CREATE TABLE {name} (id int PRIMARY KEY);" for name in names))
    await sql.execute("CREATE PUBLICATION held FOR TABLE " + ", ".join(f"{name} WHERE (id > 5)" for name in names))
    await sql.execute("SET lock_timeout = '1s'")
    oids = [row[0] for row in await sql.fetch("SELECT oid::int8 FROM pg_class WHERE relname = ANY ($1)", names)]
    settings = Settings.model_validate({"source": {"dsn": database.dsn, "publications": ["held"]}})
    plans = ReadPlans(settings, sql, NOT_ASKED, NOT_ASKED, text_only=False)
    await other.execute("BEGIN; LOCK t0, t4 IN ACCESS EXCLUSIVE MODE")
    found = {each.relation.name: each.row_filter for each in (await plans.survey(oids)).values()}
    assert found == dict.fromkeys(names, "((id > 5))") | {"t0": None, "t4": None}
    assert await sql.fetchval("SHOW lock_timeout") == "1s"
