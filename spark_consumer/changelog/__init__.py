"""A changelog: every committed change of every table, appended once, as Delta or Parquet.

    writer    Changelog.apply appends a micro-batch

In: rows of source.frames.RAW, and value schemas. Out: one table or folder for each source table.
Shares with the mirror how a batch is summarized and written once; it must not know the
snapshots, versions and merges of a mirror.
"""
