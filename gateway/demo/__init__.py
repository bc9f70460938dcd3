"""The demo: a shop whose data changes, its replication to Spark, and a comparison of the copy with
the source."""
