"""Row messages -> records of Debezium's dialect, for one version of a relation.

A tuple is read as in gateway/events/row_encoder.py: there is one reader per column, and their
results are joined once. A row that these readers cannot take is parsed and encoded value by value.
The layout is that of `gateway.debezium.envelope_schema.envelope_schema`: before, after, source,
transaction, op, and the time at which the record was written. Most parts of `source` are shared by
the rows of a transaction (source_block.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i16_be

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.connect_codec import connect_codec, null_value, placeholder, skip_column
from gateway.debezium.envelope_schema import ConnectColumn, ConnectRelation
from gateway.debezium.source_block import SourceContext
from gateway.errors import UnwritableRelation
from gateway.events.errors import NeedsOptional, key_not_sent, place_of_value, unreadable_value
from gateway.events.row_encoder import key_of_leaf
from gateway.events.row_encoder_slow import MALFORMED
from gateway.pgoutput.cursor import Cursor
from gateway.pgoutput.letters import KEY_TUPLE, NEW_TUPLE, OLD_TUPLE
from gateway.pgoutput.row import HEAD_BYTES, TuplePart, check_column_count, read_earlier, read_earlier_and_new, read_new
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text
from gateway.transactions.record_writer import LeftOut
from gateway.values.column_codec import Codec
from gateway.values.column_readers import NOT_PLAIN, NOTHING, Parts, Reader, SlowPathNeeded, some_bytes
from gateway.values.row_readers import RowReaders
from gateway.values.special_values import NotRenderable, UnrepresentableValue
from schemas.varint import CHUNK_BITS, CHUNK_MASK, HIGH, MORE, TWO_CHUNKS_END, encode_long
from schemas.wire_format import frame

Key = bytes | None
Unconvertible = Callable[[str, str, str], None]
"""A function that is called with (relation, column, reason) when a field is written without its
value. It may raise an error instead."""

_ONLY_AFTER: Final = b"\0\2"
_NEITHER: Final = b"\0\0"
_SOME: Final = b"\2"
_NULL: Final = b"\0"
_CREATE, _UPDATE, _DELETE, _TRUNCATE, _READ = (some_bytes(letter)[1:] for letter in (b"c", b"u", b"d", b"t", b"r"))
_MESSAGES: Final = {_CREATE: "Insert", _UPDATE: "Update", _READ: "COPY"}


class DebeziumEncoder:
    """The encoder of one version of a relation.

    In its methods, `position` is the index of the byte after the relation oid, and `end` that of
    the byte after the message. Returned keys and values are framed. `block` is the row's
    transaction block in Avro, or Avro's null if there is none. Methods raise PgOutputError,
    UnknownBinary, UnreadableValue, KeyNotSent, NeedsOptional, UnwritableRelation, and what
    `unconvertible` raises.
    """

    def __init__(
        self,
        relation: ConnectRelation,
        value_schema_id: int,
        key_schema_id: int | None,
        options: DebeziumSettings,
        unconvertible: Unconvertible,
        left_out: LeftOut | None = None,
    ) -> None:
        self.relation = relation
        self._name = relation.description.qualified_name
        self._columns = relation.columns
        self._count = len(relation.columns)
        self._without_values = relation.without_values
        self._schema_ids = value_schema_id, key_schema_id
        self._options = options
        self._frame = frame(value_schema_id)
        self._head = self._frame + _ONLY_AFTER
        self._key_frame = None if key_schema_id is None else frame(key_schema_id)
        self._unconvertible = unconvertible
        self._left_out = left_out
        self._fast_letters: tuple[int, ...] = (OLD_TUPLE, KEY_TUPLE)
        """Letters of the old tuples that need no look at whether they have only the key."""
        self._codecs = [None if column is None else connect_codec(column) for column in self._columns]
        of_key_tuples = [
            None if column is None else connect_codec(column, in_key_tuple=True) for column in self._columns
        ]
        self._placeholders = [
            None if column is None else placeholder(column, options.unavailable_value_placeholder)
            for column in self._columns
        ]
        sends_binary = [column.facts.sends_binary for column in relation.description.columns]
        never = [False] * self._count
        self._text_of_keys = RowReaders(_readers(of_key_tuples, never))
        self._text = RowReaders(_readers(self._codecs, never), like=self._text_of_keys)
        self._binary_of_keys = RowReaders(_readers(of_key_tuples, sends_binary))
        self._binary = RowReaders(_readers(self._codecs, sends_binary), like=self._binary_of_keys)
        names = relation.description.namespace, relation.description.name
        self._table = b"".join(some_bytes(name.encode())[1:] for name in names)
        self._source: SourceContext | None = None
        self._tail = b""
        self._copies: DebeziumEncoder | None = None
        self._copied_in_binary: list[bool] | None = None
        """In an encoder of copies, whether each column came in binary form last; otherwise None."""
        self._read_with(self._text, self._text_of_keys)

    def expect_rows_of_leaves(self) -> None:
        """Expect old tuples that have only the key (see RowEncoder.has_rows_of_leaves)."""
        self._fast_letters = (KEY_TUPLE,)

    def _read_with(self, readers: RowReaders, of_keys: RowReaders) -> None:
        self._readers = readers
        self._runs = readers.runs
        self._runs_of_keys = of_keys.runs
        self._key_parts = readers.parts_of(self.relation.key)
        # The place of the key's only part, counted from the head; 0 without a key, or if the key
        # has several parts.
        self._only_key_part = 1 + self._key_parts[0] if self._key_frame and len(self._key_parts) == 1 else 0

    # -- records

    def insert(
        self, data: bytes, position: int, end: int, source: SourceContext, change_lsn: int, block: bytes
    ) -> tuple[Key, bytes]:
        return self._only_new(_CREATE, data, position, end, source, change_lsn, block)

    def of_copies(self) -> DebeziumEncoder:
        """Return the encoder for `read`. Its readers are not those of the stream: COPY may send
        binary while the stream is text, or only some columns in binary."""
        if self._copies is None:
            copies = DebeziumEncoder(self.relation, *self._schema_ids, self._options, self._unconvertible)
            copies._copied_in_binary = [False] * self._count
            self._copies = copies
        return self._copies

    def read(self, data: bytes, source: SourceContext, change_lsn: int) -> tuple[Key, bytes]:
        """Encode a row of a snapshot, which has the form of a message's new tuple and belongs to no
        transaction. This is a method of `of_copies`."""
        return self._only_new(_READ, data, 0, len(data), source, change_lsn, _NULL)

    def new_tuple_only(self, data: bytes, position: int, end: int) -> bool:
        """Return whether an Update message has only a new tuple, which means that the key did not
        change."""
        return position < end and data[position] == NEW_TUPLE

    def update(
        self, data: bytes, position: int, end: int, source: SourceContext, change_lsn: int, block: bytes
    ) -> tuple[Key, bytes]:
        """Encode an Update message for which `new_tuple_only` returns True."""
        return self._only_new(_UPDATE, data, position, end, source, change_lsn, block)

    def both(self, data: bytes, position: int, end: int) -> tuple[Key, Parts, Key, Parts]:
        """Return the old key and row and the new key and row of an Update message that has both."""
        before: Parts = []
        after: Parts = []
        try:
            if data[position] in self._fast_letters:
                place = self._read_tuple(data, position, before)
                if data[place] == NEW_TUPLE and self._read_tuple(data, place, after) == end:
                    return self._key(before), before, self._key(after), after
        except NOT_PLAIN:
            pass
        cursor = Cursor(data[position:end], 0, "Update", HEAD_BYTES)
        earlier, new = read_earlier_and_new(cursor)
        cursor.finish()
        assert earlier is not None
        earlier = self._as_leaf_sent(self._checked(earlier, cursor))
        self._checked(new, cursor)
        old_row, new_row = self._encoded(earlier, None), self._encoded(new, earlier)
        self._report_left_out(new, data, position, end, earlier)
        return self._key_of(earlier, old_row, None), old_row, self._key_of(new, new_row, earlier), new_row

    def updated(self, before: Parts, after: Parts, source: SourceContext, change_lsn: int, block: bytes) -> bytes:
        return self._record([self._frame, _SOME, *before, _SOME, *after], source, change_lsn, block, _UPDATE)

    def deleted(self, before: Parts, source: SourceContext, change_lsn: int, block: bytes) -> bytes:
        return self._record([self._frame, _SOME, *before, _NULL], source, change_lsn, block, _DELETE)

    def created(self, after: Parts, source: SourceContext, change_lsn: int, block: bytes) -> bytes:
        return self._record([self._frame, _ONLY_AFTER, *after], source, change_lsn, block, _CREATE)

    def delete(self, data: bytes, position: int, end: int) -> tuple[Key, Parts]:
        """Return the old key and row of a Delete message."""
        before: Parts = []
        try:
            if data[position] in self._fast_letters and self._read_tuple(data, position, before) == end:
                return self._key(before), before
        except NOT_PLAIN:
            pass
        cursor = Cursor(data[position:end], 0, "Delete", HEAD_BYTES)
        earlier = self._as_leaf_sent(self._checked(read_earlier(cursor), cursor))
        cursor.finish()
        row = self._encoded(earlier, None)
        return self._key_of(earlier, row, None), row

    def truncate(self, source: SourceContext, change_lsn: int, block: bytes) -> bytes:
        return self._record([self._frame, _NEITHER], source, change_lsn, block, _TRUNCATE)

    def _only_new(
        self,
        operation: bytes,
        data: bytes,
        position: int,
        end: int,
        source: SourceContext,
        change_lsn: int,
        block: bytes,
    ) -> tuple[Key, bytes]:
        """Return key and record of a message that has only a new tuple. This is the hot path."""
        after: Parts = [self._head]
        try:
            if data[position] == NEW_TUPLE and read_i16_be(data, position + 1) == self._count:
                place = position + 3
                for read in self._runs:
                    place = read(data, place, after)
                if place == end:
                    if self._only_key_part:
                        key: Key = self._key_frame + after[self._only_key_part]  # type: ignore[operator]
                    else:
                        key = self._key(after[1:])
                    return key, self._record(after, source, change_lsn, block, operation)
        except NOT_PLAIN:
            pass
        cursor = Cursor(data[position:end], 0, _MESSAGES[operation], HEAD_BYTES)
        new = self._checked(read_new(cursor), cursor)
        cursor.finish()
        row = self._encoded(new, None)
        self._report_left_out(new, data, position, end)
        return self._key_of(new, row, None), self._record([self._head, *row], source, change_lsn, block, operation)

    def _record(self, parts: Parts, source: SourceContext, change_lsn: int, block: bytes, operation: bytes) -> bytes:
        """Complete a record. `parts` is everything before `source`."""
        if source is not self._source:
            self._source = source
            self._tail = source.times + self._table + source.transaction
        digits = b"%d" % change_lsn
        if change_lsn >= TWO_CHUNKS_END:  # `encode_lsn` written out
            zigzag = change_lsn << 1
            lsn, lsn_middle = MORE[zigzag & CHUNK_MASK], MORE[zigzag >> CHUNK_BITS & CHUNK_MASK]
            lsn_end = HIGH[zigzag >> 2 * CHUNK_BITS]
        else:
            lsn, lsn_middle, lsn_end = encode_long(change_lsn), NOTHING, NOTHING
        head = source.head if len(digits) == source.digits else source.head_of(len(digits))
        parts += (head, digits, self._tail, lsn, lsn_middle, lsn_end, source.end, block, operation, source.written)
        return b"".join(parts)

    # -- tuples

    def _read_tuple(self, data: bytes, position: int, parts: Parts) -> int:
        if read_i16_be(data, position + 1) != self._count:
            raise SlowPathNeeded
        place = position + 3
        for read in self._runs_of_keys if data[position] == KEY_TUPLE else self._runs:
            place = read(data, place, parts)
        return place

    def _key(self, row: Parts) -> Key:
        if self._key_frame is None:
            return None
        return self._key_frame + b"".join([row[at] for at in self._key_parts])

    def _checked(self, part: TuplePart, cursor: Cursor) -> TuplePart:
        """Check the number of columns, and switch to the binary readers once the server sends
        binary; for copies, to the readers of the forms that the columns have."""
        check_column_count(part, self._count, cursor)
        if self._copied_in_binary is not None:
            forms = [
                isinstance(value, Binary) if isinstance(value, Text | Binary) else known
                for value, known in zip(part.values, self._copied_in_binary, strict=True)
            ]
            if forms != self._copied_in_binary:
                self._copied_in_binary = forms
                readers = RowReaders(_readers(self._codecs, forms), like=self._text_of_keys)
                self._read_with(readers, readers)
        elif self._readers is not self._binary and Binary in map(type, part.values):
            self._read_with(self._binary, self._binary_of_keys)
        return part

    def _is_sent_in(self, earlier: TuplePart, index: int) -> bool:
        """Return whether an old tuple has the value of a column: a tuple of the key has only the
        key's."""
        if earlier.letter == OLD_TUPLE:
            return True
        is_key = self.relation.description.columns[index].identity
        return is_key and isinstance(earlier.values[index], Text | Binary)

    def _as_leaf_sent(self, earlier: TuplePart) -> TuplePart:
        return earlier if earlier.letter in self._fast_letters else key_of_leaf(earlier, self.relation.description)

    def _encoded(self, part: TuplePart, earlier: TuplePart | None) -> Parts:
        """Return one part for each column of the record. An UNCHANGED value is taken from
        `earlier`, the old or key tuple, if that tuple has it. A key tuple has NULL in all columns
        outside the key."""
        row: Parts = []
        for index, column in enumerate(self._columns):
            if column is None:
                continue
            tuple_ = part
            if part.values[index] is UNCHANGED and earlier is not None and self._is_sent_in(earlier, index):
                tuple_ = earlier
            row.append(self._value(tuple_, index, column))
        return row

    def failing(self, part: TuplePart) -> str | None:
        """Return the column and byte of the first value whose encoder raises anything but
        UnrepresentableValue, for the report of an unexpected error."""
        for index, (each, value) in enumerate(zip(self._codecs, part.values, strict=False)):
            if each is not None and isinstance(value, Text | Binary):
                encode = each.from_text if isinstance(value, Text) else each.from_binary
                try:
                    if encode is not None:
                        encode(value.value)
                except UnrepresentableValue:
                    continue
                except Exception:
                    return place_of_value(self.relation.description, part, index)
        return None

    def _report_left_out(
        self, new: TuplePart, data: bytes, position: int, end: int, earlier: TuplePart | None = None
    ) -> None:
        if self._left_out is not None and any(
            value is UNCHANGED
            and index not in self._without_values
            and (earlier is None or not self._is_sent_in(earlier, index))
            for index, value in enumerate(new.values)
        ):
            self._left_out(self.relation.description.oid, data, position, end)

    def _value(self, part: TuplePart, index: int, column: ConnectColumn) -> bytes:
        value = part.values[index]
        if value is None:
            if not column.is_optional and part.letter != KEY_TUPLE:
                reason = "a row that was written before the column became NOT NULL contains NULL"
                raise NeedsOptional(self._name, self.relation.description.oid, column.name, reason)
            return null_value(column)
        if not isinstance(value, Text | Binary):
            found = self._placeholders[index]
            return (
                self._without(index, column, "it was not sent, because it is an unchanged TOASTed value")
                if found is None
                else found
            )
        each = self._codecs[index]
        assert each is not None
        encode = each.from_text if isinstance(value, Text) else each.from_binary
        try:
            if encode is None:
                raise NotRenderable
            return encode(value.value)
        except UnrepresentableValue:
            return self._without(index, column, "its Kafka Connect type cannot represent the value")
        except (NotRenderable, *MALFORMED) as error:
            raise unreadable_value(self.relation.description, part, index, error) from None

    def _without(self, index: int, column: ConnectColumn, reason: str) -> bytes:
        if index in self.relation.key:
            raise UnwritableRelation(
                f"{self._name}, column {column.name} is part of the key: {reason}",
                hint="set debezium.decimal_handling_mode = string for a numeric column, or a coarser "
                "debezium.time_precision_mode for a date or time column. In both cases also set schemas.on_incompatible = "
                "register, because the type of the key changes",
            )
        self._unconvertible(self._name, column.name, reason)
        if not column.is_optional:
            raise NeedsOptional(self._name, self.relation.description.oid, column.name, reason)
        return null_value(column)

    def _key_of(self, part: TuplePart, row: Parts, earlier: TuplePart | None) -> Key:
        """Return the framed key. `row` has one part for each column of the record."""
        if self._key_frame is None:
            return None
        parts = []
        for at in self.relation.key:
            column = self._columns[at]
            assert column is not None
            sent = part
            if part.values[at] is UNCHANGED:
                if earlier is None or earlier.values[at] is UNCHANGED:
                    raise key_not_sent(self.relation.description, part, at)
                sent = earlier
            parts.append(self._value(sent, at, column))
        return self._key_frame + b"".join(parts)


def _readers(codecs: list[Codec | None], sends_binary: list[bool]) -> list[Reader]:
    """Return the columns' readers. `sends_binary` holds True for each column that is sent in
    binary."""
    return [
        skip_column if each is None else each.read_binary if is_binary else each.read_text
        for each, is_binary in zip(codecs, sends_binary, strict=True)
    ]
