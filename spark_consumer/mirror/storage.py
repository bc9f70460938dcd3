"""The choice of the format in which a mirror stores its tables."""

from __future__ import annotations

from spark_consumer.mirror.delta import delta_format
from spark_consumer.mirror.table_format import TableFormat

TABLE_FORMAT: TableFormat = delta_format
