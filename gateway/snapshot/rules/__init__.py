"""The rules of a snapshot, without any I/O: which rows are right, and what is read next.
change_tracking.py decides of which transactions the keys are recorded.

visibility       which transactions a PostgreSQL snapshot sees
stale_rows       which rows of a chunk were changed since they were read
ranges_to_read   the ranges of blocks of a table
chunk_size       how many blocks or keys the next chunk has
keys_to_read_again
                 keys that must be read again, in segments that are stored separately
table_progress   how far the snapshot of one table is, and what is read next
published_content
                 whether a relation's rows have changed without an event

In: descriptions of chunks, transactions and files. Out: which rows are stale, and what is read
next. This package must not know connections, messages or Kafka.
"""
