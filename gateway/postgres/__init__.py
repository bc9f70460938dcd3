"""PostgreSQL's side: the connection, CopyBoth frames, slot and publications, what the server is
told.

    connection.py      log-in by asyncpg, for SQL and for replication
    stream.py          the replication connection: queries, start, frames, status, end
    inbox.py           bytes -> whole messages
    frames.py          whole CopyData frames: the hot loop
    feedback.py        when and what the server is told
    options.py         START_REPLICATION and pgoutput's options, quoted
    errors.py          what happens next, by SQLSTATE
    server_message.py  ErrorResponse and NoticeResponse
    server.py slot.py publication.py   what is there; creation of a slot
    preflight.py       the checks before the start and while it runs: *_checks.py and timeline.py over facts.py

No other room talks to PostgreSQL's replication protocol.
"""
