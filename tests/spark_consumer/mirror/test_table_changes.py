"""Delta's change data feed of a mirror's tables, where somebody turns it on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.mirror.delta.delta_table import version
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.sql_names import quoted
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT4, INT8, Feeder, relation
from tests.spark_consumer.mirrors import merging_mirror

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_table_changes_tells_what_each_batch_did(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    items = feeder.table(relation("items", {"id": INT8, "count": INT4}, ("id",)))
    mirror = merging_mirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})))
    location = table_path(str(tmp_path), TableName("public", "items"))

    def take() -> int:
        feeder.kafka_commit()
        mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
        return version(spark, location)

    made = feeder.begin()
    for number in range(3):
        made.insert(items, {"id": number, "count": 1})
    made.commit()
    take()
    spark.sql(f"ALTER TABLE delta.{quoted(location)} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    since = version(spark, location)
    made = feeder.begin()
    made.update(items, items.rows[0,], {"id": 0, "count": 2})
    made.delete(items, items.rows[1,])
    made.insert(items, {"id": 7, "count": 5})
    made.commit()
    merged = take()
    found = spark.sql(f"SELECT * FROM table_changes_by_path('{location}', {since + 1}, {merged})").collect()
    assert sorted((row["_change_type"], row["id"], row["count"]) for row in found) == [
        ("delete", 1, 1),
        ("insert", 7, 5),
        ("update_postimage", 0, 2),
        ("update_preimage", 0, 1),
    ]
    wide = feeder.alter(items, relation("items", {"id": INT8, "count": INT8}, ("id",)))
    made = feeder.begin()
    made.insert(wide, {"id": 8, "count": 6})
    made.commit()
    take()
    # The cast of a column is a rewrite of the table; the feed goes on behind it.
    found = spark.sql(f"SELECT * FROM table_changes_by_path('{location}', {version(spark, location)})").collect()
    assert [(row["_change_type"], row["id"], row["count"]) for row in found] == [("insert", 8, 6)]
