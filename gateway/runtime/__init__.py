"""The life of one slot's gateway: prepare, stream, watch, and begin again after an error.

    supervisor            one session after another, with a pause between them
    session               one session of replication, from the start to its end
    bootstrap             carries out a start, in the order that gateway/startup decides
    pump                  the replication loop: frames -> events -> Kafka transactions
    relation_registrar    Relation messages -> topics and registered schemas
    source_catalog        what the catalog shows, at the start and while the stream runs
    monitor               probes of the servers beside the stream
    wal_budget            advances a slot that retains too much WAL

In: settings, and the answers of PostgreSQL, Kafka and the registry. Out: records in Kafka, the
position, and the status on the status board. This package connects all others and may import any of
them except gateway/cli and gateway/demo, which alone may import it.
"""
