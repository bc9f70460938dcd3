"""The demo: a shop whose data changes, its replication to Spark, and a comparison of the copy with
the source.

In: options of the command, and local servers. Out: a panel, a verdict and one line of JSON. The
demo must not know the insides of the product: it starts the programs that users start.
"""
