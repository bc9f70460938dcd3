"""A mirror: a directory of tables that equal the source's tables as of whole transactions.

    append_batch    appends each micro-batch, not decoded, to `changes` (changes.py)
    background_merges
                    decides when to merge, beside the batches (merge_thread.py)
    merger          merges `changes` into the tables in slices, then records a version (manifest.py)
    table_states    purpose of the snapshots in progress, and which tables are not up to date
    versions        reads all tables as of one commit, with unmerged_overlay.py for unmerged changes
    table_format    what the mirror needs of the tables' format; only delta/ knows Delta

In: rows of source.frames.RAW, and value schemas. Out: what paths.py lists, reports and verdicts.
This package must not know Kafka, the registry or the command line (jobs).
"""
