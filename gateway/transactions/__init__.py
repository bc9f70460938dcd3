"""State of transactions, from their messages to their last marker. No I/O.

No row waits here for its COMMIT, and nothing is spilled to disk. A row goes to the sink of its
topic at once, even while it is not known whether its transaction commits. The row counts for
consumers once the marker that ends the transaction is there (native_record_writer).

    machine           the state machine: pgoutput messages -> calls of a record writer. Its parts:
    ordinary          transactions that arrive whole, and the rows of all transactions
    logical_messages  logical messages, transactional or not
    relations_in_force                the version of each relation; what is left out
    record_writer     what a dialect must write: the interface
    native_record_writer
                      Walgate's own dialect: change events and markers
    transaction       what the machine keeps of a transaction (no rows), and the interfaces to its
                      surroundings
    position          the durable position of a slot, and its record
    commit_policy     pure rules: when a Kafka transaction is closed, when reading waits, and when
                      the position of an idle slot advances
    error_context     adds to an error where in the stream it occurred

In: messages in stream order, and relation versions with their encoders and sinks. Out: records to
the sinks, owed markers, and the LSN from which replication may start again. The package must not
know PostgreSQL connections, Kafka clients, or how snapshots are read.
"""
