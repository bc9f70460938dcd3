"""Names are injective, come back, and stay within what Kafka and Avro allow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.topic_names import (
    avro_name,
    avro_namespace,
    collision_name,
    format_relation,
    is_hashed,
    key_subject,
    message_topic,
    parse_relation,
    relation_of_topic,
    topic_is_free,
    topic_name,
    topic_names,
    topic_part,
    transaction_topic,
    value_subject,
)

identifiers = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20
) | st.text("_x05AF ", min_size=1, max_size=14)


@given(identifiers, identifiers)
def test_a_topic_gives_its_relation_back(namespace: str, relation: str) -> None:
    names = topic_names("cdc", namespace, relation)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) for name in names)
    *escaped, hashed = names
    assert [relation_of_topic("cdc", name) for name in escaped] == [(namespace, relation)] * len(escaped)
    assert (relation_of_topic("cdc", hashed), is_hashed(hashed)) == (None, True)
    assert topic_name("cdc", namespace, relation) == names[0]


LONG = st.text(st.sampled_from("aя_-.\U0001f40d"), min_size=1, max_size=63).filter(
    lambda name: len(name.encode()) <= 63
)


@given(LONG, LONG, st.integers(1, 60))
def test_a_name_of_any_length_has_a_topic_that_fits(namespace: str, relation: str, prefix_bytes: int) -> None:
    prefix = "p" * prefix_bytes
    *escaped, hashed = topic_names(prefix, namespace, relation)
    in_full = f"{prefix}.{topic_part(namespace)}.{topic_part(relation)}"
    assert escaped == ([in_full] if len(in_full) <= 249 else [])
    assert len(hashed) <= 249
    readable, digits = hashed.rsplit("--", 1)
    assert in_full.startswith(readable)
    assert len(digits) == 32
    assert "--" not in f"{readable}-"  # no escape is cut in two


COLLIDING = st.sampled_from(["s", "o", "i", "s_o", "o_i", "s_o_i", "_", "s_", "_i"])


@given(st.lists(st.tuples(COLLIDING, COLLIDING), unique=True))
def test_hashed_names_collide_with_nothing(relations: list[tuple[str, str]]) -> None:
    """Not even in the eyes of Kafka."""
    hashed = [topic_names("cdc", *relation)[-1] for relation in relations]
    every = {collision_name(name) for relation in relations for name in topic_names("cdc", *relation)[:1]}
    assert len({collision_name(name) for name in hashed} - every) == len(relations)


def test_two_names_of_which_kafka_takes_one_are_known_as_such() -> None:
    first, second = topic_name("cdc", "s", "o_i"), topic_name("cdc", "s_o", "i")
    assert first != second
    assert collision_name(first) == collision_name(second)


def test_the_hash_is_this_for_ever() -> None:
    """A topic that exists is found again by it: printf 's\\0o_i' | sha256sum."""
    assert topic_names("cdc", "s", "o_i") == ("cdc.s.o_i", "cdc.s.o_i--efa8b9e835b192306491d3d64c44034e")


@given(identifiers, identifiers)
def test_a_relation_is_written_and_read_back(namespace: str, relation: str) -> None:
    assert parse_relation(format_relation(namespace, relation)) == (namespace, relation)


@pytest.mark.parametrize("text", ["", "orders", "a.b.c", "a.", ".b", 'a."b', '"a".', '"a"b.c', "a..b"])
def test_what_is_no_relation_is_none(text: str) -> None:
    assert parse_relation(text) is None


@pytest.mark.parametrize(
    ("topic", "free"),
    [
        ("cdc.orders", True),
        ("cdc.sales.order-items.v2", True),
        ("cdc.sales.not-hex", True),
        ("cdc.sales.orders", False),
        ("cdc.sales.my-20table", False),
        ("cdc.transaction", False),
        ("cdc.message", False),
        ("other.orders", False),
        ("cdc", False),
        ("cdc.", False),
        ("cdc.ü", False),
        ("cdc." + "x" * 245, True),
        ("cdc." + "x" * 246, False),
        (topic_names("cdc", "s", "t")[1], False),
    ],
)
def test_a_name_that_may_be_given_is_none_that_is_taken_by_itself(topic: str, free: bool) -> None:
    assert topic_is_free("cdc", topic) == free


def name_of_avro(escaped: str) -> str:
    if escaped == "_x_":
        return ""
    return re.sub("_x([0-9A-F]{4,6})_", lambda match: chr(int(match[1], 16)), escaped)


@given(identifiers)
def test_an_avro_name_gives_its_identifier_back(name: str) -> None:
    escaped = avro_name(name)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", escaped)
    assert name_of_avro(escaped) == name


@given(identifiers, identifiers)
def test_two_identifiers_never_share_an_avro_name(first: str, second: str) -> None:
    assert (avro_name(first) == avro_name(second)) == (first == second)


@pytest.mark.parametrize(
    ("name", "topic_part", "avro"),
    [
        ("orders", "orders", "orders"),
        ("Order_Items2", "Order_Items2", "Order_Items2"),
        ("a.b", "a-2eb", "a_x002E_b"),
        ("a-b", "a-2db", "a_x002D_b"),
        ("a b", "a-20b", "a_x0020_b"),
        ('"', "-22", "_x0022_"),
        ("2nd", "2nd", "_x0032_nd"),
        ("größe", "gr-c3-b6-c3-9fe", "gr_x00F6__x00DF_e"),
        ("\U0001f40d", "-f0-9f-90-8d", "_x1F40D_"),
        ("_x0020_", "_x0020_", "_x005F_x0020_"),
        ("a_x", "a_x", "a_x005F_x"),
    ],
)
def test_escapes_are_these(name: str, topic_part: str, avro: str) -> None:
    assert topic_name("cdc", "public", name) == f"cdc.public.{topic_part}"
    assert avro_name(name) == avro


def test_names_that_differ_in_case_only_stay_two() -> None:
    assert avro_name("Total") != avro_name("total")
    assert topic_name("cdc", "s", "T") != topic_name("cdc", "s", "t")


def test_topics_of_markers_and_messages_are_no_relation_s() -> None:
    assert relation_of_topic("cdc", transaction_topic("cdc")) is None
    assert relation_of_topic("cdc", message_topic("cdc")) is None
    assert relation_of_topic("cdc", "other.public.orders") is None
    assert relation_of_topic("cdc", "cdc.public.not~ours") is None


@pytest.mark.parametrize("part", ["orders-de", "orders-61", "orders-C3-A9", "orders-ff", "orders-d", "o" * 240])
def test_a_topic_that_no_table_has_by_default_is_no_relation_s(part: str) -> None:
    for topic in (f"cdc.public.{part}", f"cdc.{part}.orders"):
        assert relation_of_topic("cdc", topic) is None
        assert topic_is_free("cdc", topic) is (len(topic) <= 249)


@given(st.text("a-0123456789abcdefC._", max_size=12))
def test_a_topic_is_a_relation_s_only_if_the_relation_has_it(rest: str) -> None:
    relation = relation_of_topic("cdc", f"cdc.{rest}")
    assert relation is None or topic_names("cdc", *relation)[0] == f"cdc.{rest}"


def test_subjects_follow_the_topic() -> None:
    assert value_subject("cdc.public.orders") == "cdc.public.orders-value"
    assert key_subject("cdc.public.orders") == "cdc.public.orders-key"


def test_a_namespace_keeps_the_prefix_and_escapes_the_rest() -> None:
    assert avro_namespace("prod.cdc", "my schema", "t.u") == "prod.cdc.my_x0020_schema.t_x002E_u"
