"""The rules of a snapshot, without any I/O: which rows are right, and what is read next.

visibility       which transactions a PostgreSQL snapshot sees
staleness        which rows of a chunk were changed since they were read
ctid_ranges      the blocks of a table -> chunks
key_segments     ranges of keys
table_progress   how far one table is, and what is next
"""
