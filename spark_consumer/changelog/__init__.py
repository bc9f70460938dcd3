"""A changelog: every committed change of every table, appended once, as Delta or Parquet.

    writer    Changelog.apply appends a micro-batch

In: rows of source.frames.RAW, and value schemas. Out: one table or folder for each source table.
This package shares with the mirror the code that summarizes a batch and writes it once. It must not
know the snapshots, versions and merges of a mirror.
"""
