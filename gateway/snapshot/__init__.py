"""Snapshots: the rows that exist already, read in chunks beside the stream and published in commit
order.

A chunk is a PostgreSQL transaction. It locks a table in ACCESS SHARE mode, takes a PostgreSQL
snapshot, reads some rows and emits a logical message. Its commit arrives through the gateway's own
slot, with an LSN, and there the rows, which the reader has kept in memory, are published as its
changes (op READ). A mark is a transaction that only emits a message: tables begin and end where it
commits.

In: the catalog and rows (SQL), the stream's changes and messages (as observer of the state
machine), commands, and the stored state. Out: change events and markers, through the state machine,
and the state of each table, for the Kafka transaction of its rows. This package must not know how
records reach Kafka, apart from the calls of Delivery that make a chunk wait.

gateway/runtime/session.py makes one SnapshotCoordinator for each session. It calls `prepare` before
replication starts, and `run` as a task beside gateway/runtime/replication_loop.py. That loop calls
`announced` at a Relation message. At the Commit of a transaction with a chunk, a mark or a command,
it calls `hand_over` before it passes the Commit to the state machine. kafka_transactions.py beside
it calls `take_states` when it closes a Kafka transaction.

A table is WAITING, READING, ENDING or DONE (rules/table_progress.py), or KNOWN if it is not to be
read (stored_state). After a restart, tables that were READING or ENDING go on with the ranges that
their stored state does not call read, and with the stored keys. They begin again if they are read
as a whole, if their columns, files or publications have changed, or after a gap. A chunk that was
emitted but is not in the stored state is read again: its message, if it comes again, has an id that
the new process does not know, and is ignored.

    coordinator                             begins, resumes and ends the snapshots of tables
    commands                                commands of operators, from logical messages
    discovery                               tables never read, and rows changed without an event
    read_plan  sql                          what a relation is, and the queries that read it
    table_task  table_tasks                 the snapshot of one table, and those of all tables
    reader_tasks  chunk_reader              the tasks that read chunks; one chunk
    copy_decoder                            binary COPY -> encoded rows
    change_recorder  change_tracking        what the stream changes while tables are read
    pending_chunks  publish_chunk           emitted chunks; publishing them where they commit
    toast_reselection                       rows whose UPDATEs left TOASTed values out
    table_errors  unreadable_tables         errors of one table; tables that cannot be read
    stored_state  progress_log              what is durable, in Avro; what is logged
    rules                                   pure: which rows are right, and what is read next

The package must not know `gateway.runtime` and `gateway.cli`, which use it; `rules` knows no I/O.
"""
