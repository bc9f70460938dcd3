"""Snapshots of tables that were altered: the mirror gives a table its new columns, or its new key,
with the table's next change only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.sql import SparkSession

from schemas.relation import MissingValue, RelationDescription
from spark_consumer.jvm import remove_folder
from spark_consumer.mirror import snapshot_keys, writer_epoch
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT4, INT8, TEXT, Feeder, Row, Table, relation
from tests.spark_consumer.mirror.test_killed_merges import Numbered, numbered
from tests.spark_consumer.mirror.test_snapshots import CALLS, Reader, counts, in_one_transaction, verdict_of, visit
from tests.spark_consumer.mirrors import Story, merged_rows, play

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

Columns = dict[str, tuple[Numbered, int]]
FIRST: Columns = {"id": (INT4, 1), "code": (INT4, 2), "name": (TEXT, 3)}


@pytest.fixture
def reader(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> Reader:
    return Reader(spark, feeder, tmp_path)


def described(name: str, columns: Columns, *key: str, **missing: MissingValue) -> RelationDescription:
    """`columns`: types and attnums; `missing`: values of the rows from before an ADD COLUMN."""
    made = numbered(name, columns, key)
    return replace(made, columns=tuple(replace(c, missing=missing.get(c.name)) for c in made.columns))


def item(number: int, name: str = "n") -> Row:
    return {"id": number, "code": 100 - number, "name": name}


def filled(feeder: Feeder, name: str) -> Table:
    table = feeder.table(described(name, FIRST, "id"))
    in_one_transaction(feeder, *(lambda t, n=n: t.insert(table, item(n)) for n in range(5)))
    return table


def read(feeder: Feeder, table: Table, rows: list[Row], purpose: str = "VERIFY") -> None:
    feeder.bound("SNAPSHOT_BEGIN", table, purpose)
    feeder.chunk(table, rows, purpose)


def notes_of(reports: list[BatchReport], table: Table, words: str) -> list[str]:
    said = (note for report in reports for note in report.notes)
    return [note for note in said if note.startswith(table.name) and words in note]


def a_table_that_was_altered_and_not_changed_since_is_equal(reader: Reader, feeder: Feeder, at_once: bool) -> Story:
    """Each of them also has a row that the source does not have, which is found: whether all is
    merged at once, or the last changes before, and the ends of the snapshots behind."""
    default = MissingValue(b"\x02\x0a")  # 5, in a union with null
    cases: dict[str, tuple[RelationDescription, Callable[[Row], Row]]] = {
        "filled": (
            described("filled", FIRST | {"n": (INT4, 4)}, "id", n=default),
            lambda row: row | {"n": 5},
        ),
        "named": (
            described("named", {"ident": (INT4, 1), "code": (INT4, 2), "label": (TEXT, 3)}, "ident"),
            lambda row: {"ident": row["id"], "code": row["code"], "label": row["name"]},
        ),
        "keyed": (described("keyed", FIRST, "code"), lambda row: row),
        "wider": (described("wider", FIRST | {"id": (INT8, 1)}, "id"), lambda row: row),
    }
    tables = {name: filled(feeder, name) for name in cases}
    calls = feeder.table(CALLS)
    pages = [visit(page) for page in "abcd"]
    in_one_transaction(feeder, *(lambda t, row=row: t.insert(calls, row) for row in pages))
    in_one_transaction(feeder, lambda t: t.delete(calls, pages[0]))
    if not at_once:
        yield
    for name, (altered, as_now) in cases.items():
        tables[name] = feeder.alter(tables[name], altered)
        read(feeder, tables[name], [as_now(item(n)) for n in range(4)])
    calls = feeder.alter(calls, relation("calls", {"page": TEXT, "seconds": CALLS.columns[1].facts}, ("page",)))
    read(feeder, calls, pages[1:3])
    if not at_once:
        yield
    for table in (*tables.values(), calls):
        feeder.bound("SNAPSHOT_END", table, "VERIFY", rows=2 if table is calls else 4)
    yield
    for table in (*tables.values(), calls):
        verdict = verdict_of(reader, table)
        assert counts(verdict) == (0, 0, 1), (table.name, verdict)


def a_key_that_changes_behind_the_end_of_a_snapshot_hides_no_surplus_row(reader: Reader, feeder: Feeder) -> Story:
    table = filled(feeder, "behind")
    yield
    read(feeder, table, [item(n) for n in range(4)])
    yield
    feeder.bound("SNAPSHOT_END", table, "VERIFY", rows=4)
    table = feeder.alter(table, described("behind", FIRST, "code"))
    in_one_transaction(feeder, lambda t: t.insert(table, item(9)))
    yield
    assert counts(verdict_of(reader, table)) == (0, 0, 1)


def a_key_from_before_a_snapshot_is_none_of_its_keys(reader: Reader, feeder: Feeder, purpose: str) -> Story:
    """Rows with the old key are in one slice with the beginning of the snapshot, which reads
    another key."""
    name = f"before {purpose}"
    table = filled(feeder, name)
    yield
    in_one_transaction(feeder, lambda t: t.insert(table, item(5)))
    table = feeder.alter(table, described(name, FIRST, "code"))
    feeder.bound("SNAPSHOT_BEGIN", table, purpose)
    yield
    feeder.chunk(table, [item(n) for n in range(4)], purpose)
    feeder.bound("SNAPSHOT_END", table, purpose, rows=4)
    reports = yield
    assert not notes_of(reports, table, "its key changed")
    assert counts(verdict_of(reader, table)) == (0, 0, 2 if purpose == "VERIFY" else 0)
    assert len(merged_rows(reader.path)[table.name]) == (6 if purpose == "VERIFY" else 4)


def a_comparison_across_two_keys_says_that_surplus_rows_are_not_known(reader: Reader, feeder: Feeder) -> Story:
    table = filled(feeder, "across")
    yield
    read(feeder, table, [item(n) for n in range(4)])
    table = feeder.alter(table, described("across", FIRST, "code"))
    in_one_transaction(feeder, lambda t: t.insert(table, item(9)))
    feeder.bound("SNAPSHOT_END", table, "VERIFY", rows=4)
    reports = yield
    assert notes_of(reports, table, "its key changed while its snapshot (VERIFY) was read")
    assert verdict_of(reader, table).surplus_unknown


def a_log_that_adds_up_to_no_rows_stops_no_comparison(reader: Reader, feeder: Feeder) -> Story:
    """Two equal rows of a table without a key, which gets a key: its next change says so."""
    log = replace(CALLS, name="log", oid=CALLS.oid + 1)
    calls = feeder.table(log)
    in_one_transaction(feeder, *(lambda t: t.insert(calls, visit("twice")) for _ in range(2)))
    yield
    keyed = relation("log", {"page": TEXT, "seconds": CALLS.columns[1].facts, "id": INT8}, ("id",))
    calls = feeder.alter(calls, replace(keyed, oid=log.oid))
    read(feeder, calls, [visit("twice") | {"id": number} for number in (1, 2)])
    feeder.bound("SNAPSHOT_END", calls, "VERIFY", rows=2)
    yield
    assert verdict_of(reader, calls).missing == 2


def a_key_that_gets_another_type_within_a_snapshot_stops_no_merge(
    reader: Reader, feeder: Feeder, before_end: bool
) -> Story:
    table = filled(feeder, "retyped")
    yield
    read(feeder, table, [item(n) for n in range(4)], "REPLACE")
    yield
    if not before_end:
        feeder.bound("SNAPSHOT_END", table, "REPLACE", rows=4)
    table = feeder.alter(table, described("retyped", FIRST | {"id": (INT8, 1)}, "id"))
    in_one_transaction(feeder, lambda t: t.insert(table, item(0) | {"id": 1 << 40}))
    if before_end:
        feeder.bound("SNAPSHOT_END", table, "REPLACE", rows=4)
    reports = yield
    rows = {key[0] for key in reader.rows(table)}
    assert rows == {0, 1, 2, 3, 1 << 40} | ({4} if before_end else set())
    assert bool(notes_of(reports, table, "rows that are no longer in the source may remain")) == before_end


@pytest.mark.parametrize(("at_once", "before_end"), [(False, True), pytest.param(True, False, marks=pytest.mark.long)])
def test_tables_that_are_altered_around_a_snapshot_are_compared_and_replaced_as_they_are(
    reader: Reader, feeder: Feeder, at_once: bool, before_end: bool
) -> None:
    play(
        reader.take,
        a_table_that_was_altered_and_not_changed_since_is_equal(reader, feeder, at_once),
        a_key_that_changes_behind_the_end_of_a_snapshot_hides_no_surplus_row(reader, feeder),
        a_key_from_before_a_snapshot_is_none_of_its_keys(reader, feeder, "REPLACE"),
        a_key_from_before_a_snapshot_is_none_of_its_keys(reader, feeder, "VERIFY"),
        a_comparison_across_two_keys_says_that_surplus_rows_are_not_known(reader, feeder),
        a_log_that_adds_up_to_no_rows_stops_no_comparison(reader, feeder),
        a_key_that_gets_another_type_within_a_snapshot_stops_no_merge(reader, feeder, before_end),
    )


def test_a_writer_that_was_followed_deletes_nothing_at_the_end_of_a_snapshot(
    reader: Reader, feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its DELETE conflicts with the one who followed, who has removed the keys that were seen."""
    table = filled(feeder, "items")
    reader.take()
    read(feeder, table, [item(n) for n in range(4)], "REPLACE")
    feeder.bound("SNAPSHOT_END", table, "REPLACE", rows=4)
    path, followed = str(reader.path), list[str]()
    check, delete_surplus = writer_epoch.check, snapshot_keys.delete_surplus

    def checked(*arguments: Any) -> None:
        if followed:
            raise writer_epoch.taken_over(path)
        check(*arguments)

    def conflicting(spark: SparkSession, location: str, seen: str, *rest: Any) -> None:
        if not followed:
            followed.append(seen)
            remove_folder(spark, seen)
            raise ConcurrentAppendException("another writer was there")
        delete_surplus(spark, location, seen, *rest)

    monkeypatch.setattr(writer_epoch, "check", checked)
    monkeypatch.setattr(snapshot_keys, "delete_surplus", conflicting)
    reader.take()
    assert followed
    monkeypatch.undo()
    rows = reader.spark.read.format("delta").load(table_path(path, TableName.parse(table.name))).collect()
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3, 4]
