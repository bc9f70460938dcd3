"""The rows that were there before: read in chunks beside the stream, published in commit order.

A chunk is a transaction of PostgreSQL. It locks a table in ACCESS SHARE mode, takes a snapshot,
reads some rows and emits a logical message; its commit comes back through our own slot with an LSN,
and there the rows leave as its changes (op READ).

    visibility  judge  keys  plan  table     pure: which rows are right, what is read next
    state                                    what is durable of it, in Avro
    content                                  when rows have changed without an event
    statements  survey                       what a relation is, and how it is asked for
    copied  reader                           one chunk, from SQL to encoded rows
    tracking  noting                         what the stream changes while tables are read
    reading  readings  discovery             which tables there are, and what is read of them
    recipes  readers                         the tasks that read them
    arriving  handing_over                   what comes back in the stream, and becomes changes there
    reselecting                              rows of which UPDATEs left values out
    engine                                   what begins, goes on and ends
    commands                                 what an operator says to it, through the stream
    unwritable                               errors of one table
"""
