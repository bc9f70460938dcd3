"""Tables of a mirror, one at a time: how each is prepared for a slice, written, and named in a
catalog.

In: rows and columns of one table, and the storage format (table_format.py). Out: a prepared or
written table. This package must not know merges, versions and the logs of Delta.
"""
