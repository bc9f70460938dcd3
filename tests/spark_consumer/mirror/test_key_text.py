"""The text of a key becomes what a row of the same key holds: a value, or the text where the
gateway sends `special`."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from gateway.values.dates import date_from_text, time_from_text, timestamp_from_text
from gateway.values.special_values import UnrepresentableValue
from schemas.change_schema import change_schema
from schemas.relation import Kind, TypeFacts
from spark_consumer.mirror.fold.key_text import parse_keys
from spark_consumer.mirror.tables.table_schema import TableSchema
from tests.spark_consumer.feeder import TEXT, relation

DATES = ("0001-01-01", "9999-12-31", "10000-01-01", "5874897-12-31", "0044-03-15 BC", "infinity")
TIMES = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999")


@pytest.mark.parametrize(
    ("texts", "arrow_type", "encode"),
    [
        (DATES, pa.date32(), date_from_text),
        (TIMES, pa.timestamp("us"), timestamp_from_text),
        (("00:00:00", "23:59:59.999999", "24:00:00"), pa.string(), time_from_text),
    ],
)
def test_a_key_is_text_where_the_row_is(
    texts: tuple[str, ...], arrow_type: pa.DataType, encode: Callable[[bytes], bytes]
) -> None:
    values, specials = parse_keys(pa.array(texts), arrow_type)
    for text, value, special in zip(texts, values.is_valid().to_pylist(), specials.to_pylist(), strict=True):
        try:
            encode(text.encode())
        except UnrepresentableValue:
            assert (value, special) == (False, text)
        else:
            assert (value, special) == (True, None)


def test_the_time_24_00_is_a_key_like_others() -> None:
    """It is special in rows, and text in both Arrow types."""
    time = TypeFacts(1083, "pg_catalog", "time", Kind.BASE)
    shape = TableSchema.of(change_schema(relation("shifts", {"start": time, "note": TEXT}, ("start", "note")), "cdc"))
    assert shape.uncertain_key == {"start"}
