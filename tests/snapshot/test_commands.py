"""Commands are read as they were written; whatever else somebody emits is not obeyed, and does no
harm."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.config.settings import Settings
from gateway.postgres.credentials import Credentials
from gateway.snapshot.commands import (
    Choice,
    Command,
    InvalidCommand,
    accepted,
    choose,
    encode_command,
    parse_command,
    unpublished,
)
from tests.conftest import Database


def test_commands_are_read_as_they_were_written() -> None:
    text = encode_command("start", ["public.orders", '"My.Schema".t'], "VERIFY", "walgate")
    tables = (("public", "orders"), ("My.Schema", "t"))
    assert parse_command(text.encode()) == Command("start", tables, "VERIFY", "walgate")
    assert parse_command(encode_command("pause", [], "REPLACE", "").encode()) == Command("pause")
    assert parse_command(b"{}") == Command("start")


def test_a_table_that_is_not_named_with_its_schema_is_told_with_the_form() -> None:
    with pytest.raises(
        InvalidCommand, match=r"not a table name: orders; expected schema\.table, such as public\.orders"
    ):
        encode_command("start", ["orders", "public.items"], "REPLACE", "walgate")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        pytest.param(b"[" * 100_000, id="nested"),  # any role that can connect may send this
        b'{"command": "drop"}',
        b'{"command": 1}',
        b'{"command": []}',
        b'{"tables": "public.orders"}',
        b'{"tables": ["orders"]}',
        b'{"tables": [1]}',
        b'{"purpose": "FILL"}',
        b'{"slot": 1}',
        b'{"password": "x"}',
        b'{"command": "cancel", "tables": ["public.orders"]}',
    ],
)
def test_what_is_no_command_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidCommand):
        parse_command(content)


@pytest.mark.parametrize(
    ("place", "reason"),
    [({"in_stream": True}, "prepared transaction"), ({"in_stream": False, "is_second": True}, "same transaction")],
)
def test_a_command_that_could_not_be_carried_out_at_its_commit_is_refused(place: dict[str, bool], reason: str) -> None:
    settings = Settings.model_validate({"source": {"dsn": "postgresql://u@h/d"}})
    with capture_logs() as logs:
        assert accepted(b'{"command": "cancel"}', settings, **place) is None
    assert reason in logs[0]["reason"]
    assert accepted(b'{"command": "cancel"}', settings, in_stream=False) == Command("cancel")


PUBLISHED = {("a", "filled"): 1, ("a", "replaced"): 2, ("a", "verified"): 3, ("a", "done"): 4}
UNDER_WAY = {1: "FILL", 2: "REPLACE", 3: "VERIFY"}


def test_a_verify_does_not_end_what_brings_the_rows() -> None:
    both = {3: ("a", "verified"), 4: ("a", "done")}
    found = choose(Command("start", purpose="VERIFY"), PUBLISHED, UNDER_WAY)
    assert found == Choice(both, [], [], ["a.filled", "a.replaced"])
    named = Command("start", (("a", "filled"), ("a", "done"), ("a", "gone")), "VERIFY")
    assert choose(named, PUBLISHED, UNDER_WAY) == Choice({4: ("a", "done")}, ["a.gone"], [], ["a.filled"])


def test_a_table_in_quarantine_is_not_read() -> None:
    found = choose(Command("start", (("a", "done"), ("a", "filled"))), PUBLISHED, UNDER_WAY, {4})
    assert found == Choice({1: ("a", "filled")}, [], ["a.done"], [])


def test_a_replace_takes_the_place_of_whatever_is_under_way() -> None:
    everything = {oid: name for name, oid in PUBLISHED.items()}
    assert choose(Command("start"), PUBLISHED, UNDER_WAY) == Choice(everything, [], [], [])


@pytest.mark.integration
async def test_a_table_that_is_not_published_is_told_with_the_nearest_one(database: Database) -> None:
    sql = await database.connect()
    await sql.execute('CREATE TABLE orders (id int); CREATE TABLE "a.b" (id int); CREATE PUBLICATION p FOR ALL TABLES')
    asked = ["public.orders", "public.oders", "far.away", 'public."a.b"', 'public."a.c"']
    found = await unpublished(Credentials(database.dsn), ("p",), asked)
    assert found == {"public.oders": "public.orders", "far.away": "", 'public."a.c"': 'public."a.b"'}


@pytest.mark.integration
@pytest.mark.timeout(30)
async def test_names_are_checked_while_a_table_is_locked(database: Database) -> None:
    holder = await database.connect()
    await holder.execute("CREATE TABLE orders (id int); CREATE PUBLICATION p FOR ALL TABLES")
    await holder.execute("BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    assert not await unpublished(Credentials(database.dsn), ("p",), ["public.orders"])
