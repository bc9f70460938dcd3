"""The value schemas that a mirror knows, and the columns that each gives a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_consumer.mirror.slice_contents import TablePart
from spark_consumer.mirror.tables.columns import texts_of
from spark_consumer.mirror.tables.table_schema import TableSchema
from spark_consumer.reader.registry import Schema


@dataclass
class TableSchemas:
    """The TableSchema of each of `schemas`, by id, created on first use."""

    schemas: dict[int, Schema]
    _shapes: dict[int, TableSchema] = field(default_factory=dict, init=False)

    def of(self, schema_id: int) -> TableSchema:
        if schema_id not in self._shapes:
            self._shapes[schema_id] = TableSchema.of(self.schemas[schema_id])
        return self._shapes[schema_id]

    def oid_of(self, schema_id: int) -> int:
        return self.of(schema_id).oid

    def find(self, schema_id: int | None) -> TableSchema | None:
        """Return the TableSchema of `schema_id`, or None if it is None or the schema was not
        stored, as in older releases."""
        return None if schema_id is None or schema_id not in self.schemas else self.of(schema_id)

    def texts(self, part: TablePart) -> dict[int, str]:
        """Return the JSON text of the schemas of the part's records, adapted to the columns of the
        newest one."""
        schemas = {schema_id: (self.schemas[schema_id], self.of(schema_id)) for schema_id in part.schema_ids}
        return texts_of(schemas, part.newest)
