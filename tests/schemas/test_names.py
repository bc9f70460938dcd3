"""Names are injective, come back, and stay within what Kafka and Avro allow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import NameTooLong
from schemas.names import (
    avro_name,
    avro_namespace,
    key_subject,
    message_topic,
    relation_of_topic,
    topic_name,
    transaction_topic,
    value_subject,
)

identifiers = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20
) | st.text("_x05AF ", min_size=1, max_size=14)


@given(identifiers, identifiers)
def test_a_topic_gives_its_relation_back(namespace: str, relation: str) -> None:
    try:
        topic = topic_name("cdc", namespace, relation)
    except NameTooLong:
        return
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic)
    assert relation_of_topic("cdc", topic) == (namespace, relation)


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


def test_a_topic_longer_than_kafka_allows_is_refused_with_the_relation() -> None:
    assert len(topic_name("c" * 120, "s" * 63, "t" * 64)) == 249
    with pytest.raises(NameTooLong, match=r"public\.é+ would have"):
        topic_name("cdc", "public", "é" * 63)


def test_topics_of_markers_and_messages_are_no_relation_s() -> None:
    assert relation_of_topic("cdc", transaction_topic("cdc")) is None
    assert relation_of_topic("cdc", message_topic("cdc")) is None
    assert relation_of_topic("cdc", "other.public.orders") is None
    assert relation_of_topic("cdc", "cdc.public.not~ours") is None


def test_subjects_follow_the_topic() -> None:
    assert value_subject("cdc.public.orders") == "cdc.public.orders-value"
    assert key_subject("cdc.public.orders") == "cdc.public.orders-key"


def test_a_namespace_keeps_the_prefix_and_escapes_the_rest() -> None:
    assert avro_namespace("prod.cdc", "my schema", "t.u") == "prod.cdc.my_x0020_schema.t_x002E_u"
