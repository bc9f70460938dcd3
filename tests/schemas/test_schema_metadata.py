from __future__ import annotations

import json
from dataclasses import replace

import pytest

from schemas.change_schema import MOST_DEFAULT_BYTES, change_schema, columns_without_default, enums_without_labels
from schemas.relation import Attribute, Kind, MissingValue, TypeFacts
from schemas.schema_metadata import recorded_attributes, recorded_key, recorded_oid, recorded_relation, recorded_types
from tests.schemas.relations import array_of, built_in, column, numeric_typmod, relation

MOOD = TypeFacts(20001, "public", "mood", Kind.ENUM, labels=("sad", "glad"))
PRICE = TypeFacts(20002, "public", "price", Kind.DOMAIN, base=built_in("numeric"), base_typmod=numeric_typmod(8, 2))
PATH = TypeFacts(20003, "public", "path", Kind.DOMAIN, base=array_of(built_in("int4")))
PAIR = TypeFacts(
    20004, "public", "pair", Kind.COMPOSITE, attributes=(Attribute("m", MOOD, -1), Attribute("a b", PRICE, -1))
)
GONE = TypeFacts(20005, "", "", Kind.UNKNOWN)


def test_facts_of_every_kind_come_back_from_the_schema_as_they_were() -> None:
    types = [MOOD, PRICE, PATH, PAIR, array_of(MOOD), GONE, built_in("text")]
    columns = [column(f"c{number}", facts) for number, facts in enumerate(types)]
    schema = json.loads(json.dumps(change_schema(relation(*columns), "cdc")))
    found = recorded_types(schema)
    assert [found[facts.oid] for facts in types] == types
    assert found[built_in("int4").oid] == built_in("int4")


def test_arrays_of_boxes_and_of_domains_over_box_keep_their_delimiter() -> None:
    box = TypeFacts(603, "pg_catalog", "box", Kind.BASE, delimiter=";")
    area = TypeFacts(20006, "public", "area", Kind.DOMAIN, delimiter=";", base=box)
    types = [replace(array_of(part), delimiter=";") for part in (box, area)]
    columns = [column(f"c{number}", facts) for number, facts in enumerate(types)]
    found = recorded_types(json.loads(json.dumps(change_schema(relation(*columns), "cdc"))))
    assert [found[facts.oid] for facts in types] == types


def test_the_key_comes_back_by_its_true_names() -> None:
    description = replace(relation(column("a b", "int4", key=True), column("c", "text")), oid=4711)
    schema = change_schema(description, "cdc")
    assert recorded_key(schema) == ["a b"]
    assert recorded_oid(schema) == 4711


def test_numbers_come_back_where_they_were_known() -> None:
    known = replace(column("a b", "int4"), attnum=3, missing=MissingValue(b"\0", "NaN"))
    plain = replace(column("b", "int4"), attnum=4)
    found = recorded_attributes(change_schema(relation(column("c", "text"), known, plain), "cdc"))
    assert found == {"a b": (3, known.missing), "b": (4, None)}
    assert recorded_attributes({}) == {}


def test_the_relation_comes_back_by_its_true_name() -> None:
    schema = change_schema(relation(column("a", "int4"), name="odd name"), "cdc")
    assert recorded_relation(schema) == ("public", "odd name")


def test_a_field_that_has_no_type_recorded_is_passed_over() -> None:
    schema = json.loads(json.dumps(change_schema(relation(column("a", "int4"), column("b", "text")), "cdc")))
    (before,) = (field for field in schema["fields"] if field["name"] == "before")
    del before["type"][1]["fields"][0]["pg.type"]
    assert set(recorded_types(schema)) == {built_in("text").oid}


def test_a_schema_of_somebody_else_records_nothing() -> None:
    schema = {"type": "record", "name": "Other", "fields": [{"name": "x", "type": "int"}]}
    assert (recorded_types(schema), recorded_key(schema), recorded_oid(schema)) == ({}, [], None)
    assert recorded_relation(schema) is None


def test_labels_are_written_once_for_a_type_and_come_back_wherever_it_is() -> None:
    columns = [column("a", PAIR), column("b", MOOD), column("c", array_of(MOOD)), column("d", PAIR), column("e", MOOD)]
    text = json.dumps(change_schema(relation(*columns), "cdc"))
    assert text.count('"glad"') == 1
    found = recorded_types(json.loads(text))
    assert [found[facts.oid] for facts in (PAIR, MOOD, array_of(MOOD))] == [PAIR, MOOD, array_of(MOOD)]


def test_labels_that_are_too_many_are_counted() -> None:
    labels = tuple(f"label {number:058}" for number in range(1025))
    large = replace(MOOD, labels=labels)
    description = relation(column("m", array_of(large)), column("n", MOOD))
    text = json.dumps(change_schema(description, "cdc"))
    assert '"label_count": 1025' in text and len(text) < 10_000
    assert enums_without_labels(description) == ["public.mood"]
    assert enums_without_labels(relation(column("n", array_of(MOOD)))) == []
    assert recorded_types(json.loads(text))[MOOD.oid].labels == ()


@pytest.mark.parametrize("size", [0, 64, 65, 30_000])
def test_a_default_of_any_size_comes_back_and_a_long_one_grows_by_a_third(size: int) -> None:
    missing = MissingValue(bytes(number % 251 for number in range(size)))
    schema = change_schema(relation(replace(column("a", "text"), attnum=1, missing=missing)), "cdc")
    assert recorded_attributes(json.loads(json.dumps(schema))) == {"a": (1, missing)}
    if size > 64:
        assert len(json.dumps(schema)) < 2600 + size * 1.35


def test_of_a_default_above_the_limit_the_schema_has_the_size() -> None:
    missing = MissingValue(bytes(MOST_DEFAULT_BYTES + 1))
    description = relation(
        replace(column("a", "text"), attnum=1, missing=missing),
        replace(column("b", "numeric"), attnum=2, missing=MissingValue(b"\0", "9" * MOST_DEFAULT_BYTES)),
        replace(column("c", "text"), attnum=3, missing=MissingValue(bytes(MOST_DEFAULT_BYTES))),
    )
    text = json.dumps(change_schema(description, "cdc"))
    assert '"attmissingval_size": 65537' in text and len(text) < MOST_DEFAULT_BYTES * 4 / 3 + 5_000
    assert recorded_attributes(json.loads(text)) == {
        "a": (1, None),
        "b": (2, None),
        "c": (3, description.columns[2].missing),
    }
    assert columns_without_default(description) == ["a", "b"]
