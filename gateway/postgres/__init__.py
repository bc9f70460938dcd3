"""PostgreSQL's side of the gateway: settings come in; facts about the server, CopyData frames and
classified errors go out; standby status goes back.

    login.py authentication.py scram.py credentials.py   log-in by asyncpg: hosts, TLS, passwords
    connection.py                                        connections for SQL and for replication
    replication_stream.py start_replication.py           the replication connection, its commands
    receive_buffer.py copy_frames.py server_message.py   bytes -> messages -> frames (the hot loop)
    standby_status.py                                    when and what the server is told
    server.py slot.py publication.py role.py             facts for the checks of gateway/startup
    wal_retention.py slot_creation_blockers.py           what keeps WAL or delays a slot's creation
    errors.py cached_query.py asyncpg_internals.py       errors, repeated queries, private asyncpg

This package knows nothing of a frame's payload except its first byte, and nothing of Kafka. No
other package speaks PostgreSQL's replication protocol.
"""
