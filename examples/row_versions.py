"""Slowly changing dimension, type 2: every version of each row, with the time in which it was
valid.

    python examples/row_versions.py \\
        127.0.0.1:9092 http://127.0.0.1:8081/apis/ccompat/v7 public.customers id
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

from spark_consumer.jobs.session import local_session
from spark_consumer.source.rows import versions


def row_versions(spark: SparkSession, options: dict[str, str], key: list[str]) -> DataFrame:
    """Return the versions from the whole history that Kafka has. For a longer one, read a changelog
    of `walgate consume` instead."""
    return spark.read.format("walgate").options(**options).load().transform(versions, key)


if __name__ == "__main__":
    servers, registry, table, *key_columns = sys.argv[1:]
    given = {"kafka.bootstrap.servers": servers, "registry.url": registry, "table": table}
    row_versions(local_session("row versions"), given, key_columns).orderBy(*key_columns, "valid_from").show(50)
