"""A session as a notebook has it, without jars or settings of ours: test_plain_session.py.
Arguments: options as JSON, the table.

Prints what was found as one line of JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(given: str, table: str, folder: str) -> None:
    options = json.loads(given)
    spark = SparkSession.builder.master("local[1]").config("spark.sql.warehouse.dir", folder).getOrCreate()
    listed = ", ".join(f"'{name}' '{value}'" for name, value in {**options, "table": table}.items())
    spark.sql(f"CREATE TABLE account_changes USING walgate OPTIONS ({listed})")
    rows = spark.sql("SELECT op, after.owner FROM account_changes WHERE after.id = 2").collect()
    bounded = "SELECT count(*) AS count FROM account_changes WITH ('endingPosition' = 'earliest')"
    found = {"table": [list(row) for row in rows], "bounded": spark.sql(bounded).collect()[0]["count"]}
    try:
        spark.read.format("walgate").options(**options, tabel=table).load()
    except Exception as problem:
        found["refused"] = str(problem)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
