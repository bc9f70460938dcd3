"""A sink that writes the records of Debezium's dialect in the JSON converter's form."""

from __future__ import annotations

from typing import Any

from gateway.debezium.json_encoder import JsonForm
from gateway.debezium.record_writer import KeyedSink
from gateway.errors import StopForOperator


class JsonSink:
    """A sink that converts Avro records to JSON and passes them to `sink`. Both schemas are those
    of the Avro records. The partition of a record is chosen by the JSON of its key."""

    def __init__(self, sink: KeyedSink, key_schema: Any, value_schema: Any, *, with_schema: bool) -> None:
        self._sink = sink
        self._key = None if key_schema is None else JsonForm(key_schema, with_schema=with_schema)
        self._value = JsonForm(value_schema, with_schema=with_schema)

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None:
        self._sink.append_hashed(self._of_key(key), None if value is None else self._value(value))

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        assert self._key is not None
        return self._sink.offer_hashed(self._key(key), self._value(value))

    def too_large(self, what: str, size: int) -> StopForOperator:
        return self._sink.too_large(what, size)

    def _of_key(self, key: bytes | None) -> bytes | None:
        return None if key is None or self._key is None else self._key(key)
