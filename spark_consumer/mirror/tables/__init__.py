"""Tables of a mirror, one at a time: how each is prepared for a slice, written, and named in a
catalog.

Existing rows are changed by these steps, if the columns or the key of a table change:

    convert    the table becomes a log, or a log becomes rows: a commit of its own
    align      columns are added, dropped or cast: commits of their own
    rewrite    columns are renamed, replaced or filled (and what `convert` does): part of the
               commit of the slice, which then overwrites the table
    conform    what `align` does, for rows that are only read: no commit

In: rows and columns of one table, the last version of the mirror, and the storage format
(table_format.py). Out: a prepared or written table. This package must not record versions of the
mirror, and must not know how changes are cut into slices, or the logs of Delta.
"""
