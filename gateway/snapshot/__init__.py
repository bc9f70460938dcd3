"""The rows that were there before: read in chunks beside the stream, published in commit order.

A chunk is a transaction of PostgreSQL. It locks a table in ACCESS SHARE mode, takes a snapshot, reads some rows and emits a
logical message; its commit comes back through our own slot with an LSN, and there the rows leave as its changes (op READ).

    visibility  judge  keys  plan  table     pure: which rows are right, what is read next
    state                                    what is durable of it, in Avro
    content                                  when rows have changed without an event
    statements  survey                       what a relation is, and how it is asked for
    copied  reader                           one chunk, from SQL to encoded rows
    tracking                                 what the stream changes while tables are read
    reading  engine                          which tables there are, and the tasks that read them
    commands                                 what an operator says to it, through the stream
"""
