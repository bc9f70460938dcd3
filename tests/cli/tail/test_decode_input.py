"""`walgate decode` on what people have: psql's output, a file of frames, one message."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.golden.recording import recording

RECORDED = recording("postgresql-18/identity.text")
HEX_LINES = "\n".join(f"{one.change_lsn}|{one.xid}|\\x{one.payload.hex()}" for one in RECORDED.messages) + "\n"


def decode(*arguments: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(app, ["decode", "--protocol-version", "1", *arguments], input=given)


def names(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [json.loads(line)["message"] for line in result.stdout.splitlines()]


def test_psqls_output_and_frames_and_bare_hexadecimal_are_the_same(tmp_path: Path) -> None:
    from_psql = decode("--json", given=HEX_LINES)
    bare = decode("--json", given="\n".join(one.payload.hex() for one in RECORDED.messages))
    frames = tmp_path / "frames"
    frames.write_bytes(
        b"".join(
            b"d"
            + struct.pack("!iBQQq", len(one.payload) + 29, ord("w"), one.change_lsn, one.change_lsn, 0)
            + one.payload
            for one in RECORDED.messages
        )
    )
    assert decode("--json", str(frames)).stdout == from_psql.stdout
    assert names(from_psql) == names(bare)
    assert json.loads(from_psql.stdout.splitlines()[0])["lsn"] == str(RECORDED.messages[0].change_lsn)
    message = tmp_path / "message"
    message.write_bytes(RECORDED.messages[0].payload)
    assert names(decode("--json", str(message), RECORDED.messages[-1].payload.hex())) == ["Begin", "Commit"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "nothing to decode"),
        (b"42 00 x", "line 1 is not a message"),
        (b"4200", "line 1: pgoutput: Begin"),
        (b"zz", "unknown"),
        (b"d\0\0\0\7w", "CopyData messages of the file"),
    ],
)
def test_what_can_not_be_decoded_is_named_in_one_line(given: bytes, said: str) -> None:
    result = decode(given=given)
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert said in result.output or "known message type" in result.output


def test_what_is_neither_file_nor_hexadecimal() -> None:
    result = decode("no/such/file")
    assert result.exit_code == 1 and "no such file" in result.output
