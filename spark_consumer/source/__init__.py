"""The data sources format("walgate") and format("walgate-transactions").

    datasource batch_admission offsets  the driver: how far a batch goes, and where it begins
    shapes reading frames               the tasks, what each reads, and the columns of its rows
    options table_options               what a query asks for
    decode rows                         functions for the frames of a query
    earlier_spark                       Spark 4.0 and 4.1

In: options and Spark's offsets. Out: Arrow batches, or an error if a transaction is incomplete.
This package must not know mirrors, changelogs and jobs.
"""
