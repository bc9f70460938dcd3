"""Tables that `source.excluded_tables` leaves out of the stream."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gateway.kafka.topics import Topics
from gateway.names import is_table
from gateway.pgoutput.relation import Relation
from gateway.transactions.transaction import ExcludedTable

log = structlog.get_logger()


class ExcludedTables:
    """Decide which relations are left out. With `marks`, manifests name each such relation that has
    a topic, since readers may have copies of its rows."""

    def __init__(self, patterns: Sequence[str], topics: Topics, *, marks: bool) -> None:
        self.patterns = tuple(patterns)
        self._topics = topics
        self._marks = marks
        self._logged: set[str] = set()

    async def find(self, relation: Relation) -> ExcludedTable | None:
        """Return the excluded table of a relation, or None if the relation is not left out. Raises
        WalgateError."""
        name = relation.namespace, relation.name
        full_name = ".".join(name)
        pattern = next((pattern for pattern in self.patterns if is_table(full_name, [pattern])), None)
        if pattern is None:
            return None
        if pattern not in self._logged:  # once per pattern: tools create thousands of tables
            self._logged.add(pattern)
            log.info(
                "table_left_out",
                table=full_name,
                pattern=pattern,
                note="changes of tables that match a pattern of source.excluded_tables are counted "
                "(walgate_left_out_events_total), and not written to Kafka",
            )
        is_marked = self._marks and not await self._topics.without_topic([name])
        topic = self._topics.of_relation(name) if is_marked else self._topics.possible_names(name)[0]
        return ExcludedTable(relation.relation_oid, *name, topic, is_marked)
