"""A mirror: a directory of tables that equal the source's tables as of whole transactions.

    append              appends each micro-batch, not decoded, to `changes`
    changes             `changes`: the appended changes, until they are merged and too old
    merge               merges `changes` into the tables, beside the batches
    slice_contents      tables, schemas and table marks of a set of changes
    fold  tables        the last state of each key; one table, prepared and written
    table_states        which snapshots are in progress, and which tables are up to date
    table_snapshots  snapshot_keys
                        steps of a slice in which a REPLACE or VERIFY is in progress or ends
    version_manifest    versions of all tables that belong together, one for each slice
    writer_epoch        who may append, and who may merge
    maintenance         compaction, and removal of what is too old
    versions            reads all tables as of one commit, with unmerged_overlay.py for
                        unmerged changes
    local               a local mirror's rows and versions, read without Spark
    verify              compares the mirror with its source
    mirror_state  table_selection
                        how far changes were appended and merged; which tables a mirror has
    report  progress_lines
                        what operators are told
    paths  table_format
                        where tables are stored, and what the mirror needs of their format; only
                        delta/ knows Delta

A micro-batch with new rows is one commit to `changes`. A merge cuts what was appended into slices,
and for each slice writes the tables and, last, a row of the manifest. `versions` reads the tables
as of the last row, and applies later changes from `changes` to them. It thus shows the same changes
before and after a merge, except those that only a merge can apply (unmerged_overlay.py), and never
a slice that is half written.

In: rows of source.frames.RAW, and value schemas. Out: what paths.py lists, reports and verdicts.
This package must not know Kafka, the registry or the command line (jobs). It gets value schemas
from a mapping, in which its caller may look them up in the registry, and imports only their type.
"""
