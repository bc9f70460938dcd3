"""Mirrors one table to a Delta table with Spark's own parts: format("kafka"), from_avro and MERGE,
without Walgate's code.

    spark-submit --packages "$PACKAGES" examples/plain_spark.py \\
        localhost:9092 http://localhost:8081/apis/ccompat/v7 cdc public.items id /data/items

PACKAGES is a list with commas and without spaces:

    org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
    org.apache.spark:spark-avro_2.13:4.2.0
    io.delta:delta-spark_4.2_2.13:4.4.0

It follows the rules of docs/topics.md:

* A record counts if it is in a range of a committing marker, and in no subtransaction that was
  rolled back. A large transaction is written to the topic before it ends, and its records do not
  show how it ended.
* The ranges contain exactly `record_count` records; otherwise the batch fails, and is read again at
  the next start.
* A change of key is one change of one row. Its values that were not sent (TOAST) are those of the
  row under its old key.
* A TRUNCATE removes every row before it.

Key columns must have the same type in `old_key` and in the row (docs/types.md). A value that its
Avro type cannot represent stops the job. Surplus rows of a REPLACE snapshot, tables without a key
and columns that change are left to `walgate mirror`. Even an ALTER TABLE that was rolled back may
have changed the newest schema, to which this program decodes all records.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

COMMITTING = ("COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED")
POSITION = ("commit_lsn", "ordinal")


class PlainMirror:
    """A mirror of one table. `key`: the columns of the replica identity. `path`: path of the Delta
    table; its checkpoint is below it."""

    def __init__(
        self, spark: SparkSession, servers: str, registry: str, prefix: str, table: str, key: list[str], path: str
    ) -> None:
        self.spark, self.registry, self.key, self.path = spark, registry, key, path
        self.topic, self.markers = f"{prefix}.{table}", f"{prefix}.transaction"
        self.kafka = {"kafka.bootstrap.servers": servers, "kafka.isolation.level": "read_committed"}

    def start(self, **trigger: Any) -> Any:
        """Start a query that follows the markers; records are read by the ranges in them."""
        stream = self.spark.readStream.format("kafka").options(**self.kafka, startingOffsets="earliest")
        markers = stream.option("subscribe", self.markers).option("maxOffsetsPerTrigger", 10_000).load()
        writer = markers.writeStream.foreachBatch(self.apply).option("checkpointLocation", f"{self.path}/_checkpoint")
        return writer.trigger(**trigger).start()

    def apply(self, markers: DataFrame, batch: int) -> None:
        ended = self.decoded(markers, self.markers).where(f.col("kind").isin(*COMMITTING))
        ranges = ended.select(
            "xid", f.col("manifest.epoch").alias("epoch"), f.col("marker_lsn").alias("commit_lsn"),
            f.col("manifest.aborted_subxids").alias("aborted"), f.inline("manifest.ranges"),
        ).where(f.col("topic") == self.topic).drop("topic").persist()  # fmt: skip
        try:
            ends = ranges.groupBy("partition").agg(f.min("first_offset"), f.max("last_offset"), f.sum("record_count"))
            if bounds := {row[0]: tuple(row)[1:] for row in ends.collect()}:
                self.merge(self.committed(ranges, bounds), batch)
        finally:
            self.spark.catalog.clearCache()

    def committed(self, ranges: DataFrame, bounds: dict[int, tuple[int, int, int]]) -> DataFrame:
        """Return the changes of these transactions, after counting them."""
        ends = [{str(place): bound[end] + end for place, bound in bounds.items()} for end in (0, 1)]
        records = self.spark.read.format("kafka").options(**self.kafka).option("includeHeaders", False).options(
            assign=json.dumps({self.topic: sorted(bounds)}),
            startingOffsets=json.dumps({self.topic: ends[0]}), endingOffsets=json.dumps({self.topic: ends[1]}),
        ).load()  # fmt: skip
        changes = self.decoded(records, self.topic, "partition", "offset").drop("commit_lsn").alias("c")
        inside = f.col("offset").between(f.col("first_offset"), f.col("last_offset"))
        found: DataFrame = changes.join(f.broadcast(ranges), ["partition", "xid", "epoch"]).where(inside).persist()
        expected = sum(bound[2] for bound in bounds.values())
        if (count := found.count()) != expected:
            raise RuntimeError(f"{self.topic} has {count} of the {expected} records that the markers name")
        if not found.where(f.size("special") > 0).isEmpty():
            raise RuntimeError(f"{self.topic} has values that their Avro type cannot represent: see `special`")
        return found.where(~f.array_contains("aborted", f.col("subxid")) & ~f.col("key_change"))

    def merge(self, changes: DataFrame, batch: int) -> None:
        """Merge in rounds. Within a round no row changes its key twice, and no key passes from one
        row to another."""
        self.create(changes)
        place = f.struct(*POSITION)
        cut = changes.where("op = 'TRUNCATE'").agg(f.max(place)).head()[0]
        rows = changes.where("op != 'TRUNCATE'").withColumn("place", place)
        if cut is not None:
            rows = rows.where(f.col("place") > literal(cut))
        new, old = (self.key_of(*names) for names in (("after", "before", "old_key"), ("old_key", "before", "after")))
        rows = rows.select("op", "place", "before", "after", "unchanged", new.alias("key"), old.alias("old")).persist()
        moves = rows.where("op = 'UPDATE' AND key != old").select("place", "old", "key").orderBy("place").collect()
        starts, touched = [None], set()
        for move in moves:
            if {move.old, move.key} & touched:
                starts.append(move.place)
                touched = set()
            touched |= {move.old, move.key}
        for number, start in enumerate(starts):
            part = rows
            if start is not None:
                part = part.where(f.col("place") >= literal(start))
            if number + 1 < len(starts):
                part = part.where(f.col("place") < literal(starts[number + 1]))
            self.merge_round(part, empties=cut is not None and number == 0, version=batch * 1_000_000 + number)

    def merge_round(self, rows: DataFrame, *, empties: bool, version: int) -> None:
        """Merge one round. `version`: if a batch runs again, Delta skips the rounds that are
        already merged."""
        moved = rows.where("op = 'UPDATE' AND key != old")
        left = moved.select(f.col("old").alias("left"), f.col("place").alias("at"), f.col("key").alias("to"))
        entered = moved.select(f.col("key").alias("entered"), f.col("place").alias("since"))
        # When a row takes a key, the earlier row with that key has ended. Changes under the key
        # that a row has left belong to that row.
        rows = rows.join(entered, f.col("key") == f.col("entered"), "left")
        rows = rows.join(left, (f.col("key") == f.col("left")) & (f.col("place") < f.col("at")), "left")
        rows = rows.where("since IS NULL OR place >= since").withColumn("_row", f.coalesce("to", "key"))
        names = [name for name in rows.schema["after"].dataType.fieldNames() if name not in self.key]
        sent = {name: self.sent(name) for name in names}
        last = [f.max_by(value, f.when(value.isNotNull(), f.col("place"))).alias(name) for name, value in sent.items()]
        base = f.max_by("old", f.when(f.col("key") != f.col("old"), f.col("place"))).alias("_base")
        states = rows.groupBy("_row").agg(f.max_by("op", "place").alias("_op"), base, *last)
        target = self.spark.read.format("delta").load(self.path)
        stored = target.select(f.struct(*self.key).alias("_stored"), f.struct(*names).alias("_values"))
        if empties:
            stored = stored.where("false")
        states = states.join(stored, f.coalesce("_base", "_row") == f.col("_stored"), "left")
        values = [
            f.when(f.col(name).isNull(), f.col("_values")[name]).otherwise(f.col(name)["value"]).alias(name)
            for name in names
        ]
        ends = states.select("_row.*", "_op", *values)
        gone = moved.select("old.*").join(ends, self.key, "left_anti").withColumn("_op", f.lit("DELETE"))
        source = ends.unionByName(gone, allowMissingColumns=True)
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in self.key)
        into = DeltaTable.forPath(self.spark, self.path).alias("t").merge(source.alias("s"), same)
        all_columns = {f"`{name}`": f"s.`{name}`" for name in [*self.key, *names]}
        into = into.whenMatchedDelete("s._op = 'DELETE'").whenMatchedUpdate(set=all_columns)
        into = into.whenNotMatchedInsert("s._op != 'DELETE'", values=all_columns)
        # A new checkpoint is a new query: its batches are numbered from 0 again.
        query = self.spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        once = {"txnAppId": query, "txnVersion": str(version)}
        for name, text in once.items():
            self.spark.conf.set(f"spark.databricks.delta.write.{name}", text)
        try:
            (into.whenNotMatchedBySourceDelete() if empties else into).execute()
        finally:
            for name in once:
                self.spark.conf.unset(f"spark.databricks.delta.write.{name}")

    def sent(self, name: str) -> Column:
        """Return the value in a struct, to distinguish a null that was sent from a value that was
        not. Under REPLICA IDENTITY FULL the old row has an unsent value."""
        is_sent = ~f.array_contains("unchanged", name)
        old = f.when(f.col("before").isNotNull(), f.struct(f.col("before")[name].alias("value")))
        return f.when(is_sent & f.col("after").isNotNull(), f.struct(f.col("after")[name].alias("value"))).otherwise(
            old
        )

    def key_of(self, *rows: str) -> Column:
        """Return the key, taking each column from the first of the rows that has it."""
        return f.struct(*(f.coalesce(*(f.col(row)[name] for row in rows)).alias(name) for name in self.key))

    def create(self, changes: DataFrame) -> None:
        if not DeltaTable.isDeltaTable(self.spark, self.path):
            changes.select("after.*").limit(0).write.format("delta").save(self.path)

    def decoded(self, records: DataFrame, topic: str, *places: str) -> DataFrame:
        """Decode each record with the schema it was written with, to the newest one."""
        wire = f.expr("conv(hex(substring(value, 2, 4)), 16, 10)").cast("int")
        rows = records.withColumn("schema_id", wire).withColumn("payload", f.expr("substring(value, 6)"))
        options = {"mode": "FAILFAST", "avroSchema": self.asked(f"subjects/{topic}-value/versions/latest")}
        record = from_avro("payload", options["avroSchema"], options)
        for (schema_id,) in rows.select("schema_id").distinct().collect():
            written = self.asked(f"schemas/ids/{schema_id}")
            record = f.when(f.col("schema_id") == schema_id, from_avro("payload", written, options)).otherwise(record)
        return rows.select(*places, record.alias("record")).select(*places, "record.*")

    def asked(self, request: str) -> str:
        with urllib.request.urlopen(f"{self.registry}/{request}") as answer:
            return str(json.load(answer)["schema"])


def literal(place: tuple[int, int]) -> Column:
    return f.struct(*(f.lit(value).cast("long").alias(name) for name, value in zip(POSITION, place, strict=True)))


if __name__ == "__main__":
    servers, registry, prefix, table, keys, path = sys.argv[1:]
    session = SparkSession.builder.config(
        map={
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    ).getOrCreate()
    PlainMirror(session, servers, registry, prefix, table, keys.split(","), path).start().awaitTermination()
