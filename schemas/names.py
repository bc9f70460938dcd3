"""Names of topics, subjects and Avro records: injective, so that two relations never share one.

Topic: `<prefix>.<schema>.<table>`, where every byte of the UTF-8 name outside [A-Za-z0-9_] is written `-hh`. Avro name:
characters outside [A-Za-z0-9_], and a digit in front, are written `_xHHHH_` as PostgreSQL itself does for XML
(ISO 9075-14, `xmlforest`); so that this stays injective, the underscore of a `_x` that was there before is `_x005F_`.
"""

from __future__ import annotations

import re
from typing import Final

from schemas.errors import NameTooLong

MAX_TOPIC_BYTES: Final = 249
POSITION_TOPIC: Final = "walgate.position"

_PLAIN_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_AVRO_UNSAFE = re.compile(r"_(?=x)|[^A-Za-z0-9_]|^[0-9]")
_TOPIC_PART = re.compile(r"(?:[A-Za-z0-9_]|-[0-9a-f]{2})*")
_TOPIC_ESCAPE = re.compile(r"-([0-9a-f]{2})|([A-Za-z0-9_]+)")


def topic_name(prefix: str, namespace: str, relation: str) -> str:
    """The topic of a relation's change events. Raises NameTooLong beyond Kafka's 249 bytes."""
    topic = f"{prefix}.{_topic_part(namespace)}.{_topic_part(relation)}"
    if len(topic) > MAX_TOPIC_BYTES:
        raise NameTooLong(
            f"the topic of {namespace}.{relation} would have {len(topic)} bytes, Kafka allows {MAX_TOPIC_BYTES}: {topic}",
            hint="rename the relation or its schema, shorten the topic prefix, or take the relation out of the publication",
        )
    return topic


def relation_of_topic(prefix: str, topic: str) -> tuple[str, str] | None:
    """(schema, table) of a topic made by `topic_name`; None for the topic of anything else."""
    head = f"{prefix}."
    parts = topic[len(head) :].split(".")
    if not topic.startswith(head) or len(parts) != 2 or not all(map(_TOPIC_PART.fullmatch, parts)):
        return None
    return _relation_part(parts[0]), _relation_part(parts[1])


def transaction_topic(prefix: str) -> str:
    """Markers; can not be a relation's topic, which has two parts after the prefix."""
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


def _topic_part(name: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN_BYTES else f"-{byte:02x}" for byte in name.encode())


def _relation_part(part: str) -> str:
    return b"".join(
        bytes.fromhex(escape) if escape else plain.encode() for escape, plain in _TOPIC_ESCAPE.findall(part)
    ).decode()
