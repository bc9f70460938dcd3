"""The gateway: changes of a PostgreSQL database, sent to Kafka as Avro records in transactions.

Each folder is a room; its `__init__` says what comes in, what goes out, and what the room must not
know.

In: settings, and PostgreSQL's replication stream. Out: topics, positions, status and metrics. The
gateway must not know Spark: both sides share nothing but `schemas`.
"""

import schemas

IS_WALGATE = True  # walgate.py checks it: another distribution may have a package of this name

if not hasattr(schemas, "IS_WALGATE"):
    from walgate import refuse

    refuse(schemas)
