"""Snapshots, exclusions and gaps in a mirror on real parts: markers and records as a gateway writes
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from schemas.relation import ReplicaIdentity
from schemas.verdict import TableVerdict, decode_verdict, verdict_path
from spark_consumer.errors import MirrorError
from spark_consumer.mirror import slice_contents, versions
from spark_consumer.mirror.paths import differences_path, table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import FLOAT8, INT8, TEXT, Feeder, Row, Table, relation
from tests.spark_consumer.mirrors import RunningMirror, Story, merged_rows, play, running_mirror, waiting_mirror
from tests.spark_consumer.workload import VISITS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT, "note": TEXT}, ("id",))
ITEMS = relation("items", {"id": INT8}, ("id",))
CALLS = relation("calls", {"page": TEXT, "seconds": FLOAT8}, (), ReplicaIdentity.FULL)


def account(number: int, owner: str = "a", note: str | None = "n") -> Row:
    return {"id": number, "owner": owner, "note": note}


class Reader:
    """A mirror: each call of `take` is a batch of what is there now."""

    def __init__(self, spark: SparkSession, feeder: Feeder, path: Path) -> None:
        self.spark, self.feeder, self.path = spark, feeder, path
        self.merges = True  # what was appended
        self.mirror = running_mirror(path, feeder.registry_url)

    def take(self) -> list[BatchReport]:
        self.feeder.kafka_commit()
        batch = self.spark.read.format("walgate").options(**self.feeder.options(includeMarkers="true")).load()
        return self.mirror.take(batch, merges=self.merges)

    def picture(self) -> versions.MirrorVersion:
        return versions.read(self.spark, str(self.path))

    def rows(self, table: Table, picture: versions.MirrorVersion | None = None) -> dict[Any, Row]:
        """Rows that were merged, or those of a picture. The latter takes Spark seconds."""
        if picture is None and not self.merges:
            picture = self.picture()
        if picture is None:
            rows = merged_rows(self.path, table.name)[table.name]
        else:
            rows = picture[table.name].toArrow().to_pylist()
        return {table.key(row): {name: value for name, value in row.items() if name != "_special"} for row in rows}


@pytest.fixture
def reader(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> Reader:
    return Reader(spark, feeder, tmp_path)


def in_one_transaction(feeder: Feeder, *changes: Callable[[Any], Any]) -> int:
    transaction = feeder.begin()
    for change in changes:
        change(transaction)
    return transaction.commit()


def exclude_from_here(feeder: Feeder, table: Table, other: Table, row: Row) -> None:
    """Insert a row into another table in the transaction from which on this one is excluded."""
    excluded = {
        "relation_oid": table.description.oid, "schema": "public", "name": table.description.name, "topic": table.topic,
        "event_count": 3, "reason": "a row is too large",
    }  # fmt: skip
    transaction = feeder.begin()
    transaction.insert(other, row)
    transaction.commit(damage=lambda marker: marker["manifest"].update(excluded=[excluded]))


# Where changes are merged, what a version shows before is compared too (merge_waiting).
@pytest.mark.parametrize(
    "merges", [pytest.param(False, marks=pytest.mark.long, id="appended"), pytest.param(True, id="merged")]
)
@pytest.mark.parametrize("small_changes", [slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def test_a_table_is_in_a_picture_from_the_end_of_its_snapshot_on(
    reader: Reader, feeder: Feeder, monkeypatch: pytest.MonkeyPatch, small_changes: int, merges: bool
) -> None:
    """And a READ brings the columns that an UPDATE before it did not send."""
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", small_changes)
    reader.merges = merges
    accounts, items, visits = feeder.table(ACCOUNTS), feeder.table(ITEMS), feeder.table(VISITS)
    feeder.bound("SNAPSHOT_BEGIN", None, "FILL")
    feeder.bound("SNAPSHOT_BEGIN", accounts, "FILL")
    accounts.rows = {(number,): account(number) for number in range(5)}
    in_one_transaction(
        feeder,
        lambda t: t.update(accounts, account(1), account(1, "b"), unchanged=("note",)),
        lambda t: t.delete(accounts, account(2)),
        lambda t: t.insert(items, {"id": 1}),
    )
    feeder.marker({"kind": "UNKNOWN", "xid": 0, "marker_lsn": feeder.next_lsn()})
    feeder.chunk(accounts, [accounts.rows[number,] for number in (0, 1, 3)], "FILL")
    reader.take()
    picture = reader.picture()
    assert not picture and picture.filling == ["public.accounts", "public.items"]
    with pytest.raises(MirrorError, match="the snapshot of public.accounts is not complete yet"):
        picture["public.accounts"]
    reader.mirror.restart()
    in_one_transaction(feeder, lambda t: t.update(accounts, account(3), account(3, "c")))
    feeder.chunk(accounts, [accounts.rows[4,]], "FILL")
    feeder.bound("SNAPSHOT_END", accounts, "FILL", rows=4)
    feeder.chunk(visits, [{"page": "/", "seconds": 1.0}], "FILL")
    reader.take()
    assert reader.rows(accounts) == accounts.rows
    assert accounts.rows == {(0,): account(0), (1,): account(1, "b"), (3,): account(3, "c"), (4,): account(4)}
    assert reader.picture().filling == ["public.items", "public.visits"]
    end_lsn = feeder.bound("SNAPSHOT_END", visits, "FILL", rows=1)
    feeder.bound("SNAPSHOT_END", None, "FILL", lsn=end_lsn)
    assert reader.take()  # markers alone are a batch
    picture = reader.picture()
    assert reader.rows(items) == items.rows and not picture.filling
    log = picture["public.visits"].orderBy("_commit_lsn", "_ordinal").collect()
    assert [(row["_op"], row["_ordinal"]) for row in log] == [("TRUNCATE", -1), ("READ", 0)]


@pytest.mark.parametrize("small_changes", [slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def test_replace_deletes_the_keys_that_had_no_change(
    reader: Reader, feeder: Feeder, monkeypatch: pytest.MonkeyPatch, small_changes: int
) -> None:
    """After a gap: rows went, came and changed without an event. Until its end the table is
    stale."""
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", small_changes)
    accounts, items = feeder.table(ACCOUNTS), feeder.table(ITEMS)
    inserts = [lambda t, n=n: t.insert(accounts, account(n)) for n in range(8)]
    in_one_transaction(feeder, *inserts, lambda t: t.insert(items, {"id": 1}))
    reader.take()
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(100)))  # known, and lost like the others
    lost = feeder.next_lsn()
    feeder.marker(
        {"kind": "GAP", "xid": 0, "marker_lsn": lost, "end_lsn": feeder.next_lsn(), "detail": "the slot was lost"}
    )
    reports = reader.take()
    assert reader.picture().stale == dict.fromkeys(["public.accounts", "public.items"], "the slot was lost")
    assert "are lost" in reports[-1].notes[0]
    accounts.rows = {(n,): account(n, "changed") for n in (0, 1, 2, 3)}
    begin_lsn = feeder.bound("SNAPSHOT_BEGIN", None, "FILL")
    feeder.bound("SNAPSHOT_BEGIN", accounts, "REPLACE", lsn=begin_lsn)
    feeder.chunk(accounts, [accounts.rows[0,], accounts.rows[1,]], "REPLACE")
    reader.take()
    reader.mirror.restart()
    in_one_transaction(
        feeder,
        lambda t: t.update(accounts, accounts.rows[2,], {**accounts.rows[2,], "id": 20}),
        lambda t: t.insert(accounts, account(30)),
        lambda t: t.delete(accounts, accounts.rows[1,]),
    )
    feeder.chunk(accounts, [accounts.rows[3,]], "REPLACE")
    reader.take()
    in_one_transaction(feeder, lambda t: t.update(accounts, accounts.rows[3,], account(3, "once more")))
    feeder.bound("SNAPSHOT_END", accounts, "REPLACE", rows=3)
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(31)))
    feeder.bound("SNAPSHOT_BEGIN", items, "REPLACE")
    end_lsn = feeder.bound("SNAPSHOT_END", items, "REPLACE")
    feeder.bound("SNAPSHOT_END", None, "FILL", lsn=end_lsn)  # one transaction ends both
    items.rows.clear()
    reader.take()
    assert reader.rows(accounts) == accounts.rows and sorted(accounts.rows) == [(0,), (3,), (20,), (30,), (31,)]
    assert reader.rows(items) == {} and not reader.picture().stale


def a_verify_reports_each_difference_and_writes_nothing(reader: Reader, feeder: Feeder) -> Story:
    accounts = feeder.table(ACCOUNTS)
    in_one_transaction(feeder, *(lambda t, n=n: t.insert(accounts, account(n)) for n in range(6)))
    yield
    held = dict(accounts.rows)
    source = {n: account(n) for n in (0, 1, 2, 3)} | {1: account(1, "changed"), 7: account(7, note=None)}
    feeder.bound("SNAPSHOT_BEGIN", accounts, "VERIFY", "two")
    in_one_transaction(feeder, lambda t: t.update(accounts, account(2), account(2, "b")))
    in_one_transaction(feeder, lambda t: t.delete(accounts, account(5)))
    source[2] = account(2, "b")
    feeder.chunk(accounts, [source[n] for n in (0, 1, 2)], "VERIFY", "two")
    in_one_transaction(feeder, lambda t: t.update(accounts, account(3), account(3, "behind")))
    feeder.chunk(accounts, [source[7], account(3, "behind")], "VERIFY", "two")
    feeder.bound("SNAPSHOT_END", accounts, "VERIFY", "two", rows=5)
    reports = yield
    found = reader.spark.read.format("delta").load(differences_path(str(reader.path))).where("snapshot_id = 'two'")
    differences = [
        ("CHANGED", '{"id":1}', ("owner",)), ("MISSING", '{"id":7}', ()), ("SURPLUS", '{"id":4}', ()),
    ]  # fmt: skip
    assert sorted((row.kind, row.key, tuple(row.columns)) for row in found.collect()) == differences
    assert sum(report.differences for report in reports) == 3 + 4  # those of the log are in the same batch
    verdict = verdict_of(reader, accounts)
    assert (verdict.purpose, verdict.snapshot_id, verdict.row_count) == ("VERIFY", "two", 5)
    assert counts(verdict) == (1, 1, 1)
    assert sorted((each.kind, each.key, each.columns) for each in verdict.keys) == differences
    expected = {key: row for key, row in held.items() if key != (5,)}
    assert reader.rows(accounts) == expected | {(2,): account(2, "b"), (3,): account(3, "behind")}


def visit(page: str, seconds: float | None = 1.0) -> Row:
    return {"page": page, "seconds": seconds}


def verdict_of(reader: Reader, table: Table) -> TableVerdict:
    return decode_verdict(Path(verdict_path(str(reader.path), table.name)).read_bytes())


def counts(verdict: TableVerdict) -> tuple[int, int, int]:
    return verdict.changed, verdict.missing, verdict.surplus


def a_table_without_key_is_compared_as_a_multiset_of_rows(reader: Reader, feeder: Feeder) -> Story:
    calls = feeder.table(CALLS)
    held = [visit("a"), visit("a"), visit("b"), visit("b"), visit("c", None)]
    in_one_transaction(feeder, *(lambda t, row=row: t.insert(calls, row) for row in held))
    others = [visit("a"), visit("b"), visit("b"), visit("b"), visit("d")]
    for snapshot_id, rows, differences in (
        ("equal", held[::-1], (0, 0, 0)),
        ("other", others, (0, 2, 2)),
        ("none", [], (0, 0, 5)),
    ):
        feeder.bound("SNAPSHOT_BEGIN", calls, "VERIFY", snapshot_id)
        if rows:
            feeder.chunk(calls, rows, "VERIFY", snapshot_id)
        feeder.bound("SNAPSHOT_END", calls, "VERIFY", snapshot_id, rows=len(rows))
        yield
        verdict = verdict_of(reader, calls)
        assert (verdict.snapshot_id, counts(verdict)) == (snapshot_id, differences)
        assert all(each.key is None for each in verdict.keys)
    in_one_transaction(feeder, *(lambda t, row=row: t.delete(calls, row) for row in held[1:]))
    feeder.bound("SNAPSHOT_BEGIN", calls, "VERIFY", "emptied")
    in_one_transaction(feeder, lambda t: t.insert(calls, visit("a")))  # behind the chunk, which had no row
    feeder.bound("SNAPSHOT_END", calls, "VERIFY", "emptied")
    in_one_transaction(feeder, lambda t: t.insert(calls, visit("new")))
    yield
    verdict = verdict_of(reader, calls)
    assert (verdict.snapshot_id, verdict.surplus) == ("emptied", 1)


@pytest.mark.parametrize("small_changes", [slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def test_a_verify_finds_each_difference_of_rows_and_of_a_log(
    reader: Reader, feeder: Feeder, monkeypatch: pytest.MonkeyPatch, small_changes: int
) -> None:
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", small_changes)
    play(
        reader.take,
        a_verify_reports_each_difference_and_writes_nothing(reader, feeder),
        a_table_without_key_is_compared_as_a_multiset_of_rows(reader, feeder),
    )


@pytest.mark.long
@pytest.mark.parametrize("key", [pytest.param(("id",), id="rows"), pytest.param((), id="log")])
def test_columns_with_names_of_the_comparison_are_compared_as_all_others(
    reader: Reader, feeder: Feeder, key: tuple[str, ...]
) -> None:
    odd = feeder.table(relation("odd", {"id": INT8, "There": TEXT, "held": INT8}, key, ReplicaIdentity.FULL))
    rows: list[Row] = [{"id": 1, "There": "a", "held": 3}, {"id": 2, "There": None, "held": None}]
    in_one_transaction(feeder, *(lambda t, row=row: t.insert(odd, row) for row in rows))
    reader.take()
    for snapshot_id, held, differences in (("equal", None, 0), ("other", 4, 1 if key else 2)):
        feeder.bound("SNAPSHOT_BEGIN", odd, "VERIFY", snapshot_id)
        feeder.chunk(odd, [rows[0], {**rows[1], "held": held}], "VERIFY", snapshot_id)
        feeder.bound("SNAPSHOT_END", odd, "VERIFY", snapshot_id, rows=2)
        reports = reader.take()
        assert sum(report.differences for report in reports) == differences


@pytest.mark.long
def test_hundreds_of_chunks_are_one_comparison_and_no_plan_grows_with_them(reader: Reader, feeder: Feeder) -> None:
    accounts, items = feeder.table(ACCOUNTS), feeder.table(ITEMS)
    in_one_transaction(feeder, *(lambda t, n=n: t.insert(accounts, account(n)) for n in range(400)))
    reader.take()
    feeder.bound("SNAPSHOT_BEGIN", accounts, "VERIFY")
    for number in range(1, 400):
        feeder.chunk(accounts, [account(number, "b" if number % 100 == 0 else "a")], "VERIFY")
        if number % 100 == 50:
            transaction = feeder.begin()
            transaction.insert(items, {"id": number})
            transaction.commit()
    in_one_transaction(feeder, lambda t: t.update(accounts, account(7), account(7, "later")))
    feeder.bound("SNAPSHOT_END", accounts, "VERIFY", rows=399)
    reports = reader.take()
    verdict = verdict_of(reader, accounts)
    assert (*counts(verdict), verdict.row_count) == (3, 0, 1, 399)
    assert [report.changes for report in reports if report.is_merge] == [399 + 4, 1], (
        "it is cut before the change of a row that was compared"
    )
    assert reader.rows(items) == items.rows and len(items.rows) == 4


def test_a_table_in_quarantine_that_is_left_out_is_stale_no_more(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    accounts, items = feeder.table(ACCOUNTS), feeder.table(ITEMS)
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(1)), lambda t: t.insert(items, {"id": 1}))
    exclude_from_here(feeder, accounts, items, {"id": 2})
    reports: list[BatchReport] = []

    def take(*exclude: str) -> versions.MirrorVersion:
        feeder.kafka_commit()
        mirror = waiting_mirror(
            str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})), reports.append, exclude=exclude
        )
        options = feeder.options(includeMarkers="true", **({"exclude": ",".join(exclude)} if exclude else {}))
        mirror.apply(spark.read.format("walgate").options(**options).load(), 0)
        mirror.finish(spark, merge=True)
        return versions.read(spark, str(tmp_path))

    assert take().stale == {accounts.name: "a row is too large"} and reports[-1].stale == 1
    in_one_transaction(feeder, lambda t: t.insert(items, {"id": 3}))
    assert not take(accounts.name).stale and reports[-1].stale == 0


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "ended with a table left out"])
def test_a_complete_table_gets_its_first_row_while_another_table_is_read(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, is_cancelled: bool
) -> None:
    accounts, items, visits = feeder.table(ACCOUNTS), feeder.table(ITEMS), feeder.table(VISITS)
    out = [] if is_cancelled else [accounts.name]
    mirror = RunningMirror(str(tmp_path), feeder.registry_url, exclude=out)

    def take() -> versions.MirrorVersion:
        feeder.kafka_commit()
        options = feeder.options(includeMarkers="true", **({"exclude": accounts.name} if out else {}))
        mirror.take(spark.read.format("walgate").options(**options).load())
        return versions.read(spark, str(tmp_path))

    feeder.chunk(visits, [{"page": "/", "seconds": 1.0}], "REPLACE", "zero")
    if is_cancelled:  # else the mirror was made later
        feeder.bound("SNAPSHOT_BEGIN", None, "FILL")
        feeder.bound("SNAPSHOT_BEGIN", items, "FILL")
        feeder.bound("SNAPSHOT_END", None, "FILL", lsn=feeder.bound("SNAPSHOT_END", items, "FILL"))
    assert not take().filling
    feeder.bound("SNAPSHOT_BEGIN", None, "FILL", "two")
    feeder.bound("SNAPSHOT_BEGIN", accounts, "VERIFY", "two")
    in_one_transaction(feeder, lambda t: t.insert(items, {"id": 1}))
    assert take().filling == ([] if is_cancelled else [items.name])
    end_lsn = None if is_cancelled else feeder.bound("SNAPSHOT_END", accounts, "VERIFY", "two")
    feeder.bound("SNAPSHOT_END", None, "FILL", "two", lsn=end_lsn)
    assert take()[items.name].count() == 1


def test_a_table_that_is_renamed_before_its_first_snapshot_ends_goes_on_by_its_new_name(
    reader: Reader, feeder: Feeder
) -> None:
    """No version has its first name, until another relation has that. A mirror that starts reads
    all again."""
    accounts, reader.mirror.told = feeder.table(ACCOUNTS), {"strict": True}
    feeder.bound("SNAPSHOT_BEGIN", None, "FILL")
    feeder.bound("SNAPSHOT_BEGIN", accounts, "FILL")
    feeder.chunk(accounts, [account(1)], "FILL")
    reader.take()
    assert reader.picture().filling == ["public.accounts"]
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(2)))
    renamed = feeder.table(replace(ACCOUNTS, name="renamed"))
    feeder.bound("SNAPSHOT_BEGIN", renamed, "REPLACE")
    feeder.chunk(renamed, [account(1), account(2)], "REPLACE")
    for reader.merges in (False, True):
        reader.take()
        picture = reader.picture()
        assert picture.filling == ["public.renamed"] and not [*picture]
    reader.mirror.restart()
    feeder.bound("SNAPSHOT_END", None, "FILL", lsn=feeder.bound("SNAPSHOT_END", renamed, "REPLACE", rows=2))
    other = feeder.alter(accounts, replace(ACCOUNTS, oid=ACCOUNTS.oid + 1))
    in_one_transaction(feeder, lambda t: t.insert(other, account(3)))
    reader.take()
    assert reader.picture().filling == []
    assert reader.rows(renamed) == {(number,): account(number) for number in (1, 2)}
    assert reader.rows(other) == {(3,): account(3)}


def test_a_batch_that_is_repeated_may_have_a_table_that_only_a_verify_has_read(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Its rows are compared and not written, so the mirror does not have the table."""
    accounts, items = feeder.table(ACCOUNTS), feeder.table(ITEMS)
    in_one_transaction(feeder, lambda t: t.insert(items, {"id": 1}))
    feeder.bound("SNAPSHOT_BEGIN", accounts, "VERIFY")
    feeder.chunk(accounts, [account(1)], "VERIFY")
    in_one_transaction(feeder, lambda t: t.insert(items, {"id": 2}))
    feeder.bound("SNAPSHOT_END", accounts, "VERIFY", rows=1)

    def take(merges: bool) -> dict[str, int]:
        feeder.kafka_commit()
        reports: list[BatchReport] = []
        schemas = SchemaCache(Registry({"url": feeder.registry_url}))
        mirror = waiting_mirror(str(tmp_path), schemas, reports.append)
        mirror.apply(spark.read.format("walgate").options(**feeder.options(includeMarkers="true")).load(), 0)
        mirror.finish(spark, merge=merges)
        return reports[0].tables

    assert take(merges=True) == {items.name: 2, accounts.name: 1}
    in_one_transaction(feeder, lambda t: t.insert(items, {"id": 3}), lambda t: t.insert(accounts, account(2)))
    assert take(merges=False) == {items.name: 1, accounts.name: 1}


@pytest.mark.long
def test_an_excluded_table_stands_still_until_it_was_replaced(reader: Reader, feeder: Feeder) -> None:
    accounts, items = feeder.table(ACCOUNTS), feeder.table(ITEMS)
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(1)), lambda t: t.insert(items, {"id": 1}))
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(2)))
    before = dict(accounts.rows)
    exclude_from_here(feeder, accounts, items, {"id": 2})
    reports = reader.take()
    assert reader.rows(accounts) == before and reader.rows(items) == items.rows
    assert reader.picture().stale == {"public.accounts": "a row is too large"}
    assert any("is not updated" in note for report in reports for note in report.notes)
    feeder.bound("SNAPSHOT_BEGIN", accounts, "REPLACE")
    feeder.chunk(accounts, [account(3)], "REPLACE")
    reader.take()
    assert reader.rows(accounts) == before
    feeder.bound("SNAPSHOT_END", accounts, "REPLACE", rows=1)
    reader.take()
    assert reader.rows(accounts) == {(3,): account(3)} and not reader.picture().stale


def test_a_relation_that_takes_the_name_of_an_excluded_one_is_mirrored(reader: Reader, feeder: Feeder) -> None:
    """Until the excluded one gets its name back."""
    accounts, items = feeder.table(ACCOUNTS), feeder.table(ITEMS)
    in_one_transaction(feeder, lambda t: t.insert(accounts, account(1)))
    exclude_from_here(feeder, accounts, items, {"id": 1})
    reader.take()
    assert reader.picture().stale and reader.rows(accounts) == {(1,): account(1)}
    renamed = replace(accounts, description=replace(ACCOUNTS, name="renamed"))
    successor = feeder.alter(accounts, replace(ACCOUNTS, oid=ACCOUNTS.oid + 1))
    for number in (2, 3):
        in_one_transaction(feeder, methodcaller("insert", successor, account(number)))
        exclude_from_here(feeder, renamed, items, {"id": number})
    for reader.merges in (False, True):
        reports = reader.take()
        assert reader.rows(successor) == {(number,): account(number) for number in (2, 3)}
        assert reader.picture().stale.keys() == {"public.renamed"}
    assert not any("public.accounts is not updated" in note for report in reports for note in report.notes)
    in_one_transaction(feeder, methodcaller("insert", successor, account(4)))
    exclude_from_here(feeder, accounts, items, {"id": 4})
    for reader.merges in (False, True):
        reader.take()
        assert reader.rows(successor) == {(number,): account(number) for number in (2, 3, 4)}
        assert reader.picture().stale.keys() - {"public.renamed"} == {"public.accounts"}
    assert reader.picture().stale.keys() == {"public.accounts"}


def test_signs_are_rows_of_the_raw_form_where_they_are_asked_for(spark: SparkSession, feeder: Feeder) -> None:
    accounts = feeder.table(ACCOUNTS)
    feeder.bound("SNAPSHOT_BEGIN", accounts, "FILL")
    lsn = feeder.chunk(accounts, [account(1)], "FILL")
    feeder.bound("SNAPSHOT_END", accounts, "FILL", rows=1)
    feeder.kafka_commit()
    raw = spark.read.format("walgate").options(**feeder.options(includeMarkers="true")).load()
    assert [row.op for row in raw.orderBy("commit_lsn", "ordinal").collect()] == [
        "SNAPSHOT_BEGIN", "READ", "SNAPSHOT_CHUNK", "SNAPSHOT_END",
    ]  # fmt: skip
    typed = spark.read.format("walgate").options(**feeder.options(table="public.accounts")).load().collect()
    assert [(row.op, row.commit_lsn, row.after.owner) for row in typed] == [("READ", lsn, "a")]
    assert spark.read.format("walgate-transactions").options(**feeder.options()).load().count() == 1
    other = spark.newSession()  # in which nothing was registered
    assert other.read.format("walgate").options(**feeder.options(table="public.accounts")).load().count() == 1
    behind = feeder.options(includeMarkers="true", startingPosition=f"lsn:{lsn}")
    assert [row.op for row in spark.read.format("walgate").options(**behind).load().collect()] == ["SNAPSHOT_END"]


def test_a_table_that_was_restored_alone_is_refused_at_the_end_of_its_snapshot(reader: Reader, feeder: Feeder) -> None:
    items = feeder.table(ITEMS)
    for number in range(2):
        in_one_transaction(feeder, methodcaller("insert", items, {"id": number}))
        reader.take()
    location = table_path(str(reader.path), TableName("public", "items"))
    reader.spark.sql(f"RESTORE TABLE delta.`{location}` TO VERSION AS OF 0")
    feeder.bound("SNAPSHOT_BEGIN", items, "VERIFY")
    feeder.chunk(items, list(items.rows.values()), "VERIFY")
    feeder.bound("SNAPSHOT_END", items, "VERIFY", rows=2)
    with pytest.raises(MirrorError, match="was restored, although the mirror has version 1 of it"):
        reader.take()
