"""A Structured Streaming job that checks an invariant: money is moved between accounts, so the sum
of all balances never changes.

Every micro-batch consists of whole transactions, so the sum over its changes is always zero. If
changes were read row by row, as from other CDC tools, half a transfer would appear whenever a batch
ended within one.

    python examples/balanced_transfers.py \\
        127.0.0.1:9092 http://127.0.0.1:8081/apis/ccompat/v7 public.accounts

Use a published table of your own; the demo's shop has none with this property. It needs REPLICA
IDENTITY FULL, so that a change contains the old balance:

    CREATE TABLE accounts (id bigint PRIMARY KEY, balance numeric(12,2));
    ALTER TABLE accounts REPLICA IDENTITY FULL;
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from spark_consumer.jobs.session import local_session


def balance_of(changes: DataFrame) -> Decimal:
    """Return what the changes add to the sum of all balances."""
    gained = f.coalesce(f.sum("after.balance"), f.lit(0))
    lost = f.coalesce(f.sum("before.balance"), f.lit(0))
    row = changes.agg((gained - lost).alias("balance")).head()
    assert row is not None
    return Decimal(row["balance"])


def watch(
    spark: SparkSession, options: dict[str, str], checkpoint: str, seen: Callable[[int, Decimal], None], **trigger: Any
) -> StreamingQuery:
    """Call `seen` with each batch and what it adds to the sum."""
    changes = spark.readStream.format("walgate").options(**options).load()
    moved = changes.where(f.col("op") == "UPDATE")
    writer = moved.writeStream.foreachBatch(lambda frame, batch: seen(batch, balance_of(frame)))
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def report(batch: int, balance: Decimal) -> None:
    print(f"batch {batch}: the transfers add up to {balance}")
    if balance:
        raise RuntimeError("money appeared from nowhere")


if __name__ == "__main__":
    servers, registry, table = sys.argv[1:4]
    given = {"kafka.bootstrap.servers": servers, "registry.url": registry, "table": table}
    session = local_session("balanced transfers")
    watch(session, given, "balanced-transfers-checkpoint", report, processingTime="1 second").awaitTermination()
