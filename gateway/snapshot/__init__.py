"""Snapshots: the rows that exist already, read in chunks beside the stream and published in commit
order.

A chunk is a PostgreSQL transaction. It locks a table in ACCESS SHARE mode, takes a PostgreSQL
snapshot, reads some rows and emits a logical message. Its commit arrives through the gateway's own
slot, with an LSN. Where it arrives, the rows, which the reader has kept in memory, are published as
its changes (op READ). A table that cannot be divided, for example because it has no key, is one
chunk, however large it is (ReadPlan.is_read_at_once). A boundary is a transaction that only emits a
message: tables begin and end where it commits.

In: the catalog and rows (SQL), the stream's changes and messages (as observer of the state
machine), commands, and the stored state. Out: change events and markers, through the state machine,
and the state of each table, for the Kafka transaction of its rows. This package must not know how
records reach Kafka. It knows one object of gateway/kafka, Delivery, and calls its methods `offer`
and `room`. Rows are sent while a chunk is published, and the chunk waits while too many bytes are
on their way to Kafka.

gateway/runtime/session.py makes one SnapshotCoordinator for each session. It calls `prepare` before
replication starts, and `run` as a task beside gateway/runtime/replication_loop.py. That loop calls
`relation_received` and `partition_received` at a Relation message. At the Commit of a transaction
with a chunk, a boundary or a command, it calls `at_commit` before it passes the Commit to the state
machine. kafka_transactions.py beside it calls `take_states` when it closes a Kafka transaction.

A table is WAITING, READING, ENDING or DONE (rules/table_progress.py), or NOT_TO_BE_READ, which is
only a stored state (stored_state). TableTasks moves a table from one state to another; the other
modules report to it. Only the chunk reader, the publisher and change_tracking report to the table's
progress directly. After a report of change_tracking, the table may begin again.

    coordinator                             begins and ends the snapshots of tables
    resume                                  goes on with tables that an earlier session began
    commands                                commands of operators, from logical messages
    discovery                               tables never read, and rows changed without an event
    read_plan  sql                          what a relation is, and the queries that read it
    whole_snapshot  table_tasks             the snapshot as a whole, and its tables
    table_task                              the snapshot of one table
    reader_tasks  chunk_reader              the tasks that read chunks; one chunk
    copy_decoder                            binary COPY -> encoded rows
    change_recorder  change_tracking        what the stream changes while tables are read
    pending_chunks  publish_chunk           emitted chunks, boundaries; publishing at commit
    toast_reselection                       rows whose UPDATEs left TOASTed values out
    table_errors  unreadable_tables         errors of one table; tables that cannot be read
    stored_state  progress_log              what is durable, in Avro; what is logged
    rules                                   pure: which rows are right, and what is read next

After a restart, a table goes on with the ranges and keys in its stored state (resume). A chunk that
was emitted but is not in the stored state is read again. Its message, if it arrives again, has an
id that the new process has not emitted, and is ignored.

An error from PostgreSQL never stops the gateway. An error that occurs while a table is read blocks
that table, which is tried again while the others are read. An error in a statement of the
coordinator, such as a query of the catalog, ends the session, which is tried again. A row or a
schema that cannot be written may stop the gateway (UnwritableTable; gateway/runtime/quarantine.py
decides).

The package must not know `gateway.runtime` and `gateway.cli`, which use it; `rules` knows no I/O.
"""
