"""Changes of a relation's replica identity, and mirrors that cannot be right: each is mirrored
exactly, or refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from schemas.change_schema import change_schema
from schemas.relation import ReplicaIdentity, TypeFacts
from spark_consumer.errors import MirrorError
from spark_consumer.mirror import versions
from spark_consumer.mirror.fold.replica_identity import (
    change_of_key,
    change_of_relation,
    check_log_names,
    first_positions,
    schema_ids_after,
)
from spark_consumer.mirror.local.dump import newest
from spark_consumer.mirror.paths import kept_path, table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.slice_contents import TablePart
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, TableSchema
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Row, Table, relation
from tests.spark_consumer.mirror.test_mirror import run_mirror
from tests.spark_consumer.mirrors import Story, merged_rows, merging_mirror, play

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ITEMS = TableName("public", "items")
COLUMNS: dict[str, TypeFacts | tuple[TypeFacts, int]] = {"id": INT8, "name": TEXT}
LOG = relation("items", COLUMNS, (), ReplicaIdentity.FULL)
KEYED = relation("items", COLUMNS, ("id",))
COPIED = "id bigint, name string, _special map<string, string>"
BY_CODE = relation("items", {"id": INT8, "code": INT8}, ("code",))


def records(*places: tuple[int, int, int], truncates: Collection[tuple[int, int]] = ()) -> pa.Table:
    """Of (schema_id, commit_lsn, ordinal). `truncates`: (commit_lsn, ordinal) of those that are not
    INSERTs."""
    made = pa.table(dict(zip(("schema_id", "commit_lsn", "ordinal"), zip(*places, strict=True), strict=True)))
    words = ["TRUNCATE" if place[1:] in truncates else "INSERT" for place in places]
    return made.append_column("op", [words]).append_column("value", [[b""] * len(places)])


def keys(schema_id: int) -> tuple[str, ...]:
    """Schemas 1 and 2 have one key, the others are logs."""
    return ("id",) if schema_id < 3 else ()


def one_oid(_: int) -> int:
    return 1


@pytest.mark.parametrize(
    ("places", "cut"),
    [
        ([(1, 10, 0), (2, 10, 1), (1, 20, 0)], None),
        ([(1, 10, 0), (2, 20, 0), (3, 30, 0), (1, 40, 0)], 30),
        ([(3, 10, 0), (4, 20, 0), (2, 30, 0), (2, 30, 1)], 30),
        ([(1, 10, 0), (1, 20, 0), (3, 20, 1)], 20),
    ],
)
def test_a_batch_is_cut_at_the_first_transaction_with_another_key(
    places: list[tuple[int, int, int]], cut: int | None
) -> None:
    own = records(*places)
    assert change_of_key(ITEMS, own, first_positions(own), keys, one_oid) == cut


def test_two_keys_in_one_transaction_are_refused() -> None:
    own = records((1, 20, 0), (3, 20, 1))
    with pytest.raises(MirrorError, match=r"public\.items .* within one transaction, at 0/14"):
        change_of_key(ITEMS, own, first_positions(own), keys, one_oid)
    assert change_of_key(ITEMS, own, first_positions(own), keys, lambda schema_id: schema_id) is None, "recreated"


def commit(feeder: Feeder, table: Table, *changes: tuple[Row | None, Row | None]) -> int:
    """A transaction of (old, new) rows."""
    made = feeder.begin()
    for old, new in changes:
        if old is None:
            assert new is not None
            made.insert(table, new)
        elif new is None:
            made.delete(table, old)
        else:
            made.update(table, old, new)
    commit_lsn = made.commit()
    feeder.kafka_commit()
    return commit_lsn


def item(number: int, name: str) -> Row:
    return {"id": number, "name": name}


def both(number: int, code: int | None) -> Row:
    return {"id": number, "code": code}


def mirrored(path: Path, table: str = "public.items") -> list[dict[str, Any]]:
    rows = merged_rows(path, table)[table]
    kept = [{name: value for name, value in row.items() if name != "_special"} for row in rows]
    return sorted(kept, key=lambda row: (row["id"], str(row)))


def dumped(path: Path, *table: str) -> list[tuple[str | None, ...]]:
    (found,) = newest(path, table)
    return sorted(found.rows())


def a_log_that_gets_a_key_becomes_the_rows_it_adds_up_to(feeder: Feeder, path: Path) -> Story:
    """In one batch, which is cut."""
    log = feeder.table(relation("log", COLUMNS, (), ReplicaIdentity.FULL))
    commit(feeder, log, (None, item(1, "a")), (None, item(2, "b")), (None, item(2, "b")), (None, item(5, "e")))
    commit(feeder, log, (item(1, "a"), item(1, "a2")), (item(2, "b"), None), (item(5, "e"), None))
    keyed = feeder.alter(log, relation("log", COLUMNS, ("id",)))
    keyed.rows = {(1,): item(1, "a2"), (2,): item(2, "b")}
    commit(feeder, keyed, (None, item(3, "c")), (item(2, "b"), item(2, "b2")))
    yield
    assert mirrored(path, keyed.name) == [item(1, "a2"), item(2, "b2"), item(3, "c")]


def test_a_log_that_does_not_add_up_gets_no_key(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    log = feeder.table(relation("items", COLUMNS, (), ReplicaIdentity.NOTHING))
    commit(feeder, log, (None, item(1, "a")), (None, item(2, "b")), (item(2, "b"), None))
    run_mirror(spark, feeder, tmp_path)
    with pytest.raises(MirrorError, match=r"rows of public\.items cannot be computed from its append-only table"):
        dumped(tmp_path)
    commit(feeder, feeder.alter(log, KEYED), (None, item(3, "c")))
    with pytest.raises(MirrorError, match=r"public\.items .* cannot be computed from its append-only table"):
        run_mirror(spark, feeder, tmp_path)


@pytest.mark.long
def test_rows_whose_key_goes_become_the_beginning_of_a_log(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    keyed = feeder.table(KEYED)
    commit(feeder, keyed, (None, item(1, "a")), (None, item(2, "b")), (None, item(3, "c")))
    run_mirror(spark, feeder, tmp_path)
    log = feeder.alter(keyed, LOG)
    commit(feeder, log, (item(1, "a"), item(1, "a2")), (item(2, "b"), None))
    run_mirror(spark, feeder, tmp_path)
    assert dumped(tmp_path) == [("1", "a2"), ("3", "c")]
    words = [row["_op"] for row in versions.read(spark, str(tmp_path))["public.items"].orderBy("_commit_lsn").collect()]
    assert sorted(words) == ["DELETE", "READ", "READ", "READ", "UPDATE", "UPDATE_BEFORE"] and words[:3] == ["READ"] * 3
    back = feeder.alter(log, KEYED)
    back.rows = {(1,): item(1, "a2"), (3,): item(3, "c")}
    commit(feeder, back, (item(3, "c"), None))
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path) == [item(1, "a2")]


def test_spark_finds_the_first_records_of_each_schema_too(spark: SparkSession) -> None:
    found = records((1, 10, 3), (2, 20, 0), (2, 20, 2), (1, 30, 0))
    assert first_positions(spark.createDataFrame(found)) == first_positions(found) == {1: (10, 3), 2: (20, 0)}


def changes_under_an_old_key_and_a_new_one_may_be_in_one_batch(feeder: Feeder, path: Path) -> Story:
    columns: dict[str, TypeFacts | tuple[TypeFacts, int]] = {"id": INT8, "code": INT8}
    by_id = feeder.table(relation("codes", columns, ("id",)))
    commit(feeder, by_id, *((None, both(number, number * 10)) for number in (1, 2, 3)))
    yield
    commit(feeder, by_id, (both(1, 10), None), (both(2, 20), both(2, 21)))
    by_code = feeder.alter(by_id, relation("codes", columns, ("code",)))
    by_code.rows = {(21,): both(2, 21), (30,): both(3, 30)}
    commit(feeder, by_code, (None, both(4, 40)), (both(3, 30), both(5, 30)))
    reports = yield
    assert sum(report.tables.get(by_id.name, 0) for report in reports if not report.is_merge) == 4
    assert mirrored(path, by_id.name) == [both(2, 21), both(4, 40), both(5, 30)]


def test_a_key_that_old_rows_do_not_have_is_refused_until_they_are_copied(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """A column with a default becomes the key: the stream does not say its values."""
    old = feeder.table(relation("items", {"id": INT8}, ("id",)))
    commit(feeder, old, (None, {"id": 1}), (None, {"id": 2}))
    run_mirror(spark, feeder, tmp_path)
    new = feeder.alter(old, BY_CODE)
    new.rows = {(10,): both(1, 10), (20,): both(2, 20)}
    commit(feeder, new, (both(2, 20), both(3, 20)))
    for _ in range(2):
        with pytest.raises(
            MirrorError, match=r"public\.items now has the key 'code', but .* has rows with a null or duplicate key"
        ):
            run_mirror(spark, feeder, tmp_path)
    copy = spark.createDataFrame([(1, 10), (3, 20)], "id long, code long").selectExpr(
        "*", "cast(null as map<string, string>) as _special"
    )
    copy.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
        f"{tmp_path}/tables/public/items"
    )
    commit(feeder, new, (both(1, 10), None))
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path) == [both(3, 20)]


def test_a_mirror_takes_fewer_tables_and_refuses_more(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    items, others = feeder.table(KEYED), feeder.table(relation("others", COLUMNS, ("id",)))
    third, third_name = feeder.table(relation("third", {"id": INT8}, ("id",))), TableName("public", "third")
    commit(feeder, others, (None, item(1, "a")))
    commit(feeder, items, (None, item(1, "a")))
    commit(feeder, third, (None, {"id": 1}))
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))

    def run(tables: str, *told: TableName) -> versions.MirrorVersion:
        frame = spark.read.format("walgate").options(**feeder.options(**({"tables": tables} if tables else {}))).load()
        merging_mirror(str(tmp_path), schemas, tables=told).apply(frame, 0)
        return versions.read(spark, str(tmp_path))

    assert set(run("public.items,public.third", ITEMS, third_name)) == {"public.items", "public.third"}
    commit(feeder, items, (None, item(2, "b")))
    assert {name: frame.count() for name, frame in run("public.items", ITEMS).items()} == {"public.items": 2}
    with pytest.raises(MirrorError, match="every other table is new to the mirror"):
        run("")
    with pytest.raises(MirrorError, match=r"public\.third is new to the mirror"):
        run("", ITEMS, third_name)
    with pytest.raises(MirrorError, match=r"public\.others is new to the mirror .* which has already reached \w+/\w+"):
        run("public.items,public.others", ITEMS)  # the mirror is told less than the reader


def test_columns_that_differ_by_case_are_refused_by_name(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    items = feeder.table(relation("items", {"id": INT8, "Name": TEXT, "name": TEXT}, ("id",)))
    commit(feeder, items, (None, {"id": 1, "Name": "A", "name": "b"}))
    with pytest.raises(MirrorError, match=r"public\.items has the columns 'Name', 'name'"):
        run_mirror(spark, feeder, tmp_path)


@pytest.mark.parametrize(("key", "names"), [(("id",), LOG_COLUMNS), ((), LOG_COLUMNS[:1])])
def test_columns_named_like_those_of_a_log_are_refused(key: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Such a table would be read as a log, and a log would have a column twice."""
    described = relation("items", COLUMNS | dict.fromkeys(names, TEXT), key, ReplicaIdentity.FULL)
    with pytest.raises(MirrorError, match=r"public\.items has the columns '_op'"):
        check_log_names(ITEMS, TableSchema.of(change_schema(described, "cdc")))


def test_columns_named_like_those_of_a_merge_are_refused() -> None:
    described = relation("items", COLUMNS | {"_Row_dropped_": TEXT}, ("id",))
    with pytest.raises(MirrorError, match=r"public\.items has the columns '_Row_dropped_'"):
        check_log_names(ITEMS, TableSchema.of(change_schema(described, "cdc")))


def test_rows_of_a_relation_that_is_gone_go_or_stay_as_somebody_said(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """PostgreSQL does not send DROP TABLE."""

    def run(on_recreated: str) -> tuple[str, ...]:
        reports: list[BatchReport] = []
        schemas = SchemaCache(Registry({"url": feeder.registry_url}))
        mirror = merging_mirror(str(tmp_path), schemas, reports.append, on_recreated=on_recreated)
        mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
        return reports[-1].notes

    first = feeder.table(KEYED)
    commit(feeder, first, (None, item(1, "a")), (None, item(2, "b")))
    run_mirror(spark, feeder, tmp_path)
    second, third, fourth, fifth = (feeder.alter(first, replace(KEYED, oid=KEYED.oid + n)) for n in (1, 2, 3, 4))
    made = feeder.begin()  # TRUNCATE, DROP, CREATE and INSERT in one transaction
    made.update(first, item(1, "a"), item(1, "a2"))
    made.truncate(first)
    made.insert(second, item(3, "c"))
    made.commit()
    feeder.kafka_commit()
    commit(feeder, second, (item(3, "c"), None))
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path) == []
    commit(feeder, third, (None, item(4, "d")))  # nothing was left
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path) == [item(4, "d")]
    commit(feeder, fourth, (None, item(5, "e")))
    with pytest.raises(MirrorError, match=r"public\.items was dropped and recreated"):
        run("stop")
    location = table_path(str(tmp_path), ITEMS)
    spark.read.format("delta").load(location).where("id > 5").write.format("delta").mode("overwrite").save(location)
    run("stop")
    assert mirrored(tmp_path) == [item(5, "e")]
    commit(feeder, fifth, (None, item(6, "f")))
    assert "dropped and recreated" in run("keep-as")[0]
    assert mirrored(tmp_path) == [item(6, "f")]
    kept = spark.read.format("delta").load(kept_path(str(tmp_path), ITEMS, fourth.description.oid))
    assert [row["id"] for row in kept.collect()] == [5]
    log = feeder.alter(first, replace(LOG, oid=KEYED.oid + 5))
    commit(feeder, log, (None, item(7, "g")))
    assert run("empty") and dumped(tmp_path) == [("7", "g")]


def a_table_that_was_made_anew_may_have_a_column_of_another_type(
    feeder: Feeder, path: Path, key: tuple[str, ...], at_once: bool
) -> Story:
    """What its rows had there cannot be cast, and goes with them."""
    before = relation("anew", COLUMNS, key, ReplicaIdentity.DEFAULT if key else ReplicaIdentity.FULL)
    first = feeder.table(before)
    commit(feeder, first, (None, item(1, "a")))
    yield
    columns = before.columns[0], replace(before.columns[1], facts=INT8)
    second = feeder.alter(first, replace(before, oid=before.oid + 1, columns=columns))
    commit(feeder, first, (None, item(2, "b")))
    if not at_once:
        yield
    commit(feeder, second, (None, {"id": 3, "name": 7}))
    yield
    assert dumped(path, first.name) == [("3", "7")]
    commit(feeder, second, (None, {"id": 4, "name": 8}))
    yield
    assert dumped(path, first.name) == [("3", "7"), ("4", "8")]


def the_type_of_a_column_may_change_behind_a_truncate(feeder: Feeder, path: Path) -> Story:
    described = relation("emptied", COLUMNS, ("id",))
    first = feeder.table(described)
    commit(feeder, first, (None, item(1, "a")))
    yield
    made = feeder.begin()
    made.truncate(first)
    made.commit()
    columns = described.columns[0], replace(described.columns[1], facts=INT8)
    second = feeder.alter(first, replace(described, columns=columns))
    commit(feeder, second, (None, {"id": 3, "name": 7}))
    yield
    assert dumped(path, first.name) == [("3", "7")]


@pytest.mark.parametrize(
    ("at_once", "key"),
    [
        (True, ("id",)),
        pytest.param(False, (), marks=pytest.mark.long),
        pytest.param(True, (), marks=pytest.mark.long),
        pytest.param(False, ("id",), marks=pytest.mark.long),
    ],
)
def test_changes_of_keys_relations_and_types_are_mirrored_exactly(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, key: tuple[str, ...], at_once: bool
) -> None:
    play(
        lambda: run_mirror(spark, feeder, tmp_path),
        a_log_that_gets_a_key_becomes_the_rows_it_adds_up_to(feeder, tmp_path),
        changes_under_an_old_key_and_a_new_one_may_be_in_one_batch(feeder, tmp_path),
        a_table_that_was_made_anew_may_have_a_column_of_another_type(feeder, tmp_path, key, at_once),
        the_type_of_a_column_may_change_behind_a_truncate(feeder, tmp_path),
    )


@pytest.mark.parametrize("form", ["Arrow", "Spark"])
def test_what_lies_behind_a_truncate_is_known(spark: SparkSession, form: str) -> None:
    found: Any = records((1, 10, 0), (1, 20, 3), (2, 20, 4), (2, 20, 5), (3, 30, 0))
    if form == "Spark":
        found = spark.createDataFrame(found)
    assert sorted(schema_ids_after(found, (20, 4))) == [2, 3]
    assert schema_ids_after(found, (30, 0)) == []


@pytest.mark.parametrize("merges", ["apart", pytest.param("at once", marks=pytest.mark.long), "of one transaction"])
def test_a_relation_that_gets_its_former_name_back_is_refused(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, merges: str
) -> None:
    """Its rows from before went when another relation had the name: they are not to be missed
    silently."""
    first = feeder.table(KEYED)
    commit(feeder, first, *((None, {"id": number, "name": "old"}) for number in range(3)))
    run_mirror(spark, feeder, tmp_path)
    other = feeder.alter(first, replace(KEYED, oid=KEYED.oid + 1))
    if merges == "of one transaction":
        made = feeder.begin()
        made.insert(other, {"id": 50, "name": "other"})
        made.insert(first, {"id": 10, "name": "back"})
        made.commit()
        feeder.kafka_commit()
    else:
        commit(feeder, other, (None, {"id": 50, "name": "other"}))
        if merges == "apart":
            run_mirror(spark, feeder, tmp_path)
        commit(feeder, first, (None, {"id": 10, "name": "back"}))
    with pytest.raises(Exception, match="another table was renamed to this name") as caught:
        run_mirror(spark, feeder, tmp_path)
    assert "--exclude" in str(caught.value) and "--on-recreated=empty" not in str(caught.value)


def copy_helps(spark: SparkSession, feeder: Feeder, path: Path, columns: str = COPIED, **options: bool) -> None:
    """The mirror goes on after its table was overwritten with the rows that the source has now."""
    copied = spark.createDataFrame([(1, "a", None), (2, "b", None), (3, "c", None)], columns)
    copied.write.format("delta").mode("overwrite").options(**options).save(table_path(str(path), ITEMS))
    run_mirror(spark, feeder, path)
    assert mirrored(path) == [item(1, "a"), item(2, "b"), item(3, "c")]


def test_a_shadow_table_that_takes_the_name_is_merged_once_it_was_copied(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """The advice of the error helps although changes of both relations wait for one merge."""
    shadow_of = replace(KEYED, name="items_new", oid=KEYED.oid + 1)
    first, shadow = feeder.table(KEYED), feeder.table(shadow_of)
    commit(feeder, first, (None, item(1, "a")))
    commit(feeder, shadow, (None, item(1, "a")))
    run_mirror(spark, feeder, tmp_path)
    commit(feeder, first, (None, item(2, "b")))
    commit(feeder, shadow, (None, item(2, "b")))
    renamed = feeder.alter(first, replace(KEYED, oid=shadow_of.oid))
    commit(feeder, renamed, (None, item(3, "c")))
    for _ in range(2):
        with pytest.raises(MirrorError, match="another table was renamed to this name"):
            run_mirror(spark, feeder, tmp_path)
        assert len(newest(tmp_path, ["public.items"])) == 1
    copy_helps(spark, feeder, tmp_path)
    commit(feeder, renamed, (item(3, "c"), item(3, "d")))
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path)[2] == item(3, "d")


def test_a_shadow_table_that_is_new_when_it_takes_the_name_is_not_taken_for_an_empty_one(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Its rows are in another table of the same merge. Types of the copy may be those of JDBC."""
    shadow_of = replace(KEYED, name="items_new", oid=KEYED.oid + 1)
    first, shadow = feeder.table(KEYED), feeder.table(shadow_of)
    commit(feeder, first, (None, item(1, "a")))
    run_mirror(spark, feeder, tmp_path)
    commit(feeder, shadow, (None, item(1, "a")), (None, item(2, "b")))
    renamed = feeder.alter(first, replace(KEYED, oid=shadow_of.oid))
    commit(feeder, renamed, (None, item(3, "c")))
    with pytest.raises(MirrorError, match="another table was renamed to this name"):
        run_mirror(spark, feeder, tmp_path)
    copy_helps(spark, feeder, tmp_path, COPIED.replace("bigint", "int"), overwriteSchema=True)


def test_a_key_whose_values_become_one_or_null_by_a_cast_is_refused(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Only PostgreSQL knows what USING made of them."""
    by_text = relation("items", {"id": TEXT, "name": TEXT}, ("id",))
    table = feeder.table(by_text)
    commit(feeder, table, (None, {"id": "A1", "name": "a"}), (None, {"id": "A2", "name": "b"}))
    run_mirror(spark, feeder, tmp_path)
    by_number = feeder.alter(table, replace(KEYED, oid=by_text.oid))
    commit(feeder, by_number, (None, item(3, "c")))
    for _ in range(2):
        with pytest.raises(MirrorError, match="rows with a null or duplicate key"):
            run_mirror(spark, feeder, tmp_path)
    copy_helps(spark, feeder, tmp_path, overwriteSchema=True)


@pytest.mark.parametrize(
    ("oids", "known", "others", "cut"),
    [
        ([(100, 10), (200, 20)], 100, set(), None),
        ([(100, 10), (200, 20)], 100, {200}, 20),
        ([(200, 20)], 100, {200}, None),
        ([(100, 20), (200, 20)], 100, {200}, None),
        ([(200, 20), (100, 30)], 100, set(), 30),
        ([(100, 10), (200, 20), (300, 30)], 100, {300}, 20),
    ],
    ids=["recreated", "swapped", "swapped before", "in one transaction", "and back", "twice"],
)
def test_a_batch_is_cut_where_a_relation_comes_that_had_another_name(
    oids: list[tuple[int, int]], known: int | None, others: set[int], cut: int | None
) -> None:
    shapes = {oid: TableSchema.of(change_schema(replace(KEYED, oid=oid), "cdc")) for oid, _ in oids}
    first = {oid: (lsn, 0) for oid, lsn in oids}
    part = TablePart(ITEMS, 1, 1, sorted(first), oids[-1][0], None, oids[0][1], oids[-1][1])
    assert change_of_relation(part, first, shapes, known, others.__contains__, keeps_former=False) == cut


@pytest.mark.parametrize(
    ("oids", "cut"),
    [([(100, 10), (200, 20)], 20), ([(200, 20)], None), ([(100, 20), (200, 20)], None), ([(100, 10)], None)],
    ids=["recreated", "recreated before", "in one transaction", "not recreated"],
)
def test_a_batch_is_cut_before_former_rows_that_are_kept(oids: list[tuple[int, int]], cut: int | None) -> None:
    shapes = {oid: TableSchema.of(change_schema(replace(KEYED, oid=oid), "cdc")) for oid, _ in oids}
    part = TablePart(ITEMS, 1, 1, [oid for oid, _ in oids], oids[-1][0], None, oids[0][1], oids[-1][1])
    first = {oid: (lsn, 0) for oid, lsn in oids}
    assert change_of_relation(part, first, shapes, 100, lambda _: False, keeps_former=True) == cut


def test_a_table_that_was_there_by_another_name_is_reported(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    commit(feeder, feeder.table(KEYED), (None, {"id": 1, "name": "old"}))
    run_mirror(spark, feeder, tmp_path)
    commit(feeder, feeder.table(replace(KEYED, name="renamed")), (None, {"id": 2, "name": "new"}))
    reports: list[BatchReport] = []
    mirror = merging_mirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})), reports.append)
    mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    said = "public.renamed: it was public.items before, and the rows from before are only there"
    assert any(said in note for report in reports for note in report.notes), reports
