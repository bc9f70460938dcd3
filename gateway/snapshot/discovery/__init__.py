"""Discovery of the tables that a snapshot must read: those that were never read, and those whose
published rows came, went or changed while PostgreSQL sent no change for them.

`content_query` asks the catalog, `unsent_changes` compares the answer with that of the last check,
and `published_tables` turns the differences into snapshots of tables. `stored_contents` keeps the
answers, which are durable.

In: the catalog (SQL), and the stored state of snapshots. Out: tables that are to be read, and those
that are not published any more. This package must not know chunks, readers and the stream.
"""
