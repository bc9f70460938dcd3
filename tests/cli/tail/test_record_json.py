"""Records of Debezium's dialect with values that Python's types, or fastavro, do not have."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest

from gateway.cli.tail.record_json import UnreadableRecord, _decoded
from gateway.config.debezium import DebeziumSettings
from gateway.debezium.connect_codec import connect_codec
from gateway.debezium.envelope_schema import CatalogColumn, connect_relation, key_schema
from schemas.wire_format import frame
from tests.schemas.relations import column, numeric_typmod, relation


@pytest.mark.parametrize(
    ("type_name", "typmod", "value", "shown"),
    [
        ("date", -1, b"2026-11-22", datetime.date(2026, 11, 22)),
        ("date", -1, b"10000-01-01", 2_932_897),
        ("date", -1, b"infinity", -2_147_472_692),
        ("timestamp", -1, b"10000-01-01 00:00:00", 253_402_300_800_000),
        ("numeric", numeric_typmod(3, 5), b"0.00123", Decimal("0.00123")),
        ("numeric", numeric_typmod(5, -2), b"12300", b"\x7b"),
    ],
)
def test_values_that_python_does_not_have_are_numbers(type_name: str, typmod: int, value: bytes, shown: object) -> None:
    described = relation(
        column("v", type_name, typmod, key=True), column("n", "numeric", numeric_typmod(5, 2), key=True)
    )
    catalog = [CatalogColumn("v", True), CatalogColumn("n", True)]
    connect = connect_relation(described, catalog, ["v", "n"], DebeziumSettings(time_precision_mode="connect"))
    schema = key_schema(connect, "p.public.orders")
    assert schema is not None
    first, second = connect.columns
    assert first is not None and second is not None
    record = frame(1) + connect_codec(first).from_text(value) + connect_codec(second).from_text(b"1.50")
    assert _decoded(record, schema, 1) == {"v": shown, "n": Decimal("1.50")}
    with pytest.raises(UnreadableRecord, match="does not match schema 1: EOFError"):
        _decoded(record[:-3], schema, 1)
