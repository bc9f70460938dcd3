"""TupleData taken apart value by value, and encoded with care: the way of rows that are not plain."""

from __future__ import annotations

import struct
from typing import Final

from gateway.events.errors import UnknownBinary, UnreadableValue
from gateway.pgoutput.errors import PgOutputError
from gateway.values.codec import Codec, codec
from gateway.values.reader import AVRO_NULL, BINARY, NULL, TEXT, UNCHANGED
from gateway.values.row_readers import RowReaders
from gateway.values.special import NotRenderable, Special
from schemas.column_type import column_type, key_type
from schemas.description import RelationDescription
from schemas.relation import field_names

Value = tuple[int, bytes]
"""A column's kind (n, u, t, b) and its bytes, empty for n and u."""

_COUNT = struct.Struct("!H").unpack_from
_LENGTH = struct.Struct("!i").unpack_from
_TUPLE_NAMES: Final = {"K": "key tuple", "O": "old tuple", "N": "new tuple"}


class TupleCodec:
    """The columns of one relation version.

    `key_places`: indexes of the identity columns where all of them have the same form in the key as in the row, else None.
    """

    def __init__(self, description: RelationDescription) -> None:
        self._description = description
        self._names = field_names(description)
        types = [column_type(column.facts, column.typmod) for column in description.columns]
        self._codecs: list[Codec] = [codec(column) for column in types]
        identity = [index for index, column in enumerate(description.columns) if column.identity]
        self._keys: list[tuple[int, Codec]] = [(index, codec(key_type(types[index]))) for index in identity]
        self.key_places: tuple[int, ...] | None = None
        if not any(types[index].is_sometimes_special for index in identity):
            self.key_places = tuple(identity)
        self.text_readers = RowReaders(each.read_text for each in self._codecs)
        self.binary_readers = RowReaders(
            each.read_binary if column.facts.sends_binary else each.read_text
            for each, column in zip(self._codecs, types, strict=True)
        )

    def take_apart(self, data: bytes, position: int, end: int, allowed: bytes) -> tuple[list[Value], int, bool]:
        """(values, the place after the tuple, whether one is binary). `allowed`: the letters that the tuple may have."""
        names = " or ".join(_TUPLE_NAMES[letter] for letter in allowed.decode())
        if position + 3 > end or data[position] not in allowed:
            found = "the end" if position >= end else f"byte {data[position]}"
            raise self._error(names, position, f"one of {allowed.decode()} and a column count", found)
        count: int = _COUNT(data, position + 1)[0]
        if count != len(self._codecs):
            raise self._error(f"{names}, column count", position + 1, str(len(self._codecs)), str(count))
        values: list[Value] = []
        is_binary = False
        place = position + 3
        for index in range(count):
            kind = data[place] if place < end else -1
            if kind in (NULL, UNCHANGED):
                values.append((kind, b""))
                place += 1
                continue
            if kind not in (TEXT, BINARY):
                found = "the end" if kind < 0 else f"byte {kind}"
                raise self._error(f"column {index}, kind", place, "one of n, u, t, b", found)
            start = place + 5
            length = _LENGTH(data, place + 1)[0] if start <= end else -1
            if length < 0 or start + length > end:
                raise self._error(f"column {index}, length", place + 1, f"0 to {max(end - start, 0)}", str(length))
            values.append((kind, data[start : start + length]))
            is_binary = is_binary or kind == BINARY
            place = start + length
        return values, place, is_binary

    def encode(self, values: list[Value], prefix: str) -> tuple[list[bytes], list[str], list[tuple[str, bytes]]]:
        """(Avro bytes a column, names of UNCHANGED columns, name and text of special ones); names get the prefix."""
        row: list[bytes] = []
        unchanged: list[str] = []
        special: list[tuple[str, bytes]] = []
        for index, (kind, value) in enumerate(values):
            encoded, text = self._encode_value(self._codecs[index], index, kind, value)
            row.append(encoded)
            if kind == UNCHANGED:
                unchanged.append(prefix + self._names[index])
            elif text is not None:
                special.append((prefix + self._names[index], text))
        return row, unchanged, special

    def encode_key(self, values: list[Value], old_values: list[Value] | None) -> list[bytes]:
        """Key bytes of the identity columns; an UNCHANGED one is taken from the old tuple. KeyError: it is not there."""
        key: list[bytes] = []
        for index, each in self._keys:
            kind, value = values[index]
            if kind == UNCHANGED and old_values is not None:
                kind, value = old_values[index]
            if kind == UNCHANGED:
                raise KeyError(self._description.columns[index].name)
            key.append(self._encode_value(each, index, kind, value)[0])
        return key

    def encode_key_at(self, data: bytes, position: int) -> list[bytes]:
        """The key of a tuple that was read already, so that nothing needs to be checked again."""
        key: list[bytes] = []
        place, column = position + 3, 0
        for index, each in self._keys:
            while True:
                kind = data[place]
                start = place + 5
                place = place + 1 if kind in (NULL, UNCHANGED) else start + _LENGTH(data, place + 1)[0]
                column += 1
                if column > index:
                    break
            key.append(self._encode_value(each, index, kind, data[start:place])[0])
        return key

    def _encode_value(self, each: Codec, index: int, kind: int, value: bytes) -> tuple[bytes, bytes | None]:
        """Avro bytes, and the text where they are null because the value is special."""
        if kind in (NULL, UNCHANGED):
            return AVRO_NULL, None
        encode = each.from_text if kind == TEXT else each.from_binary
        if encode is None:
            raise self._unknown_binary(index)
        try:
            return encode(value), None
        except Special:
            return AVRO_NULL, value if kind == TEXT else self._render(each, index, value)
        except NotRenderable:
            raise self._unknown_binary(index) from None
        except (ValueError, IndexError, OverflowError, struct.error) as error:
            raise self._unreadable(index, kind, error) from None

    def _render(self, each: Codec, index: int, value: bytes) -> bytes:
        assert each.render is not None  # a type that is encoded from binary is rendered from it too
        try:
            return each.render(value)
        except NotRenderable:
            raise self._unknown_binary(index) from None
        except (ValueError, IndexError, OverflowError, struct.error) as error:
            raise self._unreadable(index, BINARY, error) from None

    def _unknown_binary(self, index: int) -> UnknownBinary:
        column = self._description.columns[index]
        return UnknownBinary(self._description.qualified_name, column.name, column.facts.name or str(column.facts.oid))

    def _unreadable(self, index: int, kind: int, error: Exception) -> UnreadableValue:
        column = self._description.columns[index]
        form = "text" if kind == TEXT else "binary"
        return UnreadableValue(
            f"{self._description.qualified_name}, column {column.name}: a value is not a {column.facts.name} "
            f"in {form} form ({type(error).__name__})",
            hint="keep the slot as it is and report this with the versions of PostgreSQL and of the gateway",
        )

    def _error(self, field: str, offset: int, expected: str, actual: str) -> PgOutputError:
        return PgOutputError(f"a row of {self._description.qualified_name}", field, offset, expected, actual)
