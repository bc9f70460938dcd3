"""The choice of the format in which a local mirror's tables are read without Spark: see
spark_consumer/mirror/storage.py."""

from __future__ import annotations

from spark_consumer.mirror.delta.log_replay import DeltaFiles as LocalTable
from spark_consumer.mirror.delta.log_replay import open_delta as open_table
from spark_consumer.mirror.delta.view_dialects import DIALECTS

__all__ = ["DIALECTS", "LocalTable", "open_table"]
