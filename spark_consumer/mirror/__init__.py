"""A mirror: a directory of tables that equal the source's tables as of whole transactions.

    append          appends each micro-batch, not decoded, to `changes` (changes.py)
    merge           merges `changes` into the tables, beside the batches, then records a version
                    (version_manifest.py)
    fold  tables    the last state of each key; one table, prepared and written
    table_states    purpose of the snapshots in progress, and which tables are not up to date
    versions        reads all tables as of one commit, with unmerged_overlay.py for unmerged changes
    local           a local mirror's rows and versions, read without Spark
    verify          compares the mirror with its source
    table_format    what the mirror needs of the tables' format; only delta/ knows Delta

A micro-batch is one commit to `changes`. A merge cuts what was appended into slices, and for each
slice writes the tables and, last, a row of the manifest. Until that row is written, `versions`
shows nothing of these writes: it reads the tables as of the row before, and applies the unmerged
changes to what it has read.

In: rows of source.frames.RAW, and value schemas. Out: what paths.py lists, reports and verdicts.
This package must not know Kafka, the registry or the command line (jobs): it gets value schemas
from a mapping, in which its caller may look them up in the registry, and imports only their type.
"""
