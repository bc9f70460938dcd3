"""The JSON converter's form: each record is what Kafka Connect's own JsonConverter makes of it,
byte for byte."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.java_gateway import JavaGateway

from bench.debezium import converter_jars
from gateway.config.debezium import DebeziumSettings
from gateway.debezium.connect_json import connect_json_schema
from gateway.debezium.envelope_schema import CatalogColumn, connect_relation, envelope_schema, key_schema
from gateway.debezium.json_encoder import JsonForm
from gateway.debezium.json_sink import JsonSink
from gateway.local.artifacts import jars
from schemas.wire_format import FRAME_BYTES
from tests.debezium.answers import SLOT, Answers
from tests.debezium.connect import files
from tests.debezium.encoded import Schemas, Sink, framed, without_times
from tests.debezium.jvm import jvm
from tests.debezium.recorded import OPTIONS
from tests.debezium.scene import PUBLICATION
from tests.debezium.test_dialect import TOPIC, Dialect, new, row_of
from tests.events.rows import FLOAT8, INT8, TEXT, relation, wire_row


async def payloads(options: DebeziumSettings) -> Iterator[tuple[Any, bytes]]:
    """Schema and framed Avro of every key and value of the workload."""
    answers: Any = Answers()
    schemas, records = await framed(answers, SLOT, PUBLICATION, options, binary=False)
    return _payloads(schemas, records)


def _payloads(schemas: Schemas, records: list[tuple[str, bytes | None, bytes | None]]) -> Iterator[tuple[Any, bytes]]:
    for _, key, value in records:
        for payload in (key, value):
            if payload is not None:
                yield schemas.known[int.from_bytes(payload[1:FRAME_BYTES], "big") - 1], payload


@pytest.mark.parametrize("name", list(OPTIONS))
async def test_a_field_is_in_json_what_it_is_in_avro(name: str) -> None:
    count = 0
    for schema, payload in await payloads(OPTIONS[name]):
        parsed = fastavro.parse_schema(without_times(_without_decimals(schema)))
        value = fastavro.schemaless_reader(io.BytesIO(payload[FRAME_BYTES:]), parsed, None)
        found = json.loads(JsonForm(schema, with_schema=False)(payload), parse_float=Decimal)
        assert _same(found, value), schema["name"]
        count += 1
    assert count > 200


def _without_decimals(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_decimals(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_decimals(each) for name, each in schema.items() if name != "logicalType"}


def _same(found: Any, value: Any) -> bool:
    match value:
        case dict():
            return list(found) == list(value) and all(_same(found[name], each) for name, each in value.items())
        case list():
            return len(found) == len(value) and all(map(_same, found, value))
        case bytes():
            return bool(base64.b64decode(found, validate=True) == value)
        case float() if not math.isfinite(value):
            return bool(found == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)])
        case float():
            return float(found) == value or _as_float4(float(found)) == value
    return bool(found == value and type(found) is type(value))


def _as_float4(value: float) -> float:
    (found,) = struct.unpack("<f", struct.pack("<f", value))
    return float(found)


class Converters:
    """Confluent's Avro data and Kafka Connect's JsonConverter."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._jvm = gateway.jvm
        self._data = gateway.jvm.io.confluent.connect.avro.AvroData(100)
        self._converters = {}
        for with_schema in (True, False):
            converter = gateway.jvm.org.apache.kafka.connect.json.JsonConverter()
            settings = gateway.jvm.java.util.HashMap()
            settings.put("schemas.enable", str(with_schema).lower())
            settings.put("replace.null.with.default", "false")
            converter.configure(settings, False)
            self._converters[with_schema] = converter

    def of(self, schema: Any, payload: bytes, *, with_schema: bool) -> bytes:
        avro = self._jvm.org.apache.avro
        parsed = avro.Schema.Parser().parse(json.dumps(schema))
        reader = avro.generic.GenericDatumReader(parsed)
        decoder = avro.io.DecoderFactory.get().binaryDecoder(bytearray(payload[FRAME_BYTES:]), None)
        found = self._data.toConnectData(parsed, reader.read(None, decoder))
        return bytes(self._converters[with_schema].fromConnectData("t", found.schema(), found.value()))


_TEXTS: Final = (
    "a/b",
    'q"\\u001b',
    "\b\f\n\r\t\x01\x1f\x7f\x80",
    "\u2028\ufeff\uffff",
    "\U0001f600\u00e9",
    "\U0010ffff",
)
_NUMBERS: Final = (
    *(
        0.0,
        -0.0,
        1.0,
        42.5,
        0.1,
        9999999.0,
        1e7,
        -12345678.0,
        0.001,
        0.0009765625,
        1e-4,
        1e16,
        1e23,
        3.4028234663852886e38,
    ),
    *(math.nan, math.inf, -math.inf, 2.0**-149, 2.0**-96, 2.0**87, 2.0**90, 2.0**24),
)
_DOUBLES: Final = (*_NUMBERS, 5e-324, 2e-323, 2.2250738585072014e-308, 2.0**-44, 1.7976931348623157e308)


def keys() -> Iterator[tuple[Any, bytes]]:
    """Keys of one column with texts and numbers that Java writes otherwise than Python, and a
    schema that has such a default and name."""
    for avro, values in (("string", _TEXTS), ("float", _NUMBERS), ("double", _DOUBLES)):
        default = "\U0001f600\x1f" if avro == "string" else 1.25e8
        with_default = {"type": avro, "connect.default": default}
        fields = [{"name": "id", "type": avro}, {"name": "d", "type": with_default, "default": default}]
        schema = {"type": "record", "name": "Key", "connect.name": "k.\U0001f600.Key", "fields": fields}
        parsed = fastavro.parse_schema(schema)
        for value in values:
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, parsed, {"id": value, "d": value})
            yield schema, bytes(FRAME_BYTES) + buffer.getvalue()


@pytest.mark.long
async def test_each_record_is_what_the_real_converter_makes_of_it(tmp_path: Path) -> None:
    count = 0
    with jvm([*files("connect"), *jars("kafka"), *converter_jars()], tmp_path) as gateway:
        converters = Converters(gateway)
        for records in ([*keys()] * 2, *[await payloads(options) for options in OPTIONS.values()]):
            for at, (schema, payload) in enumerate(records):
                with_schema = at % 2 == 0
                ours = JsonForm(schema, with_schema=with_schema)(payload)
                assert ours == converters.of(schema, payload, with_schema=with_schema)
                count += 1
    assert count > 1000


def test_names_are_those_of_the_table() -> None:
    """Without Avro there is nothing to adjust."""
    described = relation((INT8, TEXT))
    columns = tuple(
        column.__class__(name, column.facts, column.typmod, column.identity)
        for name, column in zip(("the id", "2nd"), described.columns, strict=True)
    )
    options = DebeziumSettings(format="json")
    described = described.__class__(
        described.oid, described.namespace, described.name, described.replica_identity, columns
    )
    connect = connect_relation(described, [CatalogColumn("the id", True)], ["the id"], options)
    key = key_schema(connect, "d-1.public.t", adjusts_names=options.adjusts_names)
    assert key is not None and json.loads(JsonForm(key, with_schema=True)(bytes(FRAME_BYTES) + b"\2")) == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int64", "optional": False, "field": "the id"}],
            "optional": False,
            "name": "d-1.public.t.Key",
        },
        "payload": {"the id": 1},
    }
    value = envelope_schema(connect, "d-1.public.t", adjusts_names=options.adjusts_names)
    assert [field["name"] for field in value["fields"][0]["type"][1]["fields"]] == ["the id", "2nd"]


@pytest.mark.parametrize(
    ("number", "said"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (1.5, 1.5)]
)
def test_numbers_that_json_does_not_have_are_strings(number: float, said: object) -> None:
    form = JsonForm({"type": "array", "items": ["null", "double"]}, with_schema=False)
    (payload,) = wire_row((FLOAT8,), (1.0,), binary=True)
    assert payload is not None
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, {"type": "array", "items": ["null", "double"]}, [number, None])
    assert json.loads(form(bytes(FRAME_BYTES) + buffer.getvalue())) == [said, None]


def test_characters_are_escaped_as_jackson_does_it() -> None:
    text = 'a"\\\n\x01\x1f\x7f\u00e9\u2028\U0001f600\U0010ffff'
    content = text.encode()
    written = JsonForm("string", with_schema=False)(bytes(FRAME_BYTES) + bytes([2 * len(content)]) + content)
    assert written == '"a\\"\\\\\\n\\u0001\\u001F\x7f\u00e9\u2028\\uD83D\\uDE00\\uDBFF\\uDFFF"'.encode()
    assert json.loads(written) == text


@pytest.mark.parametrize(
    ("avro", "number", "written"),
    [
        ("double", 9999999.0, "9999999.0"),
        ("double", 12345678.0, "1.2345678E7"),
        ("double", -0.001, "-0.001"),
        ("double", 0.0001, "1.0E-4"),
        ("double", -0.0, "-0.0"),
        ("double", 5e-324, "4.9E-324"),
        ("float", 0.1, "0.1"),
        ("float", 16777216.0, "1.6777216E7"),
        ("float", 3.4028234663852886e38, "3.4028235E38"),
        ("float", 2.0**90, "1.2379401E27"),
        ("float", 2.0**-149, "1.4E-45"),
    ],
)
def test_numbers_are_written_as_java_does_it(avro: str, number: float, written: str) -> None:
    payload = struct.pack("<f" if avro == "float" else "<d", number)
    assert JsonForm(avro, with_schema=False)(bytes(FRAME_BYTES) + payload) == written.encode()


@given(st.text(alphabet=st.sampled_from('\\u001bB"\x1b\n'), max_size=60))
def test_every_text_is_read_as_it_was(text: str) -> None:
    content = text.encode()
    written = JsonForm("string", with_schema=False)(bytes(FRAME_BYTES) + bytes([2 * len(content)]) + content)
    assert json.loads(written) == text


def test_rows_and_tombstones_go_through_a_sink_of_json() -> None:
    records: list[tuple[str, bytes | None, bytes | None]] = []
    dialect = Dialect()
    version = dialect.version
    of_value, of_key = envelope_schema(dialect.encoder.relation, TOPIC), key_schema(dialect.encoder.relation, TOPIC)
    version.sink = JsonSink(Sink(TOPIC, records), of_key, of_value, with_schema=False)
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.row(b"D", b"K" + new(*row_of(1))[1:])
    assert [key for _, key, _ in records] == [b'{"c0":1}'] * 3
    assert [value and json.loads(value)["op"] for _, _, value in records] == ["c", "d", None]
    assert version.sink.offer_hashed(b"\0\0\0\0\1\2", dialect.encoder._frame + dialect_value(dialect))
    with pytest.raises(AssertionError, match="large"):
        version.sink.too_large("large", 1)


def dialect_value(dialect: Dialect) -> bytes:
    """Of one more row, without its frame."""
    records: list[tuple[str, bytes | None, bytes | None]] = []
    dialect.version.sink, kept = Sink(TOPIC, records), dialect.version.sink
    dialect.row(b"I", new(*row_of(2)))
    dialect.version.sink = kept
    value = records[0][2]
    assert value is not None
    return value[FRAME_BYTES:]


def test_the_schema_in_json_says_which_columns_a_rule_replaces() -> None:
    field = {"name": "c1", "type": ["null", "string"], "default": None, "pg.protected": "hash"}
    found = connect_json_schema({"type": "record", "name": "Value", "fields": [field]})
    wanted = {"type": "string", "optional": True, "parameters": {"pg.protected": "hash"}, "field": "c1"}
    assert found == {"type": "struct", "fields": [wanted], "optional": False}
