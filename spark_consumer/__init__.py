"""Committed PostgreSQL changes in Spark: a data source over Walgate's topics, mirrors and change
logs.

    reader      markers, manifests, planning, counting, Kafka and registry; whole transactions without Spark
    columnar    Avro to Arrow, a column at a time
    source      format("walgate") and format("walgate-transactions"): `spark_consumer.source.datasource.register(spark)`
    mirror      Delta tables equal to the source's, to the transaction
    changelog   every change of every table, appended once
    jobs        the command line, the session, a job's life

`reader` needs no PySpark, pyarrow or numpy; `columnar` no PySpark.
"""

import sys

IS_WALGATE = True  # what walgate.py looks for: another distribution may have a package of this name

if sys.argv[:1] != ["-m"]:  # `python -m spark_consumer` looks itself, when the working directory is out of the way
    import schemas

    if not hasattr(schemas, "IS_WALGATE"):
        from walgate import refuse

        refuse(schemas)
