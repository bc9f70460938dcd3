"""Names of tables as users write them ("public.orders") to and from the topics of the gateway."""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.names import avro_namespace, relation_of_topic, topic_name
from spark_consumer.errors import OptionError

_PLAIN = re.compile(r'[^".]+')
_QUOTED = re.compile(r'"((?:[^"]|"")+)"')


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A relation's schema and name. Its text is `schema.name`; a part that holds a dot or a quote is in double quotes, as in SQL.
    Unlike SQL nothing is folded to lower case: names are as the catalog has them."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Raises OptionError unless there are exactly two parts."""
        parts: list[str] = []
        position = 0
        while position < len(text):
            match = _QUOTED.match(text, position) or _PLAIN.match(text, position)
            if match is None or (parts and text[position - 1] != "."):
                break
            parts.append(match[1].replace('""', '"') if match.re is _QUOTED else match[0])
            position = match.end() + 1
        if len(parts) != 2 or position != len(text) + 1:
            raise OptionError(
                f"{text!r} is not a table's name",
                hint='Write it as schema.table, for example public.orders or "odd.schema".orders',
            )
        return cls(*parts)

    @classmethod
    def of_topic(cls, prefix: str, topic: str) -> TableName | None:
        relation = relation_of_topic(prefix, topic)
        return None if relation is None else cls(*relation)

    def topic(self, prefix: str) -> str:
        return topic_name(prefix, self.namespace, self.name)

    def record_namespace(self, prefix: str) -> str:
        """Avro namespace of the records of its topic."""
        return avro_namespace(prefix, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{_written(self.namespace)}.{_written(self.name)}"


def _written(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"'
