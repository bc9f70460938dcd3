"""Committed PostgreSQL changes in Spark: a data source over Walgate's topics, mirrors and
changelogs.

    reader      markers, manifests, planning, counting, Kafka, registry; transactions without Spark
    columnar    Avro to Arrow, one column at a time
    source      format("walgate") and format("walgate-transactions"): source.datasource.register
    mirror      Delta tables equal to the source's, to the transaction
    changelog   every change of every table, appended once
    jobs        the command line, the session, the lifecycle of a job

In: topics and the schema registry. Out: frames, tables, and their state. This package must not know
PostgreSQL or the gateway. `reader` needs no PySpark, pyarrow or numpy; `columnar` needs no PySpark.
"""

import sys

IS_WALGATE = True  # walgate.py checks for this: another distribution may have a package of this name

if sys.argv[:1] != ["-m"]:  # `python -m spark_consumer` checks it itself, once the working directory is off sys.path
    import schemas

    if not hasattr(schemas, "IS_WALGATE"):
        from walgate import refuse

        refuse(schemas)
