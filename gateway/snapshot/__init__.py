"""Snapshots: the rows that exist already, read in chunks beside the stream and published in commit
order.

A chunk is a PostgreSQL transaction. It locks a table in ACCESS SHARE mode (with snapshot.may_lock,
perhaps in SHARE mode), takes a PostgreSQL snapshot, reads some rows and emits a logical message.
Its commit arrives through the gateway's own slot, with an LSN. Where it arrives, the rows, which
the reader has kept in memory, are published as its changes (op READ). A table that cannot be
divided, for example because it has no key, is one chunk, however large it is
(ReadPlan.is_read_at_once). A boundary is a transaction that only emits a message: tables begin and
end where it commits.

In: the catalog and rows (SQL), the stream's changes and messages (as observer of the state
machine), commands, and the stored state. Out: change events and markers, through the state machine,
and the state of each table, for the Kafka transaction of its rows. This package must not know how
records reach Kafka. It knows two names of gateway/kafka: Delivery, of which it calls `offer` and
`room`, and HELD_FACTOR, which limits the size of a row. Rows are sent while a chunk is published,
and the chunk waits while too many bytes are on their way to Kafka.

gateway/runtime/session.py creates one SnapshotCoordinator for each session. It calls `prepare`
before replication starts, and `run` as a task beside gateway/runtime/replication_loop.py. That loop
calls `relation_received` and `partition_received` at a Relation message, and `rows_in_doubt` if
consumers cannot tell what an ALTER TABLE did. At the Commit of a transaction with a chunk, a
boundary or a command, it calls `at_commit` before it passes the Commit to the state machine. The
state machine calls `Reselection.left_out` (`on_left_out`) at an UPDATE that was written without a
value. kafka_transactions.py calls `take_states` when it closes a Kafka transaction.

A table is WAITING, READING, ENDING or DONE (rules/table_progress.py), or NOT_TO_BE_READ, which is
only a stored state (stored_state). TableTasks moves a table from one state to another; the other
modules report to it. Four modules call the table's progress directly. chunk_reader reports
PostgreSQL snapshots and shortened ranges, and reader_tasks limits the size of chunks. publish_chunk
asks whether a chunk counts, and which rows are stale. change_tracking reports changes, after which
the table may begin again.

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

gateway/runtime and gateway/cli also use `emit_command` and `unpublished` (commands), `unwatched`
(resume), `decode_states` (stored_state), UnsentChangesLog and SentBeforeCommit (discovery).

In the next session, a table goes on with the ranges and keys in its stored state (resume). It
begins again if it is read at once, if what its chunks depend on has changed, or after a gap. A
chunk that was emitted but is not in the stored state is read again. Its message, if it arrives
again, has an id that the new session has not emitted, and is ignored.

An error from PostgreSQL never stops the gateway. An error of a statement that reads a table, or of
its connection, blocks that table, which is tried again while the stream and the other tables go on.
A table that has changed begins again. A reader that cannot open a connection waits. An error in a
statement of the coordinator, such as a query of the catalog, ends the session, which is tried
again. The same applies to COPY data that cannot be decoded (UnreadableCopy). A row or a schema that
cannot be written may stop the gateway (UnwritableTable): errors.on_error decides whether
gateway/runtime/quarantine.py stops it or puts the table in quarantine. The gateway also stops for
the reasons for which it stops elsewhere: a registry that refuses the credentials, and bugs.

The package must not know `gateway.runtime` and `gateway.cli`, which use it; `rules` knows no I/O.
"""
