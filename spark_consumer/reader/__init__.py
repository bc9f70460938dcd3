"""Committed transactions from the topics, and proof that none of their records is missing.

    markers marker_log positions      transaction topic -> committed transactions, with manifests
    read_planning completeness        which offsets are read; the counts of the manifests
    broker registry topics            Kafka, the schema registry, and the table of each topic
    table_marks backlog column_names  facts about tables, what waits, PostgreSQL's column names
    transactions                      all of this without Spark: an async iterator

In: topics and a position. Out: transactions, reads and marks. This package must not know Spark,
numpy or pyarrow. columnar/ decodes the records of many transactions; source/ calls this package and
columnar/.
"""
