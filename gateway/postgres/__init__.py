"""PostgreSQL's side of the gateway. No other package speaks the replication protocol.

    login.py                                             log-in: hosts, TLS
    authentication.py scram.py                           messages of a log-in; SCRAM's computation
    credentials.py                                       the DSN, and passwords
    connection.py                                        connections for SQL and for replication
    replication_stream.py start_replication.py           the replication connection, its commands
    receive_buffer.py                                    bytes -> frames and messages (the hot loop)
    copy_frames.py server_message.py                     the format of frames; errors and notices
    standby_status.py                                    when and what the server is told
    server.py slot.py publication.py role.py             facts for the checks of gateway/startup
    wal_retention.py slot_creation_blockers.py           what keeps WAL or delays a slot's creation
    classify_errors.py cached_query.py asyncpg_internals.py
                                                         errors, repeated queries, private asyncpg

In: settings, and the LSNs to acknowledge. Out: facts about the server, CopyData frames, classified
errors, and standby status to the server. This package must not know a frame's payload except its
first byte, nor Kafka.
"""
