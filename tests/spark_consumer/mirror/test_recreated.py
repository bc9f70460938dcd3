"""Tables that were dropped and recreated, where their former rows are not simply removed: an operator
copies the new ones, or the mirror keeps the former ones."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter, methodcaller
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror.paths import kept_path, table_path
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import Feeder, relation
from tests.spark_consumer.mirror.test_recreated_empty import held, shown, take
from tests.spark_consumer.mirror.test_replica_identity import (
    COLUMNS,
    COPIED,
    ITEMS,
    KEYED,
    LOG,
    commit,
    item,
    mirrored,
)
from tests.spark_consumer.mirror.test_snapshots import in_one_transaction
from tests.spark_consumer.mirrors import merging_mirror

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_the_former_rows_have_all_changes_before_they_are_kept_or_copied(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Changes of both relations wait for one merge."""

    def run(on_recreated: str) -> None:
        schemas = SchemaCache(Registry({"url": feeder.registry_url}))
        mirror = merging_mirror(str(tmp_path), schemas, on_recreated=on_recreated)
        mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)

    first = feeder.table(KEYED)
    commit(feeder, first, (None, item(1, "a")))
    run("stop")
    second, third = (feeder.alter(first, replace(KEYED, oid=KEYED.oid + n)) for n in (1, 2))
    commit(feeder, first, (None, item(2, "b")))
    commit(feeder, second, (None, item(3, "c")))
    for _ in range(2):
        with pytest.raises(MirrorError, match="was dropped and recreated"):
            run("stop")
    location = table_path(str(tmp_path), ITEMS)
    copied = spark.createDataFrame([(3, "c", None), (7, "copied", None)], COPIED)
    copied.write.format("delta").mode("overwrite").save(location)
    assert sorted(shown(spark, tmp_path, second), key=itemgetter("id")) == [item(3, "c"), item(7, "copied")]
    run("stop")
    assert mirrored(tmp_path) == [item(3, "c"), item(7, "copied")]
    commit(feeder, second, (None, item(4, "d")))
    commit(feeder, third, (None, item(5, "e")))
    run("keep-as")
    assert mirrored(tmp_path) == [item(5, "e")]
    kept = spark.read.format("delta").load(kept_path(str(tmp_path), ITEMS, second.description.oid))
    assert sorted(row["id"] for row in kept.collect()) == [3, 4, 7]


def test_a_transaction_that_changed_a_table_may_recreate_it_with_another_key(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """The former rows go, whatever key they had."""
    former = feeder.table(KEYED)
    commit(feeder, former, (None, item(0, "a")))
    take(spark, feeder, tmp_path)
    by_name = relation("items", COLUMNS, ("name",))
    for number, described in enumerate((by_name, LOG), 1):
        made = feeder.alter(former, replace(described, oid=KEYED.oid + number))
        in_one_transaction(
            feeder,
            methodcaller("insert", former, item(10, "lost")),
            methodcaller("insert", made, item(number, "b")),
        )
        for merges in (False, True):
            take(spark, feeder, tmp_path, merges=merges)
            assert (held(tmp_path, made) if merges else shown(spark, tmp_path, made)) == [item(number, "b")], number
        former = made
