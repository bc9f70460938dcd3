from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postgres.copy_frames import FrameError
from gateway.postgres.server_message import ServerMessage, parse_server_message
from tests.postgres.writer import server_message

texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)


@given(texts, texts, texts, texts)
def test_fields_come_back_as_they_were_written(sqlstate: str, text: str, detail: str, hint: str) -> None:
    body = server_message(
        "E", {"S": "FEHLER", "V": "ERROR", "C": sqlstate, "M": text, "D": detail, "H": hint, "Q": "new"}
    )[5:]
    assert parse_server_message(body) == ServerMessage("ERROR", sqlstate, text, detail, hint)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing_but_frame_errors(body: bytes) -> None:
    with contextlib.suppress(FrameError):
        parse_server_message(body)


def test_every_prefix_and_every_suffix_is_an_error() -> None:
    body = server_message("E", {"V": "ERROR", "C": "55006", "M": "busy"})[5:]
    for cut in range(len(body)):
        with pytest.raises(FrameError):
            parse_server_message(body[:cut])
    with pytest.raises(FrameError):
        parse_server_message(body + b"x")


def test_old_servers_without_the_untranslated_severity_are_understood() -> None:
    said = parse_server_message(server_message("E", {"S": "FATAL", "C": "57P01", "M": "bye"})[5:])
    assert said.severity == "FATAL"


@pytest.mark.parametrize("sqlstate", ["22021", "22P02", "23505"])
def test_texts_that_quote_values_are_not_repeated(sqlstate: str) -> None:
    said = ServerMessage("ERROR", sqlstate, "invalid input: secret", "Key (id)=(secret)")
    assert "secret" not in str(said)


def test_text_about_a_parameter_is_repeated() -> None:
    assert "streaming" in str(ServerMessage("ERROR", "22023", "invalid value for streaming"))
