"""PostgreSQL type -> Kafka Connect type as Debezium maps it: the form of the value, and its Avro
schema with `connect.*` attributes.

Options are named like Debezium's settings, with underscores, and have Debezium's defaults. Debezium
leaves composite types, multiranges, and types of extensions that it does not know out of a record.
They have no Connect type here either, unless `include_unknown_datatypes` asks for their text as
bytes.

Source: Debezium 3.6 documentation, "PostgreSQL connector", "Data type mappings". The tests in
tests/debezium compare the result with a real connector's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gateway.config.debezium import BinaryMode, DebeziumSettings
from schemas.avro_types import numeric_precision_and_scale
from schemas.relation import Kind, TypeFacts

Avro = Any


class Form(enum.Enum):
    """The form in which a value is written."""

    BOOLEAN = enum.auto()
    INTEGER = enum.auto()
    FLOAT = enum.auto()
    DOUBLE = enum.auto()
    TEXT = enum.auto()
    UUID = enum.auto()
    BYTES = enum.auto()
    BINARY_TEXT = enum.auto()
    """bytea as text, in the form of `ConnectType.binary_mode`."""
    UNKNOWN = enum.auto()
    """PostgreSQL's text, written as bytea is."""
    DECIMAL = enum.auto()
    VARIABLE_DECIMAL = enum.auto()
    DECIMAL_TEXT = enum.auto()
    DECIMAL_DOUBLE = enum.auto()
    MONEY = enum.auto()
    MONEY_TEXT = enum.auto()
    MONEY_DOUBLE = enum.auto()
    DAYS = enum.auto()
    DATE_TEXT = enum.auto()
    TIME = enum.auto()
    """A number in the unit of `ConnectType.per_second`, as is TIMESTAMP."""
    TIME_TEXT = enum.auto()
    TIMESTAMP = enum.auto()
    TIMESTAMP_TEXT = enum.auto()
    ZONED_TIMESTAMP = enum.auto()
    ZONED_TIME = enum.auto()
    DURATION = enum.auto()
    DURATION_TEXT = enum.auto()
    BIT = enum.auto()
    BITS = enum.auto()
    POINT = enum.auto()
    HSTORE_JSON = enum.auto()
    HSTORE_MAP = enum.auto()
    ARRAY = enum.auto()


@dataclass(frozen=True, slots=True)
class ConnectType:
    """A column's type in Kafka Connect. If the column's type is a domain, `facts` and `typmod`
    describe the base type. `avro` is the schema without its union."""

    form: Form
    avro: Avro
    facts: TypeFacts
    typmod: int = -1
    precision: int = 0
    scale: int = 0
    per_second: int = 1_000_000
    digits: int = 6
    """Digits of fractional seconds."""
    element: ConnectType | None = None
    binary_mode: BinaryMode = "bytes"


def connect_type(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType | None:
    """Return the Connect type; None for a type that Debezium leaves out. A type that was dropped
    after the change, usually an enum that was replaced by text, becomes a string."""
    while facts.kind is Kind.DOMAIN and facts.base is not None:
        facts, typmod = facts.base, facts.base_typmod
    if facts.kind is Kind.ARRAY and facts.element is not None:
        found = _array(facts, typmod, options)
    elif facts.kind is Kind.ENUM:
        found = ConnectType(Form.TEXT, _enum(facts.labels), facts, typmod)
    elif facts.kind is Kind.BASE:
        found = _base(facts, typmod, options)
    elif facts.kind is Kind.UNKNOWN or facts.oid in _TEXT:
        found = ConnectType(Form.TEXT, "string", facts, typmod)
    else:
        found = None
    if found is None and options.include_unknown_datatypes:
        mode = options.binary_handling_mode
        return ConnectType(Form.UNKNOWN, binary_avro(mode), facts, typmod, binary_mode=mode)
    return found


def binary_avro(mode: BinaryMode) -> str:
    return "bytes" if mode == "bytes" else "string"


def _named(avro: str, name: str, **more: Any) -> Avro:
    return {"type": avro, "connect.version": 1, "connect.name": name, **more}


def _decimal(precision: int | None, scale: int) -> Avro:
    parameters = {"scale": str(scale)}
    if precision is not None:
        parameters["connect.decimal.precision"] = str(precision)
    return _named(
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        scale=scale,
        precision=_CONVERTERS_PRECISION if precision is None else precision,
        logicalType="decimal",
        **{"connect.parameters": parameters},
    )


_CONVERTERS_PRECISION: Final = 64
"""The precision that Confluent's converter writes where Connect has none."""
_INT16: Final = {"type": "int", "connect.type": "int16"}
_VARIABLE_DECIMAL: Final = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.doc": "Variable scaled decimal",
    "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
_POINT: Final = {
    "type": "record",
    "name": "Point",
    "namespace": "io.debezium.data.geometry",
    "fields": [
        {"name": "x", "type": "double"},
        {"name": "y", "type": "double"},
        {"name": "wkb", "type": ["null", "bytes"], "default": None},
        {"name": "srid", "type": ["null", "int"], "default": None},
    ],
    "connect.doc": "Geometry (POINT)",
    "connect.version": 1,
    "connect.name": "io.debezium.data.geometry.Point",
}
_JSON: Final = _named("string", "io.debezium.data.Json")
_HSTORE_MAP: Final = {"type": "map", "values": ["null", "string"]}

# The oids of built-in types never change (pg_type.dat).
_PLAIN: Final[dict[int, tuple[Form, Avro]]] = {
    16: (Form.BOOLEAN, "boolean"),
    18: (Form.TEXT, "string"),  # "char"
    19: (Form.TEXT, "string"),  # name
    20: (Form.INTEGER, "long"),
    21: (Form.INTEGER, _INT16),
    23: (Form.INTEGER, "int"),
    25: (Form.TEXT, "string"),
    26: (Form.INTEGER, "long"),  # oid
    114: (Form.TEXT, _JSON),
    142: (Form.TEXT, _named("string", "io.debezium.data.Xml")),
    600: (Form.POINT, _POINT),
    650: (Form.TEXT, "string"),  # cidr
    700: (Form.FLOAT, "float"),
    701: (Form.DOUBLE, "double"),
    774: (Form.TEXT, "string"),  # macaddr8
    829: (Form.TEXT, "string"),  # macaddr
    869: (Form.TEXT, "string"),  # inet
    1042: (Form.TEXT, "string"),  # bpchar
    1043: (Form.TEXT, "string"),  # varchar
    1266: (Form.ZONED_TIME, _named("string", "io.debezium.time.ZonedTime")),
    2950: (Form.UUID, _named("string", "io.debezium.data.Uuid")),
    3614: (Form.TEXT, _named("string", "io.debezium.data.Tsvector")),
    3802: (Form.TEXT, _JSON),
}
_TEXT: Final = frozenset({3904, 3906, 3908, 3910, 3912, 3926})
"""int4range, numrange, tsrange, tstzrange, daterange, int8range, whose kind is RANGE."""
_NO_ARRAY: Final = frozenset({19, 142, 600, 790, 1186, 1562, 1560})
"""name, xml, point, money, interval, varbit, bit: Debezium has no arrays of these."""
_UNLIMITED_BITS: Final = (1 << 31) - 1
_MICROS, _MILLIS, _NANOS = 1_000_000, 1_000, 1_000_000_000


def _enum(labels: tuple[str, ...]) -> Avro:
    return _named("string", "io.debezium.data.Enum", **{"connect.parameters": {"allowed": ",".join(labels)}})


def _array(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType | None:
    assert facts.element is not None
    if facts.element.oid in _NO_ARRAY or facts.element.kind in (Kind.DOMAIN, Kind.ARRAY):
        return None
    element = connect_type(facts.element, typmod, options)
    if element is None or element.form is Form.UNKNOWN:
        return None
    avro = {"type": "array", "items": ["null", element.avro]}
    return ConnectType(Form.ARRAY, avro, facts, typmod, element=element)


def _base(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType | None:
    plain = _PLAIN.get(facts.oid)
    if plain is not None:
        return ConnectType(*plain, facts, typmod)
    making = _BY_OPTION.get(facts.oid)
    if making is not None:
        return making(facts, typmod, options)
    match facts.extension, facts.name:
        case ("citext", "citext") | ("isn", "isbn"):
            return ConnectType(Form.TEXT, "string", facts, typmod)
        case "ltree", "ltree":
            return ConnectType(Form.TEXT, _named("string", "io.debezium.data.Ltree"), facts, typmod)
        case "hstore", "hstore":
            if options.hstore_handling_mode == "json":
                return ConnectType(Form.HSTORE_JSON, _JSON, facts, typmod)
            return ConnectType(Form.HSTORE_MAP, _HSTORE_MAP, facts, typmod)
    return None


def _bytea(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType:
    mode = options.binary_handling_mode
    form = Form.BYTES if mode == "bytes" else Form.BINARY_TEXT
    return ConnectType(form, binary_avro(mode), facts, typmod, binary_mode=mode)


def _numeric(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType:
    precision, scale = numeric_precision_and_scale(typmod) if typmod >= 4 else (0, 0)
    match options.decimal_handling_mode:
        case "double":
            return ConnectType(Form.DECIMAL_DOUBLE, "double", facts, typmod)
        case "string":
            return ConnectType(Form.DECIMAL_TEXT, "string", facts, typmod, precision, scale)
    if not precision:
        return ConnectType(Form.VARIABLE_DECIMAL, _VARIABLE_DECIMAL, facts, typmod)
    return ConnectType(Form.DECIMAL, _decimal(precision, scale), facts, typmod, precision, scale)


_MONEY_SCALE: Final = 2
"""Debezium's money.fraction.digits."""


def _money(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType:
    match options.decimal_handling_mode:
        case "double":
            return ConnectType(Form.MONEY_DOUBLE, "double", facts, typmod, scale=_MONEY_SCALE)
        case "string":
            return ConnectType(Form.MONEY_TEXT, "string", facts, typmod, scale=_MONEY_SCALE)
    return ConnectType(Form.MONEY, _decimal(None, _MONEY_SCALE), facts, typmod, scale=_MONEY_SCALE)


def _date(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType:
    match options.time_precision_mode:
        case "connect":
            avro = _named("int", "org.apache.kafka.connect.data.Date", logicalType="date")
            return ConnectType(Form.DAYS, avro, facts, typmod)
        case "isostring":
            return ConnectType(Form.DATE_TEXT, _named("string", "io.debezium.time.IsoDate"), facts, typmod)
    return ConnectType(Form.DAYS, _named("int", "io.debezium.time.Date"), facts, typmod)


def _digits(typmod: int) -> int:
    """Return the digits of fractional seconds to which the column's type is limited."""
    return 6 if typmod < 0 else typmod


def _time(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType:
    mode = options.time_precision_mode
    if mode == "isostring":
        return ConnectType(Form.TIME_TEXT, _named("string", "io.debezium.time.IsoTime"), facts, typmod)
    if mode == "connect":
        avro = _named("int", "org.apache.kafka.connect.data.Time", logicalType="time-millis")
        return ConnectType(Form.TIME, avro, facts, typmod, per_second=_MILLIS)
    if mode == "nanoseconds":
        avro = _named("long", "io.debezium.time.NanoTime")
        return ConnectType(Form.TIME, avro, facts, typmod, per_second=_NANOS)
    if mode == "adaptive" and _digits(typmod) <= 3:
        return ConnectType(Form.TIME, _named("int", "io.debezium.time.Time"), facts, typmod, per_second=_MILLIS)
    return ConnectType(Form.TIME, _named("long", "io.debezium.time.MicroTime"), facts, typmod)


def _timestamp(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType:
    mode = options.time_precision_mode
    if mode == "isostring":
        return ConnectType(Form.TIMESTAMP_TEXT, _named("string", "io.debezium.time.IsoTimestamp"), facts, typmod)
    if mode == "connect":
        avro = _named("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis")
        return ConnectType(Form.TIMESTAMP, avro, facts, typmod, per_second=_MILLIS)
    if mode == "nanoseconds":
        avro = _named("long", "io.debezium.time.NanoTimestamp")
        return ConnectType(Form.TIMESTAMP, avro, facts, typmod, per_second=_NANOS)
    if mode != "microseconds" and _digits(typmod) <= 3:
        avro = _named("long", "io.debezium.time.Timestamp")
        return ConnectType(Form.TIMESTAMP, avro, facts, typmod, per_second=_MILLIS)
    return ConnectType(Form.TIMESTAMP, _named("long", "io.debezium.time.MicroTimestamp"), facts, typmod)


def _timestamptz(facts: TypeFacts, typmod: int, _: DebeziumSettings) -> ConnectType:
    avro = _named("string", "io.debezium.time.ZonedTimestamp")
    return ConnectType(Form.ZONED_TIMESTAMP, avro, facts, typmod, digits=_digits(typmod))


def _interval(facts: TypeFacts, typmod: int, options: DebeziumSettings) -> ConnectType:
    if options.interval_handling_mode == "string":
        return ConnectType(Form.DURATION_TEXT, _named("string", "io.debezium.time.Interval"), facts, typmod)
    return ConnectType(Form.DURATION, _named("long", "io.debezium.time.MicroDuration"), facts, typmod)


def _bits(facts: TypeFacts, typmod: int, _: DebeziumSettings) -> ConnectType:
    if typmod == 1:
        return ConnectType(Form.BIT, "boolean", facts, typmod)
    length = {"length": str(_UNLIMITED_BITS if typmod < 0 else typmod)}
    return ConnectType(
        Form.BITS, _named("bytes", "io.debezium.data.Bits", **{"connect.parameters": length}), facts, typmod
    )


_BY_OPTION: Final[dict[int, Callable[[TypeFacts, int, DebeziumSettings], ConnectType]]] = {
    17: _bytea,
    790: _money,
    1082: _date,
    1083: _time,
    1114: _timestamp,
    1184: _timestamptz,
    1186: _interval,
    1560: _bits,
    1562: _bits,
    1700: _numeric,
}
