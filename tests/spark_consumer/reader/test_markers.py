"""Errors of markers say where the marker is."""

from __future__ import annotations

import pytest

from schemas.records import TRANSACTION_MARKER
from spark_consumer.errors import MarkerError
from spark_consumer.reader.markers import MarkerDecoder


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"{}", "the record is not in Confluent's wire format"),
        (b"\0\0\0\0\1", "the marker does not decode with schema 1: EOFError"),
    ],
)
def test_a_marker_that_cannot_be_decoded_is_named_by_its_offset(value: bytes, said: str) -> None:
    decoder = MarkerDecoder({1: TRANSACTION_MARKER}, "cdc.transaction")
    with pytest.raises(MarkerError) as caught:
        decoder.decode(7, value)
    assert str(caught.value) == f"cdc.transaction[0] offset 7: {said}"
