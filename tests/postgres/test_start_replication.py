from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import StopForOperator
from gateway.postgres.connection import connect_sql
from gateway.postgres.start_replication import (
    pgoutput_options,
    protocol_version,
    quote_literal,
    quoted_identifier,
    start_command,
)
from schemas.lsn import Lsn
from tests.conftest import Database

names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=63).filter(
    lambda name: len(name.encode()) <= 63
)


@pytest.mark.parametrize(
    ("version_num", "protocol", "streaming"),
    [
        (140011, "2", "on"),
        (150002, "3", "on"),
        (160000, "4", "parallel"),
        (170010, "4", "parallel"),
        (180006, "4", "parallel"),
    ],
)
def test_each_version_gets_the_highest_it_has(version_num: int, protocol: str, streaming: str) -> None:
    options = pgoutput_options(version_num, ["p"])
    assert options["proto_version"] == protocol == str(protocol_version(version_num))
    assert options["streaming"] == streaming
    assert ("origin" in options) == (version_num >= 160000)
    assert "two_phase" not in options


def test_streaming_can_be_switched_off() -> None:
    assert pgoutput_options(180000, ["p"], streaming=False)["streaming"] == "off"


def test_two_phase_is_asked_for() -> None:
    assert pgoutput_options(150000, ["p"], two_phase=True)["two_phase"] == "on"


def test_origin_none_is_refused_before_16() -> None:
    with pytest.raises(StopForOperator, match="origin"):
        pgoutput_options(150000, ["p"], origin="none")


def test_command_is_the_one_of_the_manual() -> None:
    assert start_command("s", Lsn.parse("16/B374D848"), {"proto_version": "4", "publication_names": '"o\'x"'}) == (
        "START_REPLICATION SLOT \"s\" LOGICAL 16/B374D848 (proto_version '4', publication_names '\"o''x\"')"
    )


@pytest.mark.parametrize("name", ["", "A", "a b", 'a"', "a" * 64, "ä", "a\n"])
def test_what_is_no_slot_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="slot name"):
        start_command(name, Lsn(0), {})


@pytest.mark.parametrize("name", ["", "a\0b", "ä" * 32, "x" * 64])
def test_what_is_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="invalid name"):
        quoted_identifier(name)


def test_option_names_are_checked() -> None:
    with pytest.raises(ValueError, match="option name"):
        start_command("s", Lsn(0), {"a') --": "x"})


def test_zero_byte_can_not_be_quoted() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        quote_literal("a\0b")


@given(names)
def test_quoting_can_be_undone(name: str) -> None:
    quoted = quoted_identifier(name)
    assert re.fullmatch('"([^"]|"")*"', quoted, re.S) and quoted[1:-1].replace('""', '"') == name
    literal = quote_literal(quoted)
    assert re.fullmatch("'([^']|'')*'", literal, re.S) and literal[1:-1].replace("''", "'") == quoted


@given(names)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_quoted_names_mean_the_same_to_postgresql(database: Database, name: str) -> None:
    sql = await connect_sql(database.dsn, search_path="public")
    try:
        assert await sql.fetchval("SELECT parse_ident($1)", quoted_identifier(name)) == [name]
    finally:
        await sql.close()
