"""Encode row messages as Avro records, for one version of a relation. The state machine calls
`insert`, `update`, `delete` and `truncate` for the rows of the stream; a snapshot's CopyDecoder
calls `copied`. Debezium's records are encoded by gateway/debezium/row_encoder.py.

A message is read in place: its TupleData (manual 55.9) is converted directly to Avro, without
intermediate dataclasses or Python values. There are two paths:

* The fast path is for nearly all rows: those with only values and NULLs. It has one reader for each
  column (gateway/values/column_readers.py), or for a run of columns
  (gateway/values/row_readers.py), and joins the parts from all readers once.
* For anything else (an UNCHANGED column, a value that its Avro type cannot hold, a key tuple,
  invalid data), the readers raise an exception. gateway/pgoutput then parses the message, and
  gateway/events/row_encoder_slow.py encodes or refuses it.

The envelope's layout is `schemas.change_schema.change_schema`; a test compares the bytes with
fastavro's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from librt.strings import read_i16_be

from gateway.events.row_encoder_slow import TupleCodec
from gateway.events.transaction_context import TransactionContext
from gateway.pgoutput.cursor import Cursor
from gateway.pgoutput.letters import KEY_TUPLE, KIND_UNCHANGED, NEW_TUPLE, OLD_TUPLE
from gateway.pgoutput.row import HEAD_BYTES, TuplePart, check_column_count, read_earlier, read_earlier_and_new, read_new
from gateway.pgoutput.tuple_data import Binary
from gateway.values.column_readers import NOT_PLAIN, NOTHING, Parts, SlowPathNeeded, some_bytes
from gateway.values.row_readers import RowReaders
from schemas.change_schema import BEFORE_PREFIX, OPERATIONS, field_names
from schemas.relation import RelationDescription
from schemas.varint import CHUNK, CHUNK_BITS, CHUNK_MASK, HIGH, LAST, MORE, TWO_CHUNKS_END, encode_long
from schemas.wire_format import frame

Key = bytes | None

_INSERT, _UPDATE, _DELETE, _TRUNCATE, _READ = (encode_long(OPERATIONS.index(name)) for name in OPERATIONS)
_NULL: Final = b"\0"
_SOME: Final = b"\2"
_ONLY_AFTER: Final = b"\0\0\0\2"
"""key_change false, old_key null, before null, after not null."""
_BEFORE: Final = b"\0\0\2"
"""key_change false, old_key null, before not null."""
_NO_TRAILING_FIELDS: Final = b"\0\0"
"""unchanged, special: empty array, empty map."""
_FIRST_COLUMN: Final = 8
"""The number of parts that a record has before its first column."""
_SMALL_ORDINAL: Final = CHUNK >> 1
_COPIED_HEAD: Final = [NOTHING] * (_FIRST_COLUMN - 1) + [_ONLY_AFTER]
_OUTSIDE: Final = TransactionContext(0, -1, 0, None, None, None)
_HEAD_IN_STREAM_BYTES: Final = HEAD_BYTES + 4
"""The counterpart of HEAD_BYTES inside a stream, with the xid."""


class RowEncoder:
    """Encode the rows of one version of a relation. `key_schema_id` is None for a relation without
    identity.

    `position` is the place after the relation oid, and `end` the place after the message. Keys and
    values are framed. The methods raise PgOutputError, UnknownBinary, UnreadableValue, KeyNotSent.
    """

    def __init__(self, description: RelationDescription, value_schema_id: int, key_schema_id: int | None) -> None:
        self.description = description
        self._tuples = TupleCodec(description)
        self._count = len(description.columns)
        self._names = field_names(description)
        value_frame = frame(value_schema_id)
        self._insert_head = value_frame + _INSERT
        self._update_head = value_frame + _UPDATE
        self._delete_head = value_frame + _DELETE
        self._truncate_head = value_frame + _TRUNCATE
        self.read_head = value_frame + _READ
        self.left_out_count = 0
        """The number of UPDATEs whose new tuples left columns out (UNCHANGED)."""
        self.has_rows_of_leaves = False
        """Whether rows come from partitions of which some do not have the REPLICA IDENTITY FULL of
        this relation: their old tuples have only the key."""
        self._schema_ids = value_schema_id, key_schema_id
        self._follows_wire = True
        self.key_frame = None if key_schema_id is None else frame(key_schema_id)
        self._read_with(self._tuples.text_readers)

    def _read_with(self, readers: RowReaders) -> None:
        self._readers = readers
        self._runs = readers.runs
        # The parts of the row whose bytes are also the key's; None if a column has another form in
        # the key than in the row.
        self._key_parts: tuple[int, ...] | None = None
        self._only_key_part = -1
        self._key_slice: slice | None = None
        if self._tuples.key_places is not None:
            self._key_parts = readers.parts_of(self._tuples.key_places)
            if len(self._key_parts) == 1:
                self._only_key_part = _FIRST_COLUMN + self._key_parts[0]
            elif self._key_parts and self._key_parts[-1] - self._key_parts[0] == len(self._key_parts) - 1:
                self._key_slice = slice(_FIRST_COLUMN + self._key_parts[0], _FIRST_COLUMN + self._key_parts[-1] + 1)

    def update(
        self, data: bytes, position: int, end: int, context: TransactionContext, change_lsn: int, ordinal: int
    ) -> tuple[Key, bytes, tuple[Key, bytes] | None]:
        """Encode an Update message. Return the key, the value and, if the key has changed, the
        DELETE with the old key."""
        first = data[position] if position < end else -1
        if first == NEW_TUPLE:
            key, value = self.insert(data, position, end, context, change_lsn, ordinal, self._update_head)
            return key, value, None
        if first == OLD_TUPLE and not self.has_rows_of_leaves:
            return self._update_with_old(data, position, end, context, change_lsn, ordinal)
        return self._update_slowly(data, position, end, context, change_lsn, ordinal)

    def delete(
        self, data: bytes, position: int, end: int, context: TransactionContext, change_lsn: int, ordinal: int
    ) -> tuple[Key, bytes]:
        envelope = self._envelope(self._delete_head, context, change_lsn, ordinal)
        is_whole = position < end and data[position] == OLD_TUPLE and not self.has_rows_of_leaves
        if self._key_parts is not None and is_whole:
            before: list[bytes] = []
            with suppress(*NOT_PLAIN):
                if self._read_tuple(data, position, before) == end:
                    key = [before[index] for index in self._key_parts]
                    return self._framed(key), b"".join([*envelope, _BEFORE, *before, _NULL, _NO_TRAILING_FIELDS])
        return self._delete_slowly(envelope, data, position, end, context)

    def of_copies(self, is_binary: Sequence[bool]) -> RowEncoder:
        """Return another encoder, for `copied`. `is_binary` tells for each column whether its
        values are in binary form."""
        encoder = RowEncoder(self.description, *self._schema_ids)
        encoder._follows_wire = False
        encoder._read_with(encoder._tuples.mixed_readers(is_binary))
        return encoder

    def copied(self, data: bytes, end: int) -> tuple[Key, bytes]:
        """Encode a row that was read by COPY and is in the form of a new tuple at data[:end].
        Return the key, and the READ event without its envelope."""
        parts = _COPIED_HEAD.copy()
        try:
            place = 3
            for read in self._runs:
                place = read(data, place, parts)
            if place == end:
                parts.append(_NO_TRAILING_FIELDS)
                if self._only_key_part >= 0:
                    return self.key_frame + parts[self._only_key_part], b"".join(parts)  # type: ignore[operator]
                return self._key_of_parts(parts, data, 0), b"".join(parts)
        except NOT_PLAIN:
            pass
        return self._only_new_slowly(_COPIED_HEAD, data, 0, end, _OUTSIDE, "COPY")

    def truncate(self, context: TransactionContext, change_lsn: int, ordinal: int) -> bytes:
        envelope = self._envelope(self._truncate_head, context, change_lsn, ordinal)
        return b"".join([*envelope, _NULL, _NULL, _NULL, _NULL, _NO_TRAILING_FIELDS])

    def failing(self, part: TuplePart) -> str | None:
        """Return the column and byte of the first value that cannot be encoded."""
        return self._tuples.failing(part)

    # -- the fast path

    def insert(
        self,
        data: bytes,
        position: int,
        end: int,
        context: TransactionContext,
        change_lsn: int,
        ordinal: int,
        update_head: bytes | None = None,
    ) -> tuple[Key, bytes]:
        """Encode an Insert message or, with `update_head`, an Update message that has only the new
        tuple. Both have one function, because the time for a further call counts here.

        Including the key and the state machine (bench/encode.py), a row in binary form takes 1.8 us
        with 3 columns, 3.2 us with 7 common ones, and 11.5 us with 50. In text form, it takes 2.2,
        4.4 and 21 us.
        """
        place_in_transaction = LAST[ordinal << 1] if ordinal < _SMALL_ORDINAL else encode_long(ordinal)
        if change_lsn >= TWO_CHUNKS_END:  # `encode_lsn`, inlined
            zigzag = change_lsn << 1
            lsn, lsn_middle = MORE[zigzag & CHUNK_MASK], MORE[zigzag >> CHUNK_BITS & CHUNK_MASK]
            lsn_end = HIGH[zigzag >> 2 * CHUNK_BITS]
        else:
            lsn, lsn_middle, lsn_end = encode_long(change_lsn), NOTHING, NOTHING
        parts = [
            self._insert_head if update_head is None else update_head, context.identity, lsn, lsn_middle, lsn_end,
            place_in_transaction, context.commit, _ONLY_AFTER,
        ]  # fmt: skip
        try:
            place = position + 3
            if data[position] == NEW_TUPLE and read_i16_be(data, position + 1) == self._count:
                for read in self._runs:
                    place = read(data, place, parts)
                if place == end:
                    parts.append(_NO_TRAILING_FIELDS)
                    if self._only_key_part >= 0:
                        return self.key_frame + parts[self._only_key_part], b"".join(parts)  # type: ignore[operator]
                    return self._key_of_parts(parts, data, position), b"".join(parts)
        except SlowPathNeeded:
            with suppress(*NOT_PLAIN):
                return self._new_without_unchanged(parts[:_FIRST_COLUMN], data, position, end)
        except NOT_PLAIN:
            pass
        name = "Insert" if update_head is None else "Update"
        return self._only_new_slowly(parts[:_FIRST_COLUMN], data, position, end, context, name)

    def _new_without_unchanged(self, parts: list[bytes], data: bytes, position: int, end: int) -> tuple[Key, bytes]:
        """Encode the new tuple of an UPDATE that has UNCHANGED columns and nothing else unusual, as
        is common for tables with large values. The tuple's letter and column count have been
        checked."""
        unchanged: list[str] = []
        place = position + 3
        for index, read in enumerate(self._readers.columns):
            if data[place] == KIND_UNCHANGED and index not in self._tuples.hidden:
                if self.description.columns[index].identity:
                    raise SlowPathNeeded
                unchanged.append(self._names[index])
                parts += self._readers.nulls[index]
                place += 1
            else:
                place = read(data, place, parts)
        if place != end:
            raise SlowPathNeeded
        self.left_out_count += 1
        parts += _trailing_fields(unchanged, [])
        return self._key_of_parts(parts, data, position), b"".join(parts)

    def _update_with_old(
        self, data: bytes, position: int, end: int, context: TransactionContext, change_lsn: int, ordinal: int
    ) -> tuple[Key, bytes, tuple[Key, bytes] | None]:
        """Encode an Update message that has an old tuple, as under REPLICA IDENTITY FULL."""
        if self._key_parts is None:
            return self._update_slowly(data, position, end, context, change_lsn, ordinal)
        before: list[bytes] = []
        after: list[bytes] = []
        try:
            place = self._read_tuple(data, position, before)
            if data[place] != NEW_TUPLE or self._read_tuple(data, place, after) != end:
                return self._update_slowly(data, position, end, context, change_lsn, ordinal)
        except NOT_PLAIN:
            return self._update_slowly(data, position, end, context, change_lsn, ordinal)
        old_key = [before[index] for index in self._key_parts]
        new_key = [after[index] for index in self._key_parts]
        envelope = self._envelope(self._update_head, context, change_lsn, ordinal)
        value = b"".join([*envelope, _BEFORE, *before, _SOME, *after, _NO_TRAILING_FIELDS])
        moved = None
        if old_key != new_key:
            envelope[0] = self._delete_head
            gone = b"".join([*envelope, b"\1\0\2", *before, _NULL, _NO_TRAILING_FIELDS])
            moved = (self._framed(old_key), gone)
        return self._framed(new_key), value, moved

    def _read_tuple(self, data: bytes, position: int, parts: Parts) -> int:
        if read_i16_be(data, position + 1) != self._count:
            raise SlowPathNeeded
        place = position + 3
        for read in self._runs:
            place = read(data, place, parts)
        return place

    def _key_of_parts(self, parts: list[bytes], data: bytes, position: int) -> Key:
        if self.key_frame is None:
            return None
        if self._key_slice is not None:
            return self.key_frame + b"".join(parts[self._key_slice])
        if self._key_parts is not None:
            return self.key_frame + b"".join([parts[_FIRST_COLUMN + index] for index in self._key_parts])
        return self.key_frame + b"".join(self._tuples.encode_key_at(data, position + 1))

    # -- the slow path

    def _only_new_slowly(
        self, parts: list[bytes], data: bytes, position: int, end: int, context: TransactionContext, name: str
    ) -> tuple[Key, bytes]:
        cursor = _cursor(data, position, end, context, name)
        new = self._checked(read_new(cursor), cursor)
        cursor.finish()
        row, unchanged, special = self._tuples.encode(new, "")
        if unchanged:
            self.left_out_count += 1
        key = self._framed(self._tuples.encode_key(new, None))
        return key, b"".join([*parts, *row, *_trailing_fields(unchanged, special)])

    def _update_slowly(
        self, data: bytes, position: int, end: int, context: TransactionContext, change_lsn: int, ordinal: int
    ) -> tuple[Key, bytes, tuple[Key, bytes] | None]:
        """Encode an Update message that has a key tuple or an old tuple; `update` has checked that
        the new tuple is not the first."""
        cursor = _cursor(data, position, end, context, "Update")
        earlier, new = read_earlier_and_new(cursor)
        cursor.finish()
        assert earlier is not None
        earlier = self._as_leaf_sent(self._checked(earlier, cursor))
        self._checked(new, cursor)
        old_key, new_key = self._tuples.encode_key(earlier, None), self._tuples.encode_key(new, earlier)
        before: list[bytes] = [_NULL]
        unchanged: list[str] = []
        special: list[tuple[str, bytes]] = []
        if earlier.letter == OLD_TUPLE:
            row, unchanged, special = self._tuples.encode(earlier, BEFORE_PREFIX)
            before = [_SOME, *row]
        sent_key = [_SOME, *old_key] if earlier.letter == KEY_TUPLE else [_NULL]
        moved = None
        envelope = self._envelope(self._delete_head, context, change_lsn, ordinal)
        if old_key != new_key:
            gone = [*envelope, b"\1", *sent_key, *before, _NULL, *_trailing_fields(unchanged, special)]
            moved = (self._framed(old_key), b"".join(gone))
        envelope[0] = self._update_head
        row, more_unchanged, more_special = self._tuples.encode(new, "")
        if more_unchanged:
            self.left_out_count += 1
        trailing = _trailing_fields(unchanged + more_unchanged, special + more_special)
        value = b"".join([*envelope, _NULL, *sent_key, *before, _SOME, *row, *trailing])
        return self._framed(new_key), value, moved

    def _delete_slowly(
        self, envelope: list[bytes], data: bytes, position: int, end: int, context: TransactionContext
    ) -> tuple[Key, bytes]:
        cursor = _cursor(data, position, end, context, "Delete")
        earlier = self._as_leaf_sent(self._checked(read_earlier(cursor), cursor))
        cursor.finish()
        key = self._tuples.encode_key(earlier, None)
        if earlier.letter == KEY_TUPLE:
            return self._framed(key), b"".join([*envelope, _NULL, _SOME, *key, _NULL, _NULL, _NO_TRAILING_FIELDS])
        row, unchanged, special = self._tuples.encode(earlier, BEFORE_PREFIX)
        trailing = _trailing_fields(unchanged, special)
        return self._framed(key), b"".join([*envelope, _BEFORE, *row, _NULL, *trailing])

    def _checked(self, part: TuplePart, cursor: Cursor) -> TuplePart:
        """Check the column count of a tuple and return the tuple. Switch to binary readers if the
        server sends values in binary form."""
        check_column_count(part, self._count, cursor)
        if self._follows_wire and self._readers is not self._tuples.binary_readers and Binary in map(type, part.values):
            self._read_with(self._tuples.binary_readers)
        return part

    def _as_leaf_sent(self, earlier: TuplePart) -> TuplePart:
        """Return an old tuple as a key tuple if it has values only for the key and may come from a
        partition."""
        return key_of_leaf(earlier, self.description) if self.has_rows_of_leaves else earlier

    def _framed(self, key: list[bytes]) -> Key:
        return None if self.key_frame is None else self.key_frame + b"".join(key)

    def _envelope(self, head: bytes, context: TransactionContext, change_lsn: int, ordinal: int) -> list[bytes]:
        return [head, context.identity, encode_long(change_lsn), encode_long(ordinal), context.commit]


def key_of_leaf(earlier: TuplePart, description: RelationDescription) -> TuplePart:
    """Return an old tuple as a key tuple, if a partition with another replica identity sent only
    the key. pgoutput then takes the tuple's letter from the root, and its values from the
    partition. A whole old row that has no values but the key's looks the same and is treated
    alike."""
    columns = zip(description.columns, earlier.values, strict=True)
    if earlier.letter != OLD_TUPLE or not description.identity_columns:
        return earlier
    if any(value is not None and not column.identity for column, value in columns):
        return earlier
    return TuplePart(KEY_TUPLE, earlier.offset, earlier.values)


def _cursor(data: bytes, position: int, end: int, context: TransactionContext, name: str) -> Cursor:
    """Return a cursor at the first tuple of a row message."""
    return Cursor(data[position:end], 0, name, _HEAD_IN_STREAM_BYTES if context.in_stream else HEAD_BYTES)


def _trailing_fields(unchanged: list[str], special: list[tuple[str, bytes]]) -> list[bytes]:
    """Encode the fields `unchanged` (array of string) and `special` (map of string)."""
    parts: list[bytes] = []
    if unchanged:
        parts.append(encode_long(len(unchanged)))
        parts.extend(some_bytes(name.encode())[1:] for name in unchanged)
    parts.append(_NULL)
    if special:
        parts.append(encode_long(len(special)))
        parts.extend(some_bytes(name.encode())[1:] + some_bytes(text)[1:] for name, text in special)
    parts.append(_NULL)
    return parts
