"""Where the parts of a mirror lie.

<path>/tables/<schema>/<table>    one Delta table for each relation; parts of names are escaped as in topics
<path>/manifest                   one row a batch: see pictures.py
<path>/checkpoint                 Spark's own
"""

from __future__ import annotations

from schemas.names import topic_name
from spark_consumer.tables import TableName


def table_path(path: str, table: TableName) -> str:
    """Names go through the escaping of topics: no name can leave the folder."""
    _, namespace, name = topic_name("tables", table.namespace, table.name).split(".")
    return f"{path}/tables/{namespace}/{name}"


def manifest_path(path: str) -> str:
    return f"{path}/manifest"
