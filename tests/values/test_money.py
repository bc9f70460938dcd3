"""money in the forms that other locales give it: what a server with that lc_monetary writes,
learned from three values."""

from __future__ import annotations

import struct

import pytest

from gateway.values.numeric import money_renderer

GERMAN = ("90.000.000.000.000.000,00 €", "-90.000.000.000.000.000,00 €", "0,00 €")
JAPANESE = ("￥9,000,000,000,000,000,000", "￥-9,000,000,000,000,000,000", "￥0")
ACCOUNTANT = ("$90,000,000,000,000,000.00", "($90,000,000,000,000,000.00)", "$0.00")
KUWAITI = ("KD 9,000,000,000,000,000.000", "KD -9,000,000,000,000,000.000", "KD 0.000")


@pytest.mark.parametrize(
    ("outputs", "units", "text"),
    [
        (GERMAN, 123456, "1.234,56 €"),
        (GERMAN, -5, "-0,05 €"),
        (GERMAN, 2**63 - 1, "92.233.720.368.547.758,07 €"),
        (GERMAN, -(2**63), "-92.233.720.368.547.758,08 €"),
        (JAPANESE, 0, "￥0"),
        (JAPANESE, -1234, "￥-1,234"),
        (ACCOUNTANT, -100, "($1.00)"),
        (ACCOUNTANT, 99_999, "$999.99"),
        (KUWAITI, 1, "KD 0.001"),
        (KUWAITI, 1_000_000, "KD 1,000.000"),
    ],
)
def test_units_are_written_as_the_locale_does(outputs: tuple[str, ...], units: int, text: str) -> None:
    render = money_renderer(outputs)
    assert render is not None
    assert render(struct.pack("!q", units)).decode() == text


@pytest.mark.parametrize("outputs", [(), ("1", "-1", "0"), ("$90,000,000,000,000,000.00", "-9", "$0.00")])
def test_an_unknown_form_is_asked_for_in_text(outputs: tuple[str, ...]) -> None:
    assert money_renderer(outputs) is None
