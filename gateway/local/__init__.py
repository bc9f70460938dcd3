"""PostgreSQL, Kafka and a schema registry on this machine, for the demo and the tests.

    async with LocalParts() as parts:
        parts.postgres.dsn, parts.kafka.bootstrap_servers, parts.registry.url

Every server listens on 127.0.0.1 only, has a private folder below the temporary folder, and ends
with this process, even if this process is killed (`guard_process.py`). The programs are those of
`artifacts.lock` and of the wheels of `walgate[local]`.

In: versions and settings of servers. Out: addresses of running servers. This package must not know
what the gateway does with them.
"""

from __future__ import annotations

from gateway.local.guard import Child, Guard, PartFailed
from gateway.local.kafka import Kafka
from gateway.local.parts import LocalParts
from gateway.local.postgres import Postgres
from gateway.local.registry import Registry

__all__ = ["Child", "Guard", "Kafka", "LocalParts", "PartFailed", "Postgres", "Registry"]
