"""A mirror on a local disk, read without Spark: its versions, and its rows as text or Parquet.
Changes that are not merged are not shown.

In: the directory of a mirror. Out: rows, lists of versions, and SQL. This package must not know
Spark and Kafka.
"""
