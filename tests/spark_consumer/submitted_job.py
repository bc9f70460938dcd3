"""A job as a user hands it to spark-submit: test_submit.py. Arguments: options of the data source
as JSON, a folder, a table.

Prints where the executors' Python has this package from, and the rows of a mirror, as one line of
JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import spark_consumer
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.source.datasource import register


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """An executor of `local-cluster` runs in a folder of its own."""
    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"package": str(spark_consumer.__file__), "folder": os.getcwd()}])


def main(options: dict[str, str], folder: str, table: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    places = spark.range(0, 8, 1, 8).mapInArrow(where, "package string, folder string").distinct().collect()
    mirror = AppendingMirror(
        f"{folder}/mirror", SchemaCache(Registry({"url": options["registry.url"]})), merge_every_s=0.0
    )
    stream = spark.readStream.format("walgate").options(**options).load()
    writer = stream.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = versions.read(spark, f"{folder}/mirror")[table].drop("_special").collect()
    typed = spark.read.format("walgate").options(**options, table=table).load().count()
    found = {"places": [place.asDict() for place in places], "rows": [row.asDict() for row in rows], "typed": typed}
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
