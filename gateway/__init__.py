"""The gateway sends the changes of a PostgreSQL database to Kafka as Avro records, in transactions.

The `__init__` of each folder says what comes in, what goes out, and what the folder must not depend
on.

In: settings, and PostgreSQL's replication stream. Out: topics, positions, status and metrics. The
gateway must not depend on Spark: the two sides share nothing but `schemas`.
"""

import schemas

IS_WALGATE = True  # walgate.py checks it: another distribution may have a package of this name

if not hasattr(schemas, "IS_WALGATE"):
    from walgate import refuse

    refuse(schemas)
