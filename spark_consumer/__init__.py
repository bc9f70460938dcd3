"""Committed PostgreSQL changes in Spark: a data source over Walgate's topics, mirrors and change logs.

`spark_consumer.source.register(spark)` makes `format("walgate")` and `format("walgate-transactions")` known to a session.
Nothing here imports PySpark until a module that needs it is imported: planning, counting and decoding are plain functions.
"""
