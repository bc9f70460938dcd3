"""Discovery of the tables that a snapshot must read. Either they were never read, or their
published rows were added, removed or changed although PostgreSQL sent no change for them.

`content_query` asks the catalog, `unsent_changes` compares the answer with that of the last check,
and `published_tables` queues the tables, or only logs them (snapshot.mode, snapshot.read_again).
`stored_contents` keeps the answers, which are stored with the state of snapshots.
`sent_before_commit` finds the tables of which consumers do not learn what an ALTER TABLE has done.

In: the catalog (SQL), the names, partitions and columns in Relation messages, and the stored state
of snapshots. Out: tables to be read, and tables that are no longer published. This package must not
know chunks, readers, or rows and transactions of the stream, except for the ids of transactions in
`sent_before_commit`.
"""
