"""Commands are read as they were written; whatever else somebody emits is not obeyed, and does no harm."""

from __future__ import annotations

import pytest

from gateway.snapshot.commands import Command, NotACommand, encode_command, parse_command


def test_commands_are_read_as_they_were_written() -> None:
    text = encode_command("start", ["public.orders", '"My.Schema".t'], "VERIFY", "walgate")
    tables = (("public", "orders"), ("My.Schema", "t"))
    assert parse_command(text.encode()) == Command("start", tables, "VERIFY", "walgate")
    assert parse_command(encode_command("pause", [], "REPLACE", "").encode()) == Command("pause")
    assert parse_command(b"{}") == Command("start")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b'{"command": "drop"}',
        b'{"command": 1}',
        b'{"command": []}',
        b'{"tables": "public.orders"}',
        b'{"tables": ["orders"]}',
        b'{"tables": [1]}',
        b'{"purpose": "FILL"}',
        b'{"slot": 1}',
        b'{"password": "x"}',
    ],
)
def test_what_is_no_command_is_refused(content: bytes) -> None:
    with pytest.raises(NotACommand):
        parse_command(content)
