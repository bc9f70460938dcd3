"""Fold of the changes of each key into the last state of its row.

    event_decoder                 the step before: raw records -> events that affect one key each
    start_fold                    starts either fold: small_states (Arrow) or spark_states (Spark)
    fold_arrow fold_spark         the fold in this process, and on the workers
    merge_source                  the step after: states -> source of a merge
    keyless_log                   tables without a key: nothing is folded, changes are appended
    key_text replica_identity     keys as PostgreSQL's text; changes of a table's key or relation

slice_contents.as_arrow_if_small chooses: it returns few changes as an Arrow table, which is folded
in this process, and many as a DataFrame. unmerged_overlay.py folds with the same functions.

In: changes of one table, in order. Out: a last state for each key. This package must not know where
changes come from. Only replica_identity reads and writes tables (`convert`, `keep_copy`), by the
functions of table_format; the other modules must not know how tables are stored.
"""
