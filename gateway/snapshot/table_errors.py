"""Errors that concern one table of a snapshot; all others can go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import InternalError, StopForOperator, UnwritableRelation, WalgateError
from gateway.postgres.errors import DRIVER_ERRORS
from gateway.startup.facts import PublishedRelation
from gateway.transactions.error_context import defect_of


class UnwritableTable(WalgateError):
    """`error`: why a row or the description of one table cannot be written. Every other table could go on: what that means is
    decided in gateway/runtime/quarantine.py."""

    def __init__(self, error: StopForOperator, relation_oid: int, name: tuple[str, str]) -> None:
        super().__init__(f"{error.message} (snapshot of {'.'.join(name)})", hint=error.hint)
        self.error = error
        self.oid = relation_oid
        self.name = name
        """(schema, table)"""


@contextmanager
def errors_of(relation: PublishedRelation) -> Iterator[None]:
    """Around what reads or writes its rows: raises UnwritableTable for what only concerns this table."""
    name = relation.namespace, relation.name
    try:
        yield
    except (UnwritableRelation, InternalError) as error:
        raise UnwritableTable(error, relation.relation_oid, name) from error
    except (WalgateError, MemoryError, *DRIVER_ERRORS):
        raise
    except Exception as error:
        defect = defect_of(error, f"(a row of {'.'.join(name)})")
        raise UnwritableTable(defect, relation.relation_oid, name) from error
