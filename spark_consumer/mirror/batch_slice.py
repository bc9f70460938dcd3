"""What a mirror applies at once: a batch, or a part of it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_consumer.mirror.batch_contents import BatchContent, TablePart
from spark_consumer.mirror.table_states import Mark, verified_chunks
from spark_consumer.reader.table_marks import SNAPSHOT_END
from spark_consumer.tables import TableName


@dataclass(frozen=True, slots=True)
class Verified:
    """The chunks of a VERIFY. `records`: those of each table, where they are few; else they are in `changes`."""

    changes: DataFrame
    records: dict[TableName, pa.Table] | None
    content: BatchContent


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """What is applied at once. `records`: those of each table, where they are few; else they are in `changes`.

    `verified`: what is compared with the tables behind all that, and written nowhere.
    """

    batch: int
    changes: DataFrame
    records: dict[TableName, pa.Table] | None
    content: BatchContent
    marks: list[Mark]
    verified: Verified | None = None

    @property
    def parts(self) -> list[TablePart]:
        """Of all its changes; a table may have one that is merged and one that is compared."""
        return [*self.content.parts, *(self.verified.content.parts if self.verified else ())]

    @property
    def transactions(self) -> int:
        return self.content.transactions + (self.verified.content.transactions if self.verified else 0)

    def snapshot_id(self, part: TablePart) -> str:
        """Of the chunks that are compared."""
        chunks = verified_chunks(self.marks)
        return str(next(mark.facts["snapshot_id"] for mark in chunks if mark.table == str(part.table)))

    def row_count(self, name: str) -> int:
        """Rows of the snapshot of a table that ended here."""
        ends = [mark.facts for mark in self.marks if mark.kind == SNAPSHOT_END and mark.table == name]
        return int(ends[-1]["row_count"])
