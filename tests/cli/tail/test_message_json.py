"""Recorded streams as people see them. The oracle for values is the server: its own text beside its
binary form."""

from __future__ import annotations

import json

import pytest

from gateway.cli.tail.filters import MessageFilter
from gateway.cli.tail.format import as_json, as_line
from gateway.cli.tail.message_json import MessageRenderer, Shown
from gateway.pgoutput.decode import MESSAGE_NAMES
from gateway.values.built_in_types import built_in_types
from gateway.values.renderers import renderer
from tests.golden.recording import Recording, recording, recordings


def shown(recorded: Recording) -> list[Shown]:
    shower = MessageRenderer(recorded.protocol_version)
    return [shower.show(each.payload, each.change_lsn) for each in recorded.messages]


@pytest.mark.parametrize("name", [one.name for one in recordings()])
def test_every_recorded_message_is_one_line(name: str) -> None:
    for each in shown(recording(name)):
        assert json.loads(as_json(each)) == each
        assert as_json(each).isprintable() and as_line(each).isprintable()


def test_all_messages_of_the_protocol_occur() -> None:
    seen = {each["message"] for one in recordings() for each in shown(one)}
    assert seen == set(MESSAGE_NAMES.values())


@pytest.mark.parametrize("scenario", ["identity", "types"])
def test_binary_values_read_as_the_servers_own_text(scenario: str) -> None:
    text, binary = (shown(recording(f"postgresql-18/{scenario}.{form}")) for form in ("text", "binary"))

    def rows(messages: list[Shown]) -> list[Shown]:
        return [
            {part: each.get(part) for part in ("key", "old", "new", "unchanged")} for each in messages if "new" in each
        ]

    built_in = {facts.name for facts in built_in_types() if renderer(facts) is not None and not facts.outputs}
    types = {column["name"]: column["type"] for each in binary for column in each.get("columns", ())}
    compared = 0
    for expected, found in zip(rows(text), rows(binary), strict=True):
        for column, value in expected["new"].items():
            if types[column] in built_in or value is None:
                assert found["new"][column] == value, column
                compared += 1
            else:
                assert found["new"][column] == value or found["new"][column].startswith("\\x"), column
    assert compared >= 5


def test_a_row_before_its_relation_has_numbers_for_names() -> None:
    inserts = [each.payload for each in recording("postgresql-18/identity.text").messages if each.payload[:1] == b"I"]
    assert list(MessageRenderer(1).show(inserts[1])["new"].items()) == [("1", "2"), ("2", "b"), ("3", None)]


def test_filters_leave_whole_transactions_out() -> None:
    everything = shown(recording("postgresql-18/identity.text"))
    chosen = MessageFilter(["by_full"], ["delete"])
    found = [one for each in everything for one in chosen.choose(each)]
    assert [one["message"] for one in found] == ["Begin", "Delete", "Delete", "Commit"]
    assert {one["relation"] for one in found if "relation" in one} == {"public.by_full"}
    nothing = MessageFilter([], [])
    assert [one for each in everything for one in nothing.choose(each)] == everything


def test_the_end_of_a_streamed_transaction_is_chosen_with_its_rows() -> None:
    everything = shown(recording("postgresql-18/stream_commit.parallel"))
    tables = sorted({each["relation"] for each in everything if each["message"] == "Insert"})
    chosen = MessageFilter(tables[:1], [])
    names = [one["message"] for each in everything for one in chosen.choose(each)]
    assert "Stream Commit" in names and names.count("Stream Start") == names.count("Stream Stop") > 0
    none = MessageFilter(["no.such"], [])
    assert not [one for each in everything for one in none.choose(each)]


def test_a_long_value_is_cut_for_people_only() -> None:
    value = {"message": "Insert", "relation": "public.t", "new": {"big": "x" * 3000, "bell": "\x1b[31m\x9b"}}
    line = as_line(value)
    assert "(3000 characters)" in line and len(line) < 400 and line.isprintable()
    assert json.loads(as_json(value)) == value


def test_a_table_that_is_not_there_is_named_with_one_that_is() -> None:
    chosen = MessageFilter(["public.orders", "order*", "itmes", "publc.items", "nothing"], [])
    assert list(chosen.unmatched(["public.orders", "public.items"])) == [
        ("itmes", "items"),
        ("publc.items", "public.items"),
        ("nothing", ""),
    ]
