"""PostgreSQL's side: the connection, CopyBoth frames, slot and publications, what the server is told.

connection.py      log-in by asyncpg, for SQL and for replication
stream.py          the replication connection: queries, start, frames, status, end
inbox.py           bytes -> whole messages, pure
frames.py          whole CopyData frames, pure: the hot loop
feedback.py        when and what the server is told
options.py         START_REPLICATION and pgoutput's options, quoted
slot.py            facts of a slot, and its creation
errors.py          what happens next, by SQLSTATE
server_message.py  ErrorResponse and NoticeResponse
"""
