"""The data source on a real broker and registry: what it gives is the truth, or an error."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation

ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT}, ("id",))


def test_a_batch_read_gives_the_typed_changes_of_a_table_in_order(spark: SparkSession, feeder: Feeder) -> None:
    accounts = feeder.table(ACCOUNTS)
    for number in range(3):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "owner": f"owner {number}"})
        transaction.update(accounts, {"id": number, "owner": f"owner {number}"}, {"id": number, "owner": None})
        transaction.commit()
        feeder.kafka_commit()
    frame = spark.read.format("walgate").options(**feeder.options(table="public.accounts")).load()
    rows = frame.orderBy("commit_lsn", "ordinal").collect()
    expected = [(change.op, change.commit_lsn, change.ordinal, change.row) for change in feeder.truth]
    assert [(row.op, row.commit_lsn, row.ordinal, row.after.asDict()) for row in rows] == expected
