"""Names of topics, subjects and Avro records: injective, so that two relations never share one.

Topic: `<prefix>.<schema>.<table>`, where every byte of the UTF-8 name outside [A-Za-z0-9_] is
written `-hh`. Where Kafka does not take that name, because it has more than 249 bytes or differs
from another topic's in '.' and '_' only, the beginning of it and a hash of the relation's true
name: `<prefix>.<schema>.<table>--<32 hex digits>`. No escaped name holds `--`. Which of the two a
relation has is decided by the topics that exist (gateway/kafka/topics.py), and readers take the
true name of a hashed topic from `pg.relation` of its schema.

Avro name: characters outside [A-Za-z0-9_], and a digit in front, are written `_xHHHH_` as
PostgreSQL itself does for XML (ISO 9075-14, `xmlforest`); so that this stays injective, the
underscore of a `_x` that was there before is `_x005F_`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

MAX_TOPIC_BYTES: Final = 249
POSITION_TOPIC: Final = "walgate.position"
SNAPSHOT_TOPIC: Final = "walgate.snapshot"
DEBEZIUM_TRANSACTION_RECORD: Final = "TransactionMetadataValue"
"""The name of the value schema that the transaction topic has where the gateway writes Debezium's
format."""

_PLAIN_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_AVRO_UNSAFE = re.compile(r"_(?=x)|[^A-Za-z0-9_]|^[0-9]")
_DEBEZIUM_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_TOPIC_PART = re.compile(r"(?:[A-Za-z0-9_]|-[0-9a-f]{2})*")
_HASHED = re.compile(r".*--[0-9a-f]{32}")
_HASH_DIGITS: Final = 32  # 128 bits: nobody who may create tables can find two with the same
_CUT_ESCAPE = re.compile(r"-[0-9a-f]?$")
_PLAIN_IDENTIFIER = re.compile(r'[^".]+')
_QUOTED_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"')
_TOPIC_ESCAPE = re.compile(r"-([0-9a-f]{2})|([A-Za-z0-9_]+)")


def topic_name(prefix: str, namespace: str, relation: str) -> str:
    """The topic of a relation's change events, wherever Kafka takes it: not if it collides with
    another topic's."""
    return topic_names(prefix, namespace, relation)[0]


def topic_names(prefix: str, namespace: str, relation: str) -> tuple[str, ...]:
    """The names that a relation's topic may have, the first that Kafka takes before the others."""
    escaped = f"{prefix}.{topic_part(namespace)}.{topic_part(relation)}"
    digits = sha256(f"{namespace}\0{relation}".encode()).hexdigest()[:_HASH_DIGITS]
    head = escaped[: MAX_TOPIC_BYTES - len(digits) - 2]
    if head != escaped:
        head = _CUT_ESCAPE.sub("", head)
    hashed = f"{head}--{digits}"
    return (escaped, hashed) if len(escaped) <= MAX_TOPIC_BYTES else (hashed,)


def debezium_topic(prefix: str, namespace: str, relation: str) -> str:
    """The topic of a relation's change events in Debezium's format. Two relations may share one."""
    return _DEBEZIUM_UNSAFE.sub("_", f"{prefix}.{namespace}.{relation}")


def relation_of_topic(prefix: str, topic: str) -> tuple[str, str] | None:
    """(schema, table) of a topic that has its relation's name in full; None for any other."""
    head = f"{prefix}."
    parts = topic[len(head) :].split(".")
    if not topic.startswith(head) or len(parts) != 2 or not all(map(_TOPIC_PART.fullmatch, parts)):
        return None
    return _relation_part(parts[0]), _relation_part(parts[1])


def collision_name(topic: str) -> str:
    """Equal for topics that Kafka does not take beside each other."""
    return topic.replace(".", "_")


def topic_is_free(prefix: str, topic: str) -> bool:
    """A legal name below the prefix that no relation has by itself, and neither markers nor
    messages."""
    return (
        re.fullmatch(re.escape(prefix) + r"\.[A-Za-z0-9._-]+", topic) is not None
        and len(topic) <= MAX_TOPIC_BYTES
        and topic not in (transaction_topic(prefix), message_topic(prefix), POSITION_TOPIC, SNAPSHOT_TOPIC)
        and relation_of_topic(prefix, topic) is None
        and not is_hashed(topic)
    )


def is_hashed(topic: str) -> bool:
    return _HASHED.fullmatch(topic) is not None


def parse_relation(text: str) -> tuple[str, str] | None:
    """`schema.table` as (schema, table); a part that holds a dot or a quote is in double quotes, as
    in SQL. Unlike SQL nothing is folded to lower case: names are as the catalog has them. None
    where there are not exactly two parts."""
    parts: list[str] = []
    position = 0
    while position < len(text):
        match = _QUOTED_IDENTIFIER.match(text, position) or _PLAIN_IDENTIFIER.match(text, position)
        if match is None or (parts and text[position - 1] != "."):
            break
        parts.append(match[1].replace('""', '"') if match.re is _QUOTED_IDENTIFIER else match[0])
        position = match.end() + 1
    return (parts[0], parts[1]) if len(parts) == 2 and position == len(text) + 1 else None


def format_relation(namespace: str, relation: str) -> str:
    """The inverse of `parse_relation`."""
    return ".".join(
        part if _PLAIN_IDENTIFIER.fullmatch(part) else '"' + part.replace('"', '""') + '"'
        for part in (namespace, relation)
    )


def transaction_topic(prefix: str) -> str:
    """Markers; cannot be a relation's topic, which has two parts after the prefix."""
    return f"{prefix}.transaction"


def message_topic(prefix: str) -> str:
    """Logical decoding messages."""
    return f"{prefix}.message"


def value_subject(topic: str) -> str:
    """TopicNameStrategy, which every stock tool knows."""
    return f"{topic}-value"


def key_subject(topic: str) -> str:
    return f"{topic}-key"


def avro_name(name: str) -> str:
    """A PostgreSQL identifier as an Avro name; `name` itself where it is one without a `_x`."""
    escaped = _AVRO_UNSAFE.sub(lambda match: f"_x{ord(match[0]):04X}_", name)
    return escaped or "_x_"  # PostgreSQL has no empty identifier, a topic prefix may have an empty part


def avro_namespace(prefix: str, namespace: str, relation: str) -> str:
    """Namespace of a relation's records; the dots of the prefix stay."""
    return ".".join(avro_name(part) for part in (*prefix.split("."), namespace, relation))


def topic_part(name: str) -> str:
    """A PostgreSQL identifier as a part of a topic's name."""
    return "".join(chr(byte) if byte in _PLAIN_BYTES else f"-{byte:02x}" for byte in name.encode())


def _relation_part(part: str) -> str:
    return b"".join(
        bytes.fromhex(escape) if escape else plain.encode() for escape, plain in _TOPIC_ESCAPE.findall(part)
    ).decode()


def counted(count: int, noun: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
