"""What a mirror says is read as it was written, and a file that is written just now is nothing
yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.verdict import (
    Difference,
    TableVerdict,
    decode_lsn,
    decode_verdict,
    encode_lsn,
    encode_verdict,
    ended_path,
    reached_path,
    verdict_path,
)

VERDICT = TableVerdict(
    "public.orders", "VERIFY", "one", 10, 20, 5, 1, 0, 1, (Difference("CHANGED", '{"id":1}', ("n",)), Difference("SURPLUS", None))
)  # fmt: skip


def test_a_verdict_is_read_as_it_was_written() -> None:
    text = encode_verdict(VERDICT).encode()
    assert decode_verdict(text) == VERDICT and VERDICT.difference_count == 2
    for end in range(len(text) - 1):
        with pytest.raises(ValueError, match="not a verdict"):
            decode_verdict(text[:end])
    for other in (b"[]", b"1", b"{}", b'{"keys": [{}]}', b'{"keys": [], "other": 1}'):
        with pytest.raises(ValueError, match="not a verdict"):
            decode_verdict(other)


def test_a_verdict_is_as_earlier_releases_wrote_it_unless_surplus_rows_are_unknown() -> None:
    assert "surplus_unknown" not in encode_verdict(VERDICT)
    unknown = replace(VERDICT, surplus_unknown=True)
    assert decode_verdict(encode_verdict(unknown).encode()) == unknown


def test_an_lsn_is_read_as_it_was_written() -> None:
    assert decode_lsn(encode_lsn(1 << 40).encode()) == 1 << 40
    for other in (b"", b"[]", b"{}", b'{"commit_lsn": null}', b'{"commit_lsn": "x"}'):
        with pytest.raises(ValueError, match="not a commit LSN"):
            decode_lsn(other)


def test_no_table_has_the_file_of_another_nor_one_outside() -> None:
    assert verdict_path("/m", "public.orders") == "/m/verdicts/public/orders.json"
    assert verdict_path("/m", 'public."../../x"') == "/m/verdicts/public/-2e-2e-2f-2e-2e-2fx.json"
    names = {verdict_path("/m", name) for name in ("a.b_c", "a_b.c", '"a.b".c', "ended.json")}
    assert len(names | {ended_path("/m"), reached_path("/m")}) == 6
    with pytest.raises(ValueError, match=r"not schema\.table"):
        verdict_path("/m", "orders")
