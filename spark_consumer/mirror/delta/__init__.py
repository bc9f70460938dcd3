"""A mirror's tables in Delta Lake: their logs and files, and how they are written, merged and
cleaned up.

    delta_format                     the functions of table_format, for Delta
    delta_table  delta_write  delta_append
                                     tables and their versions; writes, each in one commit
    log_replay  deletion_vectors     a table at a version, read without Spark
    log_entries  cleanup             entries of a log, with Spark: listed, removed; compaction
    catalog_names  java_delta  session_settings  view_dialects
                                     names, Delta's Java objects, settings of a session, SQL

In: rows, columns and paths of a mirror. Out: tables of Delta Lake. No other package reads Delta's
log. A version here is one of a single table: this package must not know the manifest, the slices of
a merge, and the snapshots that the gateway takes.
"""
