"""One slot's life, from its start to its end: prepare, stream, watch, and begin again after an
error.

    bootstrap             what a start does, in the order that gateway/startup decides
    session               one session of replication, from the start to its end
    supervisor            one session after another, with a pause between them
    pump                  the replication loop: frames -> events -> Kafka transactions
    relation_registrar    Relation messages -> topics and registered schemas
    monitor               the checks that run beside the stream

It receives settings and gives records in Kafka, a position, and a status. It knows every other
package but the commands.
"""
