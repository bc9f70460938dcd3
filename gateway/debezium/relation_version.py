"""Write the records of one relation's rows in Debezium's dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.debezium.record_writer import DebeziumWriter, KeyedSink
from gateway.debezium.row_encoder import DebeziumEncoder
from gateway.debezium.source_block import SourceContext
from gateway.errors import StopForOperator
from gateway.events.change_key import ChangeKeys
from gateway.events.row_encoder import RowEncoder
from gateway.pgoutput.letters import INSERT, UPDATE
from gateway.pgoutput.row import TuplePart
from gateway.transactions.record_writer import RelationVersion
from gateway.transactions.transaction import RelationChangeTracker, Transaction

_NO_BLOCK: Final = b"\0"
_TICK: Final = 0xFF
"""A mask: the clock is read only at ordinals in which all bits of the mask are 0, so 256 rows of a
transaction have the same time of writing."""


class DebeziumVersion(RelationVersion):
    """A version of a relation whose changes become Debezium's records in `sink`. `records` encodes
    the rows; `encoder` gives only the keys that snapshots compare."""

    __slots__ = ("_keys", "_writer", "records", "sink")

    def __init__(
        self,
        name: str,
        schema_id: int,
        encoder: RowEncoder,
        records: DebeziumEncoder,
        sink: KeyedSink,
        writer: DebeziumWriter,
        changes: RelationChangeTracker | None = None,
        keys: ChangeKeys | None = None,
    ) -> None:
        super().__init__(name, schema_id, encoder, changes)
        self.records = records
        self.sink = sink
        self._writer = writer
        self._keys = keys

    @property
    def reads_tuples(self) -> bool:
        return True

    def expect_rows_of_leaves(self) -> None:
        super().expect_rows_of_leaves()
        self.records.expect_rows_of_leaves()

    def tracked(self, changes: RelationChangeTracker) -> RelationVersion:
        if self._keys is None:
            without_values = self.records.relation.without_values
            self._keys = ChangeKeys(self.encoder.description, self.encoder.key_frame, without_values)
        return DebeziumVersion(
            self.name, self.schema_id, self.encoder, self.records, self.sink, self._writer, changes, self._keys
        )

    def row(self, transaction: Transaction, kind: int, data: bytes, row: int, end: int, change_lsn: int) -> None:
        writer = self._writer
        if change_lsn <= writer.written_lsn and writer.was_written(self, transaction, kind, data, row, end, change_lsn):
            return
        if self.changes is not None:
            self.track(data, kind, row, end)
        source = writer.source
        if not transaction.ordinal & _TICK:
            writer.refresh(source)
        if kind == INSERT:
            if not writer.skips_creates:
                if writer.writes_blocks:
                    block = writer.block(transaction, self.name)
                else:
                    block = _NO_BLOCK
                    transaction.ordinal += 1
                key, value = self.records.insert(data, row, end, source, change_lsn, block)
                self.sink.append_hashed(key, value)
        elif kind == UPDATE:
            if not self.records.new_tuple_only(data, row, end):
                self._change_both(transaction, source, data, row, end, change_lsn)
            elif not writer.skips_updates:
                block = writer.block(transaction, self.name)
                key, value = self.records.update(data, row, end, source, change_lsn, block)
                self.sink.append_hashed(key, value)
        elif not writer.skips_deletes:
            key, before = self.records.delete(data, row, end)
            self._delete(transaction, source, key, before, change_lsn)

    def _change_both(
        self, transaction: Transaction, source: SourceContext, data: bytes, row: int, end: int, change_lsn: int
    ) -> None:
        """Write an UPDATE whose message has a key tuple or an old tuple."""
        writer, records = self._writer, self.records
        old_key, before, key, after = records.both(data, row, end)
        if old_key == key:
            if not writer.skips_updates:
                block = writer.block(transaction, self.name)
                self.sink.append_hashed(key, records.updated(before, after, source, change_lsn, block))
            return
        if not writer.skips_deletes:
            self._delete(transaction, source, old_key, before, change_lsn)
        if not writer.skips_creates:
            block = writer.block(transaction, self.name)
            self.sink.append_hashed(key, records.created(after, source, change_lsn, block))

    def _delete(
        self, transaction: Transaction, source: SourceContext, key: bytes | None, before: list[bytes], change_lsn: int
    ) -> None:
        block = self._writer.block(transaction, self.name)
        self.sink.append_hashed(key, self.records.deleted(before, source, change_lsn, block))
        if key is not None and self._writer.writes_tombstones:
            self.sink.append_hashed(key, None)

    def truncate(self, transaction: Transaction, change_lsn: int) -> None:
        writer = self._writer
        block = writer.block(transaction, self.name)
        self.sink.append_hashed(None, self.records.truncate(writer.source, change_lsn, block))

    def read(self, transaction: Transaction, rows: Iterable[tuple[bytes | None, bytes]], change_lsn: int) -> None:
        """Write rows of a snapshot, each a pair of its key and its tuple."""
        source = self._writer.source_of(transaction, is_read=True)
        self._writer.refresh(source)
        read, append = self.records.of_copies().read, self.sink.append_hashed
        for _, data in rows:
            append(*read(data, source, change_lsn))
            transaction.ordinal += 1

    def track(self, data: bytes, kind: int, row: int, end: int) -> None:
        changes = self.changes
        if changes is None or self._keys is None:
            return
        key, old_key, lacks_values = self._keys.of(data, kind, row, end)
        changes.hold_key(key)
        if old_key != key:
            changes.hold_key(old_key)
        if lacks_values:
            changes.left_out(self.encoder, key, old_key)

    def failing(self, part: TuplePart) -> str | None:
        return self.records.failing(part)

    def too_large(self, what: str, size: int) -> StopForOperator:
        return self.sink.too_large(what, size)
