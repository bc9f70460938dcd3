"""The life of one slot's gateway: prepare, stream, watch, and begin again after an error.

    supervisor  session_memory    one session after another, with a pause between them
    session  tasks                one session of replication, from the start to its end
    bootstrap                     carries out a start, in the order that gateway/startup decides
    replication_loop              frames -> messages -> state machine
    kafka_transactions            closes Kafka transactions when the commit policy says so, and
                                  gives PostgreSQL its flush LSN
    quarantine                    what an error of one table means: go on without it, or stop
    relation_registrar            Relation messages -> topics and registered schemas
    dialect  native_dialect       all that depends on the dialect of the records, and Walgate's own
    assign_column_rules           which columns have rules
    excluded_tables               tables that source.excluded_tables leaves out
    source_catalog                what the catalog shows, at the start and while the stream runs
    monitor  stream_status        probes of the servers, and heartbeats, beside the stream; how far
                                  the stream is
    wal_budget                    advances a slot that retains too much WAL
    stored_positions              positions that gateways have stored in Kafka
    snapshot_status               for commands: the state of snapshots
    event_loop                    uvloop's, with two corrections

Errors say what follows: Retry and RetrySlowly begin another session, StopForOperator ends the
process. gateway/kafka/classify_errors.py and gateway/postgres/classify_errors.py decide which one
an error is, and supervisor carries it out.

In: settings, and the answers of PostgreSQL, Kafka and the registry. Out: records in Kafka, the
position, and the status on the status board. This package connects all others. It must not know
gateway/cli and gateway/demo, the only packages that import it.

After a crash, the next start fences the former producer, reads the last committed position, and
streams from its resume LSN. Rows, markers and position are in one Kafka transaction (with
at_least_once, the position follows its rows).
"""
