"""Merges that are killed at each of their steps: what readers see is the source, then, behind the
next merge, and behind an ALTER TABLE, or another relation of the same name, that comes before or
after it.

A kill is an exception at a step: from then on no other step is made by that merge, nor is the
mirror given back.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from schemas.relation import RelationDescription, ReplicaIdentity, TypeFacts
from spark_consumer.errors import MirrorError
from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, maintenance, table_snapshots, version_manifest, versions, writer_epoch
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.delta import cleanup, delta_format, delta_table, log_entries
from spark_consumer.mirror.fold import replica_identity
from spark_consumer.mirror.local.version_list import listed_versions
from spark_consumer.mirror.merge import merger
from spark_consumer.mirror.merge.merge_command import merge_once
from spark_consumer.mirror.paths import kept_path
from spark_consumer.mirror.tables.prepare_table import EMPTY, KEEP_AS
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, OUT, is_log
from spark_consumer.mirror.tables.write_table import TableWork
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT4, INT8, NUMERIC, TEXT, Feeder, Row, Table, relation
from tests.spark_consumer.workload import VISITS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

Numbered = TypeFacts | tuple[TypeFacts, int]
MONEY = (NUMERIC, (24 << 16 | 2) + 4)
EVERY_SECOND = "spark.databricks.delta.properties.defaults.checkpointInterval"


class Killed(BaseException):
    """No `except Exception` catches it."""


@dataclass(frozen=True)
class Step:
    """The nth call of a function, for `table` if it is given; `behind`: killed when it has
    returned."""

    module: Any
    function: str
    nth: int = 1
    behind: bool = False
    table: str = ""

    @property
    def place(self) -> tuple[Any, str]:
        return self.module, self.function

    def is_meant(self, arguments: tuple[Any, ...]) -> bool:
        places = [found.location if isinstance(found, TableWork) else found for found in arguments]
        return not self.table or any(isinstance(place, str) and f"/{self.table}" in place for place in places)


STEPS = {
    "convert": Step(replica_identity, "convert", table="calls"),
    "align": Step(delta_format, "align", table="items"),
    "cast": Step(delta_table, "_cast"),
    "first table": Step(merger, "write"),
    "second table": Step(merger, "write", 2),
    "end of a REPLACE": Step(table_snapshots, "end_replace"),
    "manifest": Step(version_manifest, "record"),
    "manifest, second piece": Step(version_manifest, "record", 2),
    "removal of keys": Step(merger, "remove_folder"),
    "old versions": Step(version_manifest, "prune"),
    "old changes": Step(changes, "prune"),
}
PLACES = {*(step.place for step in STEPS.values()), (writer_epoch, "give_back"), (writer_epoch, "check")}


@contextmanager
def killed_at(step: Step) -> Iterator[None]:
    """Within, a merge that comes there ends there, and does nothing more."""
    died, counted = threading.Event(), [0]

    def guarded(place: tuple[Any, str], function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if died.is_set():
                raise Killed
            is_it = place == step.place and step.is_meant(arguments)
            counted[0] += is_it
            is_it = is_it and counted[0] == step.nth
            if is_it and not step.behind:
                died.set()
                raise Killed
            found = function(*arguments, **named)
            if is_it:
                died.set()
                raise Killed
            return found

        return call

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merger, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))  # a table behind another
        for module, name in PLACES:
            patched.setattr(module, name, guarded((module, name), getattr(module, name)))
        with pytest.raises(Killed):
            yield
    assert died.is_set()


def numbered(name: str, columns: dict[str, tuple[Numbered, int]], key: tuple[str, ...]) -> RelationDescription:
    """Columns with their types and attnums; without a key it is REPLICA IDENTITY FULL."""
    whole = ReplicaIdentity.DEFAULT if key else ReplicaIdentity.FULL
    made = relation(name, {column: facts for column, (facts, _) in columns.items()}, key, whole)
    numbers = [number for _, number in columns.values()]
    return replace(
        made, columns=tuple(replace(found, attnum=n) for found, n in zip(made.columns, numbers, strict=True))
    )


def columns_of(amount: Numbered, name: str = "name") -> dict[str, tuple[Numbered, int]]:
    return {"id": (INT8, 1), name: (TEXT, 2), "amount": (amount, 3)}


def item(number: int, amount: int | Decimal, name: str | None = None, named: str = "name") -> Row:
    return {"id": number, named: name or f"name {number}", "amount": amount}


@dataclass
class Scene:
    """A mirror of three tables. `subject`: whose merge is killed, `items` or `calls`; `truth`: all
    rows behind each commit."""

    spark: SparkSession
    feeder: Feeder
    path: str
    subject: str = "items"
    on_recreated: str = EMPTY
    checks_all: bool = True
    """Whether `check` reads the version at every commit, or at the first and last of them."""
    tables: dict[str, Table] = field(default_factory=dict)
    truth: dict[int, dict[str, list[Row]]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)  # of snapshots that replace rows

    def begin(self) -> None:
        self.tables = {
            "items": self.feeder.table(numbered("items", columns_of(INT4), ("id",))),
            "calls": self.feeder.table(numbered("calls", columns_of(INT4), ())),
            "visits": self.feeder.table(VISITS),
        }
        for first in (1, 6):
            rows = [item(number, number * 10) for number in range(first, first + 5)]
            self.commit(*(("items", None, row) for row in rows), *(("calls", None, row) for row in rows))
        self.take()
        self.merge()

    def commit(self, *changed: tuple[str, Row | None, Row | None]) -> int:
        """Table, old row, new row; and a visit."""
        transaction = self.feeder.begin()
        for name, old, new in changed:
            if old is None:
                assert new is not None
                transaction.insert(self.tables[name], new)
            elif new is None:
                transaction.delete(self.tables[name], old)
            else:
                transaction.update(self.tables[name], old, new)
        transaction.insert(self.tables["visits"], {"page": f"/{len(self.truth)}", "seconds": 1.0})
        commit_lsn = transaction.commit()
        self.note(commit_lsn)
        return commit_lsn

    def note(self, commit_lsn: int) -> None:
        self.truth[commit_lsn] = copy.deepcopy({name: rows_of(table) for name, table in self.tables.items()})

    def alter(self, name: str, description: RelationDescription, rows: list[Row]) -> Table:
        made = self.tables[name] = self.feeder.alter(self.tables[name], description)
        made.log = []
        made.rows = {made.key(row): row for row in rows}
        return made

    def changed_types(self) -> None:
        old = self.tables["items"].rows
        self.commit(("items", old[1,], item(1, 11)), ("items", old[2,], None))
        made = self.alter("items", numbered("items", columns_of(INT8), ("id",)), list(old.values()))
        self.commit(
            ("items", made.rows[3,], item(3, 1 << 40)),
            ("items", made.rows[4,], item(40, 4)),
            ("items", made.rows[5,], None),
            ("items", None, item(20, 20)),
        )
        self.take()

    def got_a_key(self) -> None:
        self.subject = "calls"
        self.commit(("calls", None, item(11, 11)))
        made = self.alter("calls", numbered("calls", columns_of(INT4), ("id",)), rows_of(self.tables["calls"]))
        self.commit(
            ("calls", made.rows[3,], item(3, 33)), ("calls", made.rows[5,], None), ("calls", None, item(20, 20))
        )
        self.take()

    def replaced(self) -> None:
        items = self.tables["items"]
        self.feeder.bound("SNAPSHOT_BEGIN", items, "REPLACE")
        came = [item(1, 1), item(2, 2), item(30, 30)]
        self.note(self.feeder.chunk(items, came, "REPLACE"))
        self.commit(("items", items.rows[3,], item(3, 3)), ("items", items.rows[2,], None))
        end_lsn = self.feeder.bound("SNAPSHOT_END", items, "REPLACE", rows=3)
        items.rows = {(number,): items.rows[number,] for number in (1, 3, 30)}
        self.note(end_lsn)
        self.ends.append(end_lsn)
        self.commit(("items", None, item(31, 31)))
        self.take()

    def renamed(self) -> None:
        """And given another type."""
        old = rows_of(self.tables[self.subject])
        description = numbered(self.subject, columns_of(MONEY, "title"), ("id",))
        rows = [item(row["id"], Decimal(row["amount"]), row["name"], "title") for row in old]
        made = self.alter(self.subject, description, rows)
        first, second, *_ = made.rows.values()
        self.commit(
            (self.subject, None, item(100, Decimal("1.50"), None, "title")),
            (self.subject, first, {**first, "amount": Decimal("2.25")}),
            (self.subject, second, None),
        )
        self.take()

    def recreated(self) -> None:
        made = numbered(self.subject, columns_of(INT8), ("id",))
        self.alter(self.subject, replace(made, oid=made.oid + 1), [])
        self.commit((self.subject, None, item(3, 1)), (self.subject, None, item(4, 1 << 41)))
        self.take()

    def take(self) -> None:
        """By a mirror that only appends."""
        self.feeder.kafka_commit()
        schemas = SchemaCache(Registry({"url": self.feeder.registry_url}))
        mirror = AppendingMirror(self.path, schemas, on_recreated=self.on_recreated, merge_every_s=math.inf)
        try:
            options = self.feeder.options(includeMarkers="true")
            mirror.apply(self.spark.read.format("walgate").options(**options).load(), 0)
        finally:
            mirror.stop()

    def merge(self) -> None:
        merge_once(cloned(self.spark), self.path, lambda _: None)

    def check(self, since_lsn: int | None = None) -> None:
        """The newest picture, and those behind each commit from `since_lsn` on."""
        last_lsn = max(self.truth)
        lsns = [lsn for lsn in self.truth if lsn >= (last_lsn if since_lsn is None else since_lsn)]
        for commit_lsn in sorted(lsns if self.checks_all else {min(lsns), max(lsns)}, reverse=True):
            self.check_at(commit_lsn)

    def check_at(self, commit_lsn: int) -> None:
        found = versions.read(self.spark, self.path, at="latest" if commit_lsn == max(self.truth) else commit_lsn)
        assert found.commit_lsn == self.readable(commit_lsn)
        for name, rows in self.truth[found.commit_lsn].items():
            place = (name, found.commit_lsn, list(self.truth).index(found.commit_lsn))
            assert rows_in(found, name) == sorted(rows, key=repr), place

    def readable(self, commit_lsn: int) -> int:
        """From the end of a snapshot that replaces rows to the merge behind it, no version knows
        the tables (table_states.first_unreadable)."""
        merged = (version.commit_lsn for version in listed_versions(Path(self.path)))
        merged_lsn = max((lsn for lsn in merged if lsn <= commit_lsn), default=-1)
        ends = [end for end in self.ends if merged_lsn < end <= commit_lsn]
        return max(lsn for lsn in self.truth if lsn < min(ends)) if ends else commit_lsn


def rows_of(table: Table) -> list[Row]:
    """Of the truth; nothing but INSERTs is in a table without key."""
    return list(table.rows.values()) or [
        {name: value for name, value in entry.items() if name != "op"} for entry in table.log
    ]


def rows_in(picture: versions.MirrorVersion, name: str) -> list[Row]:
    if f"public.{name}" not in picture:
        return []
    entries = picture[f"public.{name}"].toArrow().to_pylist()
    assert not entries or not is_log(entries[0]) or not {entry["_op"] for entry in entries} & {*OUT, "TRUNCATE"}
    hidden = {*LOG_COLUMNS, "_special"}
    return sorted(({key: row[key] for key in row if key not in hidden} for row in entries), key=repr)


def read_if_there(spark: SparkSession, path: str, commit_lsn: int) -> versions.MirrorVersion | None:
    try:
        return versions.read(spark, path, at=commit_lsn)
    except MirrorError as refused:
        if "begins at" not in str(refused):
            raise
        return None


@pytest.fixture
def scene(spark: SparkSession, feeder: Feeder, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    made = Scene(spark, feeder, str(tmp_path))
    made.checks_all = request.node.get_closest_marker("long") is not None
    made.begin()
    return made


KILLS = [
    ("changed_types", "align", False),
    ("changed_types", "cast", False),
    ("changed_types", "cast", True),
    ("changed_types", "align", True),
    *(("changed_types", name, behind) for name in ("first table", "second table", "manifest") for behind in (0, 1)),
    ("got_a_key", "convert", False),
    ("got_a_key", "convert", True),
    *(("replaced", name, behind) for name in ("end of a REPLACE", "manifest", "removal of keys") for behind in (0, 1)),
    ("got_a_key", "manifest", True),  # the key is new in the second piece
    *(("got_a_key", "manifest, second piece", behind) for behind in (0, 1)),
]
IN_SHORT = {
    ("changed_types", "cast", True, "renamed"),
}


def cases() -> Iterator[Any]:
    for scenario, name, behind in KILLS:
        for then in ("renamed later", "renamed", "recreated"):
            case = (scenario, name, bool(behind), then)
            marks = [] if case in IN_SHORT else [pytest.mark.long]
            words = (scenario, "behind" if behind else "before", name, then)
            yield pytest.param(
                scenario, replace(STEPS[name], behind=bool(behind)), then, marks=marks, id="-".join(words)
            )


@pytest.mark.parametrize(("scenario", "step", "then"), list(cases()))
def test_a_merge_that_was_killed_is_made_again(scene: Scene, scenario: str, step: Step, then: str) -> None:
    """`renamed later`: behind the next merge; `renamed`, `recreated`: before it, so that it takes
    in both."""
    merged_lsn = max(scene.truth)
    getattr(scene, scenario)()
    with killed_at(step):
        scene.merge()
    scene.check(merged_lsn)
    if then == "renamed later":
        scene.merge()
        scene.check()
    if then == "recreated":
        scene.recreated()
    else:
        scene.renamed()
    scene.check()
    scene.merge()
    scene.check(0)
    merged = version_manifest.recorded_version(scene.spark, scene.path)
    assert merged is not None and merged.commit_lsn == max(scene.truth)


def test_a_type_that_changes_behind_a_merge_that_was_killed_cuts_nothing_before_its_end(scene: Scene) -> None:
    """Alone, int4 and int8 are one slice; behind them comes a type that does not hold every
    int8."""
    scene.changed_types()
    with killed_at(replace(STEPS["first table"], behind=True)):
        scene.merge()
    rows = scene.tables["items"].rows
    scene.commit(("items", rows[3,], None))
    held = [item(row["id"], Decimal(row["amount"]), row["name"]) for row in rows.values()]
    scene.alter("items", numbered("items", columns_of((NUMERIC, (12 << 16 | 2) + 4)), ("id",)), held)
    scene.commit(("items", None, item(50, Decimal("1.50"))))
    scene.take()
    scene.merge()
    scene.check()


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(replace(STEPS[name], behind=behind), id=f"{'behind' if behind else 'before'} {name}")
        for name, behind in (("old versions", False), ("old versions", True), ("old changes", True))
    ],
)
def test_upkeep_that_was_killed_leaves_every_picture_whole_or_out_of_reach(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """`changes` has been cut before: below the oldest version there is only a part of what was ever
    appended."""
    monkeypatch.setattr(cleanup, "LOG_GRACE_S", 0.0)
    monkeypatch.setattr(cleanup, "_old_log", lambda *_: ["an entry"])  # enough merges were made
    monkeypatch.setattr(log_entries, "remove", lambda *_: None)
    session = cloned(spark)
    scene = Scene(session, feeder, str(tmp_path))
    scene.begin()
    first_lsn = max(scene.truth)

    def remove(before_lsn: int) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(version_manifest, "merged_before", lambda *_: before_lsn)
            names = [table.name for table in scene.tables.values()]
            maintenance.remove(session, scene.path, timedelta(), names)

    remove(first_lsn)
    scene.changed_types()
    within_lsn = min(lsn for lsn in scene.truth if lsn > first_lsn)
    scene.merge()
    scene.commit(("items", scene.tables["items"].rows[20,], item(20, 21)))
    scene.take()
    scene.merge()
    kept_lsn = max(scene.truth)
    scene.commit(("items", scene.tables["items"].rows[20,], item(20, 22)))
    scene.take()
    with killed_at(step):
        remove(kept_lsn)

    def check() -> None:
        for lsn in scene.truth:
            if lsn >= kept_lsn:
                scene.check_at(lsn)
            else:
                found = read_if_there(session, scene.path, lsn)
                if found is not None:
                    assert found.commit_lsn <= lsn
                    scene.check_at(found.commit_lsn)

    check()
    assert within_lsn < kept_lsn
    remove(kept_lsn)
    check()
    with pytest.raises(MirrorError, match="begins at"):
        versions.read(session, scene.path, at=within_lsn)
    scene.renamed()
    scene.merge()
    check()


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.long)])
def test_rows_of_a_dropped_table_are_kept_as_they_were_before_an_attempt_that_was_killed(
    scene: Scene, nth: int
) -> None:
    """Killed before its new rows are written, or behind that: it has lost a column, or its rows
    have gone."""
    before = scene.tables["items"]
    kept = kept_path(scene.path, TableName("public", "items"), before.description.oid)
    rows = sorted(rows_of(before), key=repr)
    scene.on_recreated = KEEP_AS
    fewer = numbered("items", {"id": (INT8, 1), "name": (TEXT, 2)}, ("id",))
    scene.alter("items", replace(fewer, oid=fewer.oid + 1), [])
    scene.commit(*(("items", None, {"id": number, "name": "new"}) for number in (1, 50)))
    scene.take()
    with killed_at(Step(merger, "write", nth)):
        scene.merge()
    scene.commit(("items", None, {"id": 51, "name": "new"}))
    scene.take()
    scene.merge()
    scene.check()
    found = scene.spark.read.format("delta").load(kept).drop("_special").toArrow().to_pylist()
    assert sorted(found, key=repr) == rows
