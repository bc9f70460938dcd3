"""Encode rows value by value: the slow path of gateway/events/row_encoder.py."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gateway.events.errors import key_not_sent, place_of_value, unreadable_value
from gateway.pgoutput.letters import KIND_BINARY, KIND_TEXT
from gateway.pgoutput.row import TuplePart
from gateway.pgoutput.tuple_data import UNCHANGED, Text, walk_columns
from gateway.values.column_codec import Codec, codec
from gateway.values.column_readers import AVRO_NULL, some_bytes
from gateway.values.protected_columns import protected_codec
from gateway.values.row_readers import RowReaders
from gateway.values.special_values import NotRenderable, UnrepresentableValue, special_text
from schemas.avro_types import ColumnType, key_type, value_type
from schemas.change_schema import field_names
from schemas.relation import Protect, Protection, RelationDescription

MALFORMED = (ValueError, IndexError, OverflowError, struct.error)
"""The errors that encoders raise for bytes that are not a value of their type."""


class TupleCodec:
    """Encode the columns of one relation version.

    `hidden` has the indexes of the columns whose values a rule hides. `key_places` has the indexes
    of the identity columns, or is None if any of these has another form in the key than in the row.
    """

    def __init__(self, description: RelationDescription) -> None:
        self._description = description
        self._names = field_names(description)
        types = [value_type(column) for column in description.columns]
        rules = [column.protection for column in description.columns]
        self._codecs: list[Codec] = [column_codec(*each) for each in zip(types, rules, strict=True)]
        identity = [index for index, column in enumerate(description.columns) if column.identity]
        self.keys: list[tuple[int, Codec]] = [
            (index, column_codec(key_type(types[index]), rules[index])) for index in identity
        ]
        self.hidden = frozenset(index for index, rule in enumerate(rules) if rule is not None and rule.is_hidden)
        self._dropped = frozenset(
            index for index, rule in enumerate(rules) if rule is not None and rule.action is Protect.DROP
        )
        self.key_places: tuple[int, ...] | None = None
        if not any(types[index].is_sometimes_special for index in identity):
            self.key_places = tuple(identity)
        self.text_readers = RowReaders(each.read_text for each in self._codecs)
        self.binary_readers = RowReaders(
            each.read_binary if column.facts.sends_binary else each.read_text
            for each, column in zip(self._codecs, types, strict=True)
        )

    def mixed_readers(self, is_binary: Sequence[bool]) -> RowReaders:
        """Return the readers of rows in which `is_binary` tells the form of each column."""
        return RowReaders(
            each.read_binary if binary else each.read_text for each, binary in zip(self._codecs, is_binary, strict=True)
        )

    def encode(self, part: TuplePart, prefix: str) -> tuple[list[bytes], list[str], list[tuple[str, bytes]]]:
        """Encode a tuple. Return the Avro bytes of each column, the names of UNCHANGED columns, and
        the names and texts of special values. Each name is preceded by `prefix`."""
        row: list[bytes] = []
        unchanged: list[str] = []
        special: list[tuple[str, bytes]] = []
        for index, value in enumerate(part.values):
            if index in self.hidden:
                row += [] if index in self._dropped else [AVRO_NULL]
                continue
            encoded, text = self._encode_value(self._codecs[index], part, index)
            row.append(encoded)
            if value is UNCHANGED:
                unchanged.append(prefix + self._names[index])
            elif text is not None:
                special.append((prefix + self._names[index], text))
        return row, unchanged, special

    def failing(self, part: TuplePart) -> str | None:
        """Return the column and byte of the first value that cannot be encoded, whatever its
        encoder raises. This is for the report of an unexpected error."""
        for index, (each, _) in enumerate(zip(self._codecs, part.values, strict=False)):
            if index not in self.hidden:
                try:
                    self._encode_value(each, part, index)
                except Exception:
                    return place_of_value(self._description, part, index)
        return None

    def encode_key(self, part: TuplePart, earlier: TuplePart | None) -> list[bytes]:
        """Return the key bytes of the identity columns; an UNCHANGED value is taken from the
        earlier tuple. Raises KeyNotSent."""
        key: list[bytes] = []
        for index, each in self.keys:
            source = earlier if earlier is not None and part.values[index] is UNCHANGED else part
            if source.values[index] is UNCHANGED:
                raise key_not_sent(self._description, part, index)
            encoded, text = self._encode_value(each, source, index)
            key.append(encoded if text is None else some_bytes(text))
        return key

    def encode_key_at(self, data: bytes, position: int) -> list[bytes]:
        """Return the key bytes of a tuple whose columns were all read; `position` is that of its
        column count. Raises what the encoders raise."""
        key: list[bytes] = []
        columns = walk_columns(data, position)
        place = 0
        for index, each in self.keys:
            while place <= index:
                kind, start, end = next(columns)
                place += 1
            if kind == KIND_TEXT:
                key.append(each.from_text(data[start:end]))
            elif kind != KIND_BINARY:
                key.append(AVRO_NULL)
            else:
                assert each.from_binary is not None  # the column itself was read in binary
                key.append(each.from_binary(data[start:end]))
        return key

    def _encode_value(self, each: Codec, part: TuplePart, index: int) -> tuple[bytes, bytes | None]:
        """Return the Avro bytes of a value and None. For a special value, return the bytes of null
        and the text for `special`."""
        value = part.values[index]
        if value is None or value is UNCHANGED:
            return AVRO_NULL, None
        encode = each.from_text if isinstance(value, Text) else each.from_binary
        try:
            if encode is None:
                raise NotRenderable
            return encode(value.value), None
        except UnrepresentableValue:
            if isinstance(value, Text):
                return AVRO_NULL, special_text(value.value)
        except (NotRenderable, *MALFORMED) as error:
            raise unreadable_value(self._description, part, index, error) from None
        try:
            assert each.render is not None  # a type that is encoded from binary can also be rendered from it
            return AVRO_NULL, special_text(each.render(value.value))
        except (NotRenderable, *MALFORMED) as error:
            raise unreadable_value(self._description, part, index, error) from None


def column_codec(column: ColumnType, rule: Protection | None) -> Codec:
    return codec(column) if rule is None else protected_codec(column.facts, rule)
