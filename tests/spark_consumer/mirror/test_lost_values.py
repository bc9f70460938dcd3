"""Values that an UPDATE of a key did not send, of a row that the mirror does not have: they are null,
and the mirror says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror import slice_contents
from spark_consumer.mirror.fold.start_fold import arrow_fold
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import TEXT, Feeder, Table
from tests.spark_consumer.mirror.test_fold_arrow import SHAPE
from tests.spark_consumer.mirror.test_mirror import ACCOUNTS, mirrored
from tests.spark_consumer.mirror.test_replica_identity import commit
from tests.spark_consumer.mirror.test_uncastable_rows import described
from tests.spark_consumer.mirrors import merged_rows, merging_mirror, running_mirror


def test_a_value_is_lost_if_no_event_sent_it_and_the_old_row_is_missing() -> None:
    def put(x: float, origin: float | None, note: str | None, place: int) -> dict[str, Any]:
        return {
            "key": {"x": x, "n": 1}, "origin": origin and {"x": origin, "n": 1}, "deleted": False,
            "row": {"x": x, "n": 1, "note": note}, "unchanged": [] if note else ["note"], "special": [],
            "commit_lsn": 1, "ordinal": place,
        }  # fmt: skip

    lost: list[set[str]] = []
    sent = [put(1.5, None, "a", 0), put(2.5, 1.5, None, 1)]
    for events in (sent, sent[1:], [sent[1], put(2.5, None, "later", 2)]):
        arrow_fold(cast("Any", None), lambda: None, pa.Table.from_pylist(events, SHAPE.events), SHAPE, lost.append)
    assert lost == [{"note"}]


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize("small_changes", [slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def test_a_new_key_of_a_row_that_is_missing_is_reported(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_changes: int
) -> None:
    """A snapshot that is in progress brings the value: then nothing is said."""
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", small_changes)
    mirror = running_mirror(tmp_path, feeder.registry_url)

    def run(*, strict: bool = False) -> list[str]:
        feeder.kafka_commit()
        if mirror.told != {"strict": strict}:
            mirror.told = {"strict": strict}
            mirror.restart()
        batch = spark.read.format("walgate").options(**feeder.options(includeMarkers="true")).load()
        return [note for report in mirror.take(batch) for note in report.notes if "another key" in note]

    accounts = feeder.table(ACCOUNTS)
    insert = feeder.begin()
    insert.insert(accounts, account(1))
    insert.commit()
    run()
    move(feeder, accounts, 1, 10)
    move(feeder, accounts, 2, 20)
    with pytest.raises(MirrorError, match=r"public\.accounts: a row got another key"):
        run(strict=True)
    (note,) = run()
    assert note.startswith("public.accounts: a row got another key") and "null: note. A snapshot" in note
    assert mirrored(tmp_path, accounts) == {(10,): account(10), (20,): {**account(20), "note": None}}
    feeder.bound("SNAPSHOT_BEGIN", accounts, "REPLACE")
    move(feeder, accounts, 3, 30)
    assert not run(strict=True)
    feeder.chunk(accounts, list(accounts.rows.values()), "REPLACE")
    feeder.bound("SNAPSHOT_END", accounts, "REPLACE", rows=3)
    assert not run(strict=True)
    assert mirrored(tmp_path, accounts) == {(number,): account(number) for number in (10, 20, 30)}
    lost, end_lsn = feeder.next_lsn(), feeder.next_lsn()
    feeder.marker({"kind": "GAP", "xid": 0, "marker_lsn": lost, "end_lsn": end_lsn, "detail": "the slot was lost"})
    move(feeder, accounts, 4, 40)
    assert not run(strict=True)  # the table waits for its snapshot


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_values_of_a_column_whose_number_is_unknown_are_reported_if_it_is_renamed(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Two transactions rename the column. The catalog did not have the first name yet when its
    rows were sent, and a merge has only the version before and the one after in the table."""
    reports: list[BatchReport] = []

    def run(*, strict: bool = False) -> None:
        schemas = SchemaCache(Registry({"url": feeder.registry_url}))
        mirror = merging_mirror(str(tmp_path), schemas, reports.append, strict=strict)
        mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)

    first, second, third = (described({name: TEXT}) for name in ("a", "b", "c"))
    second = replace(second, columns=(second.columns[0], replace(second.columns[1], attnum=None)))
    table = feeder.table(first)
    commit(feeder, table, (None, {"id": 1, "a": "x"}))
    run(strict=True)
    commit(feeder, feeder.alter(table, second), (None, {"id": 2, "b": "y"}))
    commit(feeder, feeder.alter(table, third), (None, {"id": 3, "c": "z"}))
    lost = "columns were added or dropped, and their attribute numbers are unknown: c, b."
    with pytest.raises(MirrorError, match=lost):
        run(strict=True)
    run()
    assert [note for report in reports for note in report.notes if lost in note]
    assert {row["id"]: row["c"] for row in merged_rows(tmp_path)["public.t"]} == {1: "x", 2: None, 3: "z"}


def account(number: int) -> dict[str, Any]:
    return {"id": number, "owner": "someone", "note": "long " * 10}


def move(feeder: Feeder, accounts: Table, old: int, new: int) -> None:
    """The source has the row with the old key; the mirror need not have it."""
    accounts.rows[old,] = account(old)
    change = feeder.begin()
    change.update(accounts, account(old), account(new), unchanged=("note",))
    change.commit()
