"""Columns under a rule in Debezium's dialect: what leaves is what the rule says, in keys, rows, old
rows and schemas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.config.columns import ColumnRule, ColumnSettings
from gateway.config.debezium import DebeziumSettings
from gateway.debezium.envelope_schema import (
    CatalogColumn,
    adjusted_name,
    connect_relation,
    envelope_schema,
    key_schema,
)
from gateway.errors import StopForOperator, UnwritableRelation
from gateway.pgoutput.tuple_data import UNCHANGED
from gateway.runtime.assign_column_rules import check_key, protect, refuse_renamed
from schemas.change_schema import change_schema
from schemas.relation import Kind, Protect, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.schema_metadata import FormerRelation, recorded_relation_and_columns
from tests.debezium.test_dialect import TOPIC, Dialect, new, old
from tests.events.rows import INT4, INT8, TEXT, relation, rows, wire_row
from tests.events.test_protection import ACTIONS, KINDS, expected, protected, protection, shown

SECRET: Final = b"Jane \xe9 <jane@example.org>"
"""Not UTF-8."""


def written(dialect: Dialect) -> bytes:
    return b"".join(part or b"" for record in dialect.records for part in record[1:])


@given(st.data())
def test_a_reader_gets_what_the_rules_leave_in_both_forms(data: st.DataObject) -> None:
    kinds = (INT8, *data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6)))
    actions = (
        data.draw(st.sampled_from([None, Protect.HASH])),
        *(data.draw(st.sampled_from(ACTIONS)) for _ in kinds[1:]),
    )
    first, second = data.draw(rows(kinds)), data.draw(rows(kinds))
    ids = data.draw(st.tuples(INT8.values, INT8.values))
    before, after = (ids[0], *first[1:]), (ids[1], *second[1:])
    never_null = [at for at, values in enumerate(zip(before, after, strict=True)) if None not in values]
    required = tuple(data.draw(st.sets(st.sampled_from(never_null))) | {0})
    ruled = Dialect(description=protected(kinds, actions, (0,), full=True), required=required)
    plain = Dialect(description=relation(kinds, (0,), ReplicaIdentity.FULL), required=required)
    binary = data.draw(st.booleans())
    wire_before, wire_after = (wire_row(kinds, row, binary=binary) for row in (before, after))
    for each in (ruled, plain):
        each.begin()
        each.row(b"I", new(*wire_after))
        each.row(b"U", old(*wire_before) + new(*wire_after))
        each.row(b"D", old(*wire_before))
    assert not ruled.reasons or ruled.reasons == [
        reason for reason in plain.reasons if actions[int(reason[1].removeprefix("c"))] is None
    ]
    found, without = ruled.read(), plain.read()
    assert len(found) == len(without)
    for record, other in zip(found, without, strict=True):
        if record.value is None or other.value is None:
            assert record.value is other.value is None
            continue
        for side, row in (("before", before), ("after", after)):
            if other.value[side] is None:
                assert record.value[side] is None
            else:
                assert record.value[side] == expected(kinds, actions, row, other.value[side])
        shown_row = record.value["after"] or record.value["before"]
        assert record.key == {"c0": shown_row["c0"]}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("action", list(Protect))
def test_text_that_is_not_utf8_is_in_no_record(action: Protect, binary: bool) -> None:
    kinds = (INT8, replace(TEXT, text=lambda value: value, binary=lambda value: value), TEXT)
    dialect = Dialect(description=protected(kinds, (None, action, None), (0,), full=False))
    row = wire_row(kinds, (7, SECRET, "x"), binary=binary)
    dialect.begin()
    dialect.row(b"I", new(*row))
    dialect.row(b"U", new(row[0], row[1], UNCHANGED))
    content = written(dialect)
    assert b"jane@" not in content and SECRET.hex().encode() not in content


@pytest.mark.parametrize("action", list(Protect))
def test_what_was_not_sent_has_the_placeholder_where_something_of_it_would_be(action: Protect) -> None:
    dialect = Dialect(description=protected((INT8, TEXT), (None, action), (0,), full=False))
    dialect.begin()
    dialect.row(b"U", new(*wire_row((INT8,), (7,), binary=True), UNCHANGED))
    (record,) = dialect.read()
    assert record.value is not None
    said = {Protect.HASH: "__debezium_unavailable_value", Protect.TRUNCATE: "__debezium_unavailable_value"}
    assert record.value["after"] == {"c0": 7} | ({} if action is Protect.DROP else {"c1": said.get(action)})


def test_a_key_is_hashed_in_every_record_of_a_change_of_key() -> None:
    dialect = Dialect(description=protected((TEXT, TEXT), (Protect.HASH, None), (0,), full=False))
    before, after = wire_row((TEXT,), ("a@b",), binary=False), wire_row((TEXT, TEXT), ("c@d", "x"), binary=False)
    dialect.begin()
    dialect.row(b"U", old(*before, None, letter=b"K") + new(*after))
    content = written(dialect)
    assert b"a@b" not in content and b"c@d" not in content
    found = [(record.key and record.key["c0"], record.value and record.value["op"]) for record in dialect.read()]
    old_key, new_key = shown(Protect.HASH, b"a@b"), shown(Protect.HASH, b"c@d")
    assert found == [(old_key, "d"), (old_key, None), (new_key, "c")]


def test_schemas_say_which_columns_a_rule_replaces() -> None:
    kinds, actions = (INT8, INT8, INT4, TEXT), (None, Protect.HASH, Protect.NULL, Protect.DROP)
    described = protected(kinds, actions, (0,), full=False)
    catalog = [CatalogColumn(f"c{at}", True) for at in range(4)]
    connect = connect_relation(described, catalog, ["c0"], DebeziumSettings())
    (before, *_) = envelope_schema(connect, TOPIC)["fields"]
    assert before["type"][1]["fields"] == [
        {"name": "c0", "type": "long"},
        {"name": "c1", "type": "string", "pg.protected": "hash"},
        {"name": "c2", "type": ["null", "int"], "default": None, "pg.protected": "null"},
    ]
    assert "pg.protected" not in str(key_schema(connect, TOPIC))


def test_a_type_that_debezium_does_not_support_is_hashed_all_the_same() -> None:
    """Composite types and domains too: a hash is of PostgreSQL's text."""
    described = relation((INT8, TEXT, TEXT))
    of_text = TypeFacts(70001, "public", "words", Kind.DOMAIN, base=described.columns[1].facts)
    facts = (described.columns[0].facts, TypeFacts(70000, "public", "pair", Kind.COMPOSITE), of_text)
    columns = tuple(
        replace(column, facts=each, protection=protection(Protect.HASH if at else None))
        for at, (column, each) in enumerate(zip(described.columns, facts, strict=True))
    )
    dialect = Dialect(description=replace(described, columns=columns))
    dialect.begin()
    dialect.row(b"I", new(*wire_row((INT8, TEXT, TEXT), (1, "(1,2)", "x"), binary=False)))
    (record,) = dialect.read()
    assert record.value is not None
    hashed = shown(Protect.HASH, b"(1,2)"), shown(Protect.HASH, b"x")
    assert record.value["after"] == {"c0": 1, "c1": hashed[0], "c2": hashed[1]}


def _rules(**more: Any) -> ColumnSettings:
    rule: dict[str, Any] = {"pattern": r".*\.c0", "action": "hash", **more}
    return ColumnSettings(rules=(ColumnRule(**rule),), hash_key=SecretStr("x" * 16))


def test_a_rule_on_a_key_that_is_not_the_replica_identity_must_say_so() -> None:
    """The primary key under REPLICA IDENTITY NOTHING."""
    described: RelationDescription = relation(identity=(), replica_identity=ReplicaIdentity.NOTHING)
    found = protect(described, _rules())
    with pytest.raises(StopForOperator, match="column c0 is part of the key"):
        check_key(found, (0,), _rules())
    check_key(found, (1,), _rules())
    check_key(found, (0,), _rules(in_key=True))


def _renamed(*columns: tuple[str, int | None], name: str = "t") -> RelationDescription:
    described = tuple(
        replace(relation((TEXT,)).columns[0], name=column, attnum=number, identity=False) for column, number in columns
    )
    return replace(relation((TEXT,)), namespace="s", name=name, columns=described)


RULE_OF_MAIL = ColumnSettings(rules=(ColumnRule(pattern=r"s\.t\.e-mail", action="null"),))


@pytest.mark.parametrize(
    ("former", "now", "stops"),
    [
        ({"e-mail": 1, "n": 2}, _renamed(("contact", 1), ("n", 2)), "contact"),
        ({"e-mail": 1, "n": 2}, _renamed(("n", 1), ("e-mail", 2)), "n"),
        ({"e-mail": 1}, _renamed(("e-mail", 1), name="other"), "e-mail"),
        ({"e-mail": 1, "n": 2}, _renamed(("e-mail", 1), ("n", 2), ("new", 3)), None),
        ({"e-mail": 1, "n": 2}, _renamed(("n", 2), ("new", 3)), None),
        ({"e-mail": 1, "n": 2}, _renamed(("contact", None), ("n", 2)), "contact"),
        ({"e-mail": None, "n": None}, _renamed(("contact", 1), ("n", 2)), "contact"),
        ({"e-mail": None, "n_1": None}, _renamed(("n-1", 2), ("e-mail", 3)), None),
        ({"e-mail": None, "n_1": None}, _renamed(("n-1", 2)), None),
        ({"n": 1, "e-mail": 2}, _renamed(("n", 1), ("contact", None), ("e-mail", None)), "contact"),
        ({"n": 1, "e-mail": 2}, _renamed(("e-mail", None), ("n", None)), "n"),
        ({"n": 1, "e-mail": 2}, _renamed(("n", None), ("e-mail", None), ("new", None)), None),
        ({"n": 1, "e-mail": 2, "m": 3}, _renamed(("n", 1), ("m", 3), ("e-mail", 4)), None),
        ({"mail": 1}, _renamed(("contact", 1)), None),
        ({}, _renamed(("contact", 1)), None),
    ],
)
def test_a_column_leaves_a_rule_by_its_name_alone(
    former: dict[str, int | None], now: RelationDescription, stops: str | None
) -> None:
    found = protect(now, RULE_OF_MAIL)
    before = FormerRelation("s", "t", former)
    if stops is None:
        refuse_renamed(found, before, RULE_OF_MAIL, adjusted_name)
    else:
        with pytest.raises(UnwritableRelation, match=rf"s\.\w+: column {stops} was s\.t\.e-mail, which the rule"):
            refuse_renamed(found, before, RULE_OF_MAIL, adjusted_name)


@pytest.mark.parametrize("action", list(Protect))
def test_a_schema_says_which_columns_have_a_rule_even_if_they_have_no_field(action: Protect) -> None:
    described = protected((INT8, TEXT), (None, action), (0,), full=False)
    described = replace(described, columns=(described.columns[0], replace(described.columns[1], attnum=7)))
    connect = connect_relation(described, [], ["c0"], DebeziumSettings())
    for schema in (change_schema(described, "cdc"), envelope_schema(connect, TOPIC)):
        former = recorded_relation_and_columns(schema, "", "")
        assert (former.namespace, former.name) == (described.namespace, described.name)
        assert former.columns == {"c0": None, "c1": 7}
    plain = connect_relation(relation((INT8, TEXT)), [], ["c0"], DebeziumSettings())
    assert "pg.relation" not in envelope_schema(plain, TOPIC)
    former = recorded_relation_and_columns(envelope_schema(plain, TOPIC), "public", "t")
    assert former == FormerRelation("public", "t", {"c0": None, "c1": None})
