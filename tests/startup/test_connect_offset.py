"""A connector's offset, in each form in which it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StopForOperator
from gateway.startup.connect_offset import DebeziumOffset, load_offset, read_offset
from schemas.lsn import Lsn

INSERT = {"transaction_id": None, "lsn_proc": 900, "messageType": "INSERT", "lsn_commit": 900, "lsn": 950, "txId": 77}
READ = DebeziumOffset(Lsn(950), Lsn(900), 77)


def serialized(entries: list[tuple[bytes | None, bytes | None]]) -> bytes:
    """As ObjectOutputStream writes a HashMap of byte arrays."""
    head = bytes.fromhex(
        "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f724900097468726573686f6c64"
        "78703f4000000000000c7708"
    )
    body, arrays = (16).to_bytes(4, "big") + len(entries).to_bytes(4, "big"), 0
    for each in (side for entry in entries for side in entry):
        if each is None:
            body += b"p"
            continue
        body += bytes.fromhex("757200025b42acf317f8060854e00200007870" if not arrays else "7571007e0002")
        body += len(each).to_bytes(4, "big") + each
        arrays += 1
    return head + body + b"x"


def key(server: str) -> bytes:
    return json.dumps(["kafka", {"server": server}]).encode()


def test_every_form_says_the_same() -> None:
    value = json.dumps(INSERT).encode()
    rest = {"offsets": [{"partition": {"server": "shop"}, "offset": INSERT}]}
    record = {"key": ["connector", {"server": "shop"}], "value": INSERT}
    for content in (serialized([(key("shop"), value)]), value, *(json.dumps(each).encode() for each in (rest, record))):
        assert read_offset(content, "shop") == READ


def test_one_of_several_connectors_is_taken_by_its_prefix() -> None:
    other = json.dumps({**INSERT, "lsn": 1}).encode()
    content = serialized([(key("a"), other), (key("gone"), None), (key("shop"), json.dumps(INSERT).encode())])
    assert read_offset(content, "shop") == READ
    for missing in ("gone", "b"):
        with pytest.raises(StopForOperator, match="prefixes in the file: a, gone, shop"):
            read_offset(content, missing)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"messageType": "COMMIT", "lsn_commit": 950}, DebeziumOffset(Lsn(950), Lsn(950))),
        ({"messageType": "BEGIN"}, DebeziumOffset(Lsn(950), Lsn(900))),
        ({"messageType": "MESSAGE"}, READ),
        ({"messageType": "MESSAGE", "lsn_commit": 950, "txId": None}, DebeziumOffset(Lsn(950), Lsn(950))),
        ({"lsn": 850}, DebeziumOffset(Lsn(850), Lsn(900), 77)),
        ({"incremental_snapshot_collections": "[]"}, DebeziumOffset(Lsn(950), Lsn(900), 77, False, True)),
        ({"snapshot": "INITIAL", "last_snapshot_record": True}, DebeziumOffset(Lsn(950), Lsn(900), 0, True, False)),
        ({"snapshot": "INITIAL", "snapshot_completed": False}, DebeziumOffset(Lsn(950), Lsn(900), 0, True, True)),
        ({"snapshot": "INITIAL", "snapshot_completed": True}, DebeziumOffset(Lsn(950), Lsn(900), 0, True, False)),
    ],
)
def test_what_the_offset_stands_for(change: dict[str, Any], wanted: DebeziumOffset) -> None:
    """An event may lie before the last commit: its transaction was open then. What is None, the
    connector leaves out."""
    offset = {name: value for name, value in (INSERT | change).items() if value is not None}
    assert read_offset(json.dumps(offset).encode(), "shop") == wanted


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"null", b'{"lsn": "x"}', b'{"offsets": [{}]}', b"\xac\xed\x00\x05"]
)
def test_what_is_no_offset_is_refused(content: bytes) -> None:
    with pytest.raises(StopForOperator, match="not an offset of a Debezium connector"):
        read_offset(content, "shop")


@pytest.mark.parametrize("offsets", [[], [("shop", None)], [("other", INSERT)]])
def test_an_answer_without_the_offset_is_refused_with_the_causes(offsets: list[Any]) -> None:
    listed = [{"partition": {"server": name}, "offset": offset} for name, offset in offsets]
    with pytest.raises(StopForOperator, match="found 0 offsets") as refused:
        read_offset(json.dumps({"offsets": listed}).encode(), "shop")
    assert (
        "topic.prefix" in refused.value.hint and "name of the connector in the URL may be wrong" in refused.value.hint
    )


def test_an_offset_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "offsets.dat"
    with pytest.raises(StopForOperator, match="No such file"):
        load_offset(file, "shop")
    file.write_bytes(serialized([(key("shop"), json.dumps(INSERT).encode())]))
    assert load_offset(file, "shop") == READ


def test_an_entry_without_a_key_is_of_nobody() -> None:
    whole = serialized([(None, b"{}"), (key("shop"), json.dumps(INSERT).encode())])
    assert read_offset(whole, "shop") == READ
    with pytest.raises(StopForOperator, match="bytes left over|not an offset"):
        read_offset(whole + b"x", "shop")


@given(st.data())
def test_a_file_that_is_cut_off_is_refused(data: st.DataObject) -> None:
    whole = serialized([(key("shop"), json.dumps(INSERT).encode())])
    cut = whole[: data.draw(st.integers(4, len(whole) - 1))]
    with pytest.raises(StopForOperator, match="not an offset of a Debezium connector"):
        read_offset(cut, "shop")
