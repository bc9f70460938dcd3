"""Names of topics, subjects and Avro records. The mappings are injective: two relations never share
a name.

A topic is named `<prefix>.<schema>.<table>`, where every byte of the UTF-8 name outside
[A-Za-z0-9_] is written `-hh`. Kafka does not accept a name that has more than 249 bytes, or differs
from another topic's only in '.' and '_'. The topic is then named by the beginning of that name and
a hash of the relation's name: `<prefix>.<schema>.<table>--<32 hex digits>`. No escaped name
contains `--`. The topics that exist determine which of the two a relation has
(gateway/kafka/topics.py); readers take the relation of a hashed topic from `pg.relation`
of its schema.

In an Avro name, characters outside [A-Za-z0-9_] and a leading digit are written `_xHHHH_`, as
PostgreSQL itself does for XML (ISO 9075-14, `xmlforest`). To keep this injective, the underscore of
an original `_x` is written `_x005F_`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

MAX_TOPIC_BYTES: Final = 249
POSITION_TOPIC: Final = "walgate.position"
SNAPSHOT_TOPIC: Final = "walgate.snapshot"
DEBEZIUM_TRANSACTION_RECORD: Final = "TransactionMetadataValue"
"""The name of the value schema of the transaction topic where the gateway writes Debezium's
format."""

_PLAIN_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_AVRO_UNSAFE = re.compile(r"_(?=x)|[^A-Za-z0-9_]|^[0-9]")
_DEBEZIUM_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_HASHED = re.compile(r".*--[0-9a-f]{32}")
_HASH_DIGITS: Final = 32  # 128 bits: finding two table names with the same digits is infeasible
_CUT_ESCAPE = re.compile(r"-[0-9a-f]?$")
_PLAIN_IDENTIFIER = re.compile(r'[^".]+')
_QUOTED_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"')
_TOPIC_ESCAPE = re.compile(r"-([0-9a-f]{2})|([A-Za-z0-9_]+)")


def topic_name(prefix: str, namespace: str, relation: str) -> str:
    """Return the preferred topic of a relation's change events. Kafka does not accept this name if
    it collides with another topic's name."""
    return topic_names(prefix, namespace, relation)[0]


def topic_names(prefix: str, namespace: str, relation: str) -> tuple[str, ...]:
    """Return the names that a relation's topic may have, in order of preference."""
    escaped = f"{prefix}.{topic_part(namespace)}.{topic_part(relation)}"
    digits = sha256(f"{namespace}\0{relation}".encode()).hexdigest()[:_HASH_DIGITS]
    head = escaped[: MAX_TOPIC_BYTES - len(digits) - 2]
    if head != escaped:
        head = _CUT_ESCAPE.sub("", head)
    hashed = f"{head}--{digits}"
    return (escaped, hashed) if len(escaped) <= MAX_TOPIC_BYTES else (hashed,)


def debezium_topic(prefix: str, namespace: str, relation: str) -> str:
    """Return the topic of a relation's change events in Debezium's format. Two relations may share
    a topic."""
    return _DEBEZIUM_UNSAFE.sub(underscores, f"{prefix}.{namespace}.{relation}")


def underscores(unsafe: re.Match[str]) -> str:
    """Return what replaces a character in Debezium's names: an underscore for each of its code
    units in UTF-16, which Java counts as characters."""
    return "__" if unsafe[0] > "\uffff" else "_"


def relation_of_topic(prefix: str, topic: str) -> tuple[str, str] | None:
    """Return (schema, table) of a topic that has its relation's full name; None for any other
    topic, whose name may contain escapes that `topic_part` would not write."""
    parts = topic.removeprefix(f"{prefix}.").split(".")
    if len(parts) != 2:
        return None
    try:
        namespace, relation = map(_relation_part, parts)
    except UnicodeDecodeError:
        return None
    return (namespace, relation) if topic_name(prefix, namespace, relation) == topic else None


@lru_cache(4096)
def may_hold(prefix: str, topic: str, namespace: str, relation: str) -> bool:
    """Return whether a topic may have records of this relation: it has one of the relation's names,
    or one that tells no relation."""
    return topic in topic_names(prefix, namespace, relation) or topic_is_free(prefix, topic)


def collision_name(topic: str) -> str:
    """Return a name that is equal for topics which Kafka does not allow together."""
    return topic.replace(".", "_")


def topic_is_free(prefix: str, topic: str) -> bool:
    """Return whether this is a legal name under the prefix that no relation has by default, and
    that is not used for markers, messages, positions or snapshots."""
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
    """Parse `schema.table` to (schema, table). A part that contains a dot or a quote is in double
    quotes, as in SQL. Unlike in SQL, names are not folded to lower case, but written as in the
    catalog. Return None unless there are exactly two parts."""
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
    """Return `schema.table`, as `parse_relation` reads it."""
    return ".".join(
        part if _PLAIN_IDENTIFIER.fullmatch(part) else '"' + part.replace('"', '""') + '"'
        for part in (namespace, relation)
    )


def transaction_topic(prefix: str) -> str:
    """Return the topic of markers. A relation's topic always has two parts after the prefix."""
    return f"{prefix}.transaction"


def message_topic(prefix: str) -> str:
    """Return the topic of logical decoding messages."""
    return f"{prefix}.message"


def value_subject(topic: str) -> str:
    """Return the subject of a topic's values by TopicNameStrategy, which all common tools
    support."""
    return f"{topic}-value"


def key_subject(topic: str) -> str:
    return f"{topic}-key"


def topic_of_subject(subject: str) -> str:
    """Return the topic of a subject of values or keys."""
    return subject.rpartition("-")[0]


def avro_name(name: str) -> str:
    """Return a PostgreSQL identifier as an Avro name. An identifier that is an Avro name without
    `_x` is not changed."""
    escaped = _AVRO_UNSAFE.sub(lambda match: f"_x{ord(match[0]):04X}_", name)
    return escaped or "_x_"  # no identifier is empty in PostgreSQL, but a part of a topic prefix may be


def avro_namespace(prefix: str, namespace: str, relation: str) -> str:
    """Return the namespace of a relation's records; the dots of the prefix are kept."""
    return ".".join(avro_name(part) for part in (*prefix.split("."), namespace, relation))


def topic_part(name: str) -> str:
    """Return a PostgreSQL identifier as a part of a topic's name."""
    return "".join(chr(byte) if byte in _PLAIN_BYTES else f"-{byte:02x}" for byte in name.encode())


def _relation_part(part: str) -> str:
    return b"".join(
        bytes.fromhex(escape) if escape else plain.encode() for escape, plain in _TOPIC_ESCAPE.findall(part)
    ).decode()


def counted(count: int, noun: str) -> str:
    """Return "1 row", "2 rows" and so on."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
