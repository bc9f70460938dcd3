"""Columns under a rule: in every operation and every form of the wire, what leaves is what the rule
says, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.columns import ColumnRule, ColumnSettings
from gateway.errors import StopForOperator
from gateway.events.row_encoder import RowEncoder
from gateway.pgoutput.tuple_data import UNCHANGED, TupleValue
from gateway.runtime.assign_column_rules import protect, unused_rules
from schemas.change_schema import change_schema, key_schema
from schemas.relation import Protect, Protection, RelationDescription, ReplicaIdentity
from tests.events.rows import ALL, FLOAT8, INT8, TEXT, ColumnKind, relation, rows, wire_row
from tests.events.test_row_encoder import encode, encoder_of, key_tuple, new, old
from tests.startup.facts import PUBLICATION
from tests.values.oracle import read_avro

KEY: Final = b"a key of the hashes!"
LENGTH: Final = 3
ACTIONS: Final = (None, *Protect)
KINDS: Final = tuple(kind for kind in ALL if kind is not FLOAT8)
"""Those whose text there is PostgreSQL's."""


def protection(action: Protect | None) -> Protection | None:
    return None if action is None else Protection(action, LENGTH, KEY)


def protected(
    kinds: tuple[ColumnKind, ...], actions: tuple[Protect | None, ...], identity: tuple[int, ...], full: bool
) -> RelationDescription:
    described = relation(kinds, identity, ReplicaIdentity.FULL if full else ReplicaIdentity.DEFAULT)
    columns = tuple(
        replace(column, protection=protection(action))
        for column, action in zip(described.columns, actions, strict=True)
    )
    return replace(described, columns=columns)


def expected(
    kinds: tuple[ColumnKind, ...], actions: tuple[Protect | None, ...], row: tuple[Any, ...], plain: Any
) -> Any:
    """The row as a reader shall see it; `plain`: as it sees it without rules."""
    seen = {}
    for n, (kind, action, value) in enumerate(zip(kinds, actions, row, strict=True)):
        if action is None:
            seen[f"c{n}"] = plain[f"c{n}"]
        elif action is not Protect.DROP:
            seen[f"c{n}"] = None if value is None else shown(action, kind.text(value))
    return seen


def shown(action: Protect, text: bytes) -> str | None:
    if action is Protect.HASH:
        return hmac.new(KEY, text, hashlib.sha256).hexdigest()
    return None if action is Protect.NULL else text.decode()[:LENGTH]


def read(description: RelationDescription, value: bytes) -> Any:
    return read_avro(value, fastavro.parse_schema(change_schema(description, "cdc")))


@given(st.data())
def test_a_reader_gets_what_the_rules_leave_in_both_forms(data: st.DataObject) -> None:
    kinds = (INT8, *data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6)))
    actions = (
        data.draw(st.sampled_from([None, Protect.HASH])),
        *(data.draw(st.sampled_from(ACTIONS)) for _ in kinds[1:]),
    )
    description = protected(kinds, actions, (0,), full=True)
    without = relation(kinds, (0,), ReplicaIdentity.FULL)
    first, second = data.draw(rows(kinds)), data.draw(rows(kinds))
    ids = data.draw(st.tuples(INT8.values, INT8.values))
    before, after = (ids[0], *first[1:]), (ids[1], *second[1:])
    binary = data.draw(st.booleans())
    wire_before, wire_after = (wire_row(kinds, row, binary=binary) for row in (before, after))
    payload = old(wire_before) + new(wire_after)
    key, value, moved = encode(encoder_of(description), "update", payload)
    plain = read(without, encode(encoder_of(without), "update", payload)[1])
    event = read(description, value)
    assert event["before"] == expected(kinds, actions, before, plain["before"])
    assert event["after"] == expected(kinds, actions, after, plain["after"])
    ruled = {f"c{n}" for n, action in enumerate(actions) if action is not None}
    assert not {name.removeprefix("before.") for name in event["special"]} & ruled
    key_of_table = key_schema(description, "cdc")
    assert key_of_table is not None
    parsed_key = fastavro.parse_schema(key_of_table)
    assert key is not None and read_avro(key, parsed_key) == {"c0": event["after"]["c0"]}
    if moved is not None:
        assert moved[0] is not None and read_avro(moved[0], parsed_key) == {"c0": event["before"]["c0"]}
        assert read(description, moved[1])["before"] == event["before"]
    assert (moved is not None) is (ids[0] != ids[1])
    inserted = read(description, encode(encoder_of(description), "insert", new(wire_after))[1])
    deleted = read(description, encode(encoder_of(description), "delete", old(wire_before))[1])
    assert (inserted["after"], deleted["before"]) == (event["after"], event["before"])


SECRET: Final = b"Jane \xe9 <jane@example.org>"
"""Not UTF-8: without a rule it would be in `special`."""


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("action", list(Protect))
def test_text_that_is_not_utf8_is_in_no_record(action: Protect, binary: bool) -> None:
    kinds = (INT8, replace(TEXT, text=lambda value: value, binary=lambda value: value), TEXT)
    description = protected(kinds, (None, action, None), (0,), full=False)
    row = wire_row(kinds, (7, SECRET, "x"), binary=binary)
    for payload in (new(row), new((row[0], row[1], UNCHANGED))):
        _, value, _ = encode(encoder_of(description), "update", payload)
        assert b"jane@" not in value and SECRET.hex().encode() not in value
        assert read(description, value)["special"] == {}


@pytest.mark.parametrize("action", list(Protect))
def test_what_was_not_sent_is_named_where_something_of_it_would_be(action: Protect) -> None:
    kinds = (INT8, TEXT, TEXT)
    description = protected(kinds, (None, action, None), (0,), full=False)
    row: tuple[TupleValue, ...] = (*wire_row((INT8,), (7,), binary=True), UNCHANGED, UNCHANGED)
    event = read(description, encode(encoder_of(description), "update", new(row))[1])
    assert event["unchanged"] == (["c2"] if protection(action).is_hidden else ["c1", "c2"])  # type: ignore[union-attr]
    assert event["after"] == {"c0": 7, "c2": None} | ({} if action is Protect.DROP else {"c1": None})


def test_the_old_key_is_hashed_like_the_key() -> None:
    kinds = (TEXT, TEXT)
    description = protected(kinds, (Protect.HASH, None), (0,), full=False)
    before, after = wire_row(kinds, ("a@b", None), binary=False), wire_row(kinds, ("c@d", "x"), binary=False)
    key, value, moved = encode(encoder_of(description), "update", key_tuple(before) + new(after))
    event = read(description, value)
    assert event["old_key"] == {"c0": shown(Protect.HASH, b"a@b")}
    assert event["after"]["c0"] == shown(Protect.HASH, b"c@d")
    assert key is not None and moved is not None and moved[0] is not None
    assert b"a@b" not in moved[0] + moved[1] + key + value and b"c@d" not in moved[0] + moved[1] + key + value


def test_the_schema_says_which_columns_a_rule_replaces() -> None:
    description = protected((INT8, TEXT, INT8), (None, Protect.HASH, Protect.DROP), (0,), full=False)
    schema = change_schema(description, "cdc")
    (row,) = [field["type"][1]["fields"] for field in schema["fields"] if field["name"] == "before"]
    assert [(field["name"], field.get("pg.protected")) for field in row] == [("c0", None), ("c1", "hash")]
    assert KEY.decode() not in str(schema) + repr(description)


def test_columns_without_a_rule_are_read_by_the_same_readers() -> None:
    ruled = RowEncoder(protected((INT8, TEXT, TEXT), (None, None, Protect.HASH), (0,), full=False), 1, 2)
    plain = RowEncoder(relation((INT8, TEXT, TEXT)), 1, 2)
    assert ruled._readers.columns[:2] == plain._readers.columns[:2]


def rules(*found: dict[str, Any], **settings: Any) -> ColumnSettings:
    return ColumnSettings(rules=tuple(ColumnRule(**each) for each in found), **settings)


def test_the_later_rule_wins_and_one_that_matches_nothing_is_told() -> None:
    settings = rules(
        {"pattern": r"public\.shop orders\.c[12]", "action": "null"},
        {"pattern": r".*\.c2", "action": "truncate", "length": 5},
        {"pattern": r".*\.emial", "action": "drop"},
    )
    found = protect(relation(), settings)
    assert [column.protection for column in found.columns[:3]] == [
        None,
        Protection(Protect.NULL),
        Protection(Protect.TRUNCATE, 5),
    ]
    assert protect(relation(), ColumnSettings()) is not None
    assert any("emial" in warning.message for warning in unused_rules(settings, [PUBLICATION]))


@pytest.mark.parametrize("action", ["drop", "null", "hash", "truncate"])
def test_a_rule_on_a_key_must_say_so(action: str) -> None:
    rule: dict[str, Any] = {"pattern": r".*\.c0", "action": action}
    rule |= {"length": 1} if action == "truncate" else {}
    key = {"hash_key": "x" * 16} if action == "hash" else {}
    with pytest.raises(StopForOperator, match="column c0 is part of the key"):
        protect(relation(), rules(rule, **key))
    if action == "hash":
        found = protect(relation(), rules({**rule, "in_key": True}, **key))
        assert found.columns[0].protection == Protection(Protect.HASH, 0, b"x" * 16)
    else:
        with pytest.raises(ValueError, match="in_key applies to hash only"):
            ColumnRule(**rule, in_key=True)


@pytest.mark.parametrize(
    ("found", "key", "said"),
    [
        ({"action": "hash"}, None, "at least 16 bytes"),
        ({"action": "hash"}, "short", "at least 16 bytes"),
        ({"action": "truncate"}, None, "truncate needs length"),
        ({"action": "null", "length": 3}, None, "it applies to truncate"),
        ({"action": "drop"}, "x" * 16, "no rule has the action hash"),
        ({"action": "drop", "pattern": "("}, None, "not a regular expression"),
    ],
)
def test_rules_that_do_not_fit_are_refused(found: dict[str, Any], key: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rules({"pattern": "a", **found}, hash_key=key)
