"""Snapshots: the rows that exist already, read in chunks beside the stream and published in commit
order.

A chunk is a PostgreSQL transaction. It locks a table in ACCESS SHARE mode, takes a PostgreSQL
snapshot, reads some rows and emits a logical message. Its commit arrives through the gateway's own
slot, with an LSN, and there the rows are published as its changes (op READ).

In: the catalog and rows (SQL), the stream's changes and messages (as observer of the state
machine), commands, and the stored state. Out: change events and markers, through the state machine,
and the state of each table, for the Kafka transaction of its rows.

    coordinator                             begins, resumes and ends the snapshots of tables
    commands                                commands of operators, from logical messages
    discovery  comparison                   tables never read, and rows changed without an event
    content_query                           the catalog entries that published rows depend on
    read_plan  sql                          what a relation is, and the queries that read it
    table_task  table_tasks                 the snapshot of one table, and those of all tables
    reader_tasks  chunk_reader              the tasks that read chunks; one chunk
    copy_decoder                            binary COPY -> encoded rows
    change_recorder  change_tracking        what the stream changes while tables are read
    pending_chunks  emit_chunk              emitted chunks; publishing them where they commit
    reselecting                             rows whose UPDATEs left TOASTed values out
    table_errors  unreadable_tables         errors of one table; tables that cannot be read
    stored_state  progress_log              what is durable, in Avro; what is logged
    rules                                   pure: which rows are right, and what is read next

The package must not know `gateway.runtime` and `gateway.cli`, which use it; `rules` knows no I/O.
"""
