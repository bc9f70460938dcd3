"""A mirror's tables in Delta Lake: their logs and files, and how they are written, merged and
cleaned up.

In: rows, columns and paths of a mirror. Out: tables of Delta Lake. No other package reads Delta's
log; this one must not know snapshots, merges and versions.
"""
