"""Options of the data sources: their names and meaning, and checks for unknown and contradictory
options."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException

from schemas.topic_names import transaction_topic
from spark_consumer.errors import OptionError
from spark_consumer.reader.broker import Broker
from spark_consumer.reader.positions import Position, parse_position
from spark_consumer.reader.read_planning import RECORDS_PER_TASK
from spark_consumer.reader.registry import Registry
from spark_consumer.tables import TableName

# Every option as it is documented; Spark ignores case. docs/spark.md explains each of them.
NAMES = (
    "kafka.bootstrap.servers",
    "registry.url",
    "prefix",
    "table",
    "tables",
    "exclude",
    "startingPosition",
    "endingPosition",
    "maxChangesPerTrigger",
    "recordsPerTask",
    "noProgressTimeout",
    "includeMessages",
    "includeMarkers",
)
MAX_CHANGES = 500_000  # of a micro-batch, by default
# If users could change these, a reader could lose or repeat records.
_OURS = frozenset(
    {
        "group.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "isolation.level",
        "enable.partition.eof",
    }
)


@dataclass(frozen=True, slots=True)
class Options:
    broker: Broker
    registry: Registry
    prefix: str
    table: TableName | None
    tables: tuple[TableName, ...]  # empty: all
    exclude: tuple[str, ...]  # patterns of excluded tables
    starting: Position
    ending: Position
    max_changes: int | None  # of a micro-batch; None: no limit
    records_per_task: int
    include_messages: bool
    include_markers: bool

    @property
    def marker_topic(self) -> str:
        return transaction_topic(self.prefix)


def parse_options(given: Mapping[str, str], *, streaming: bool | None) -> Options:
    """Parse options. Raises OptionError for an unknown name (with a similar one), and for a
    missing, malformed or contradictory option.

    `streaming` is None while Spark requests the columns, before it is known whether the read is
    streaming.
    """
    values = {name.lower(): value for name, value in given.items()}
    _check_names(values)
    if streaming and "endingposition" in values:
        raise OptionError(
            "endingPosition applies to batch reads only",
            hint="Stop a streaming query with trigger(availableNow=True) or query.stop().",
        )
    if streaming is False and "maxchangespertrigger" in values:
        raise OptionError(
            "maxChangesPerTrigger applies to streaming queries only",
            hint="Limit a batch read with startingPosition and endingPosition.",
        )
    if "table" in values and _flag(values, "includeMarkers"):
        raise OptionError(
            "table and includeMarkers cannot be combined",
            hint="Omit one of them: the typed columns of one table cannot represent markers.",
        )
    if "table" in values and "exclude" in values:
        raise OptionError(
            "table and exclude cannot be combined",
            hint="Omit one of them: exclude has an effect only if table is not set.",
        )
    if "table" in values and "tables" in values:
        raise OptionError(
            "table and tables cannot be combined",
            hint="The option `table` returns the typed columns of one table; the option `tables` returns the records of several "
            "tables, as stored in Kafka.",
        )
    return Options(
        broker=Broker(_kafka_settings(values), _seconds(values, "noProgressTimeout", 30.0)),
        registry=Registry(_registry_settings(values)),
        prefix=values.get("prefix", "cdc"),
        table=TableName.parse(values["table"]) if "table" in values else None,
        exclude=tuple(word.strip() for word in values.get("exclude", "").split(",") if word.strip()),
        tables=tuple(TableName.parse(name.strip()) for name in values.get("tables", "").split(",") if name.strip()),
        starting=parse_position("startingPosition", values.get("startingposition", "earliest")),
        ending=parse_position("endingPosition", values.get("endingposition", "latest")),
        max_changes=_limit(values),
        records_per_task=_count(values, "recordsPerTask", RECORDS_PER_TASK),
        include_messages=_flag(values, "includeMessages"),
        include_markers=_flag(values, "includeMarkers"),
    )


def _check_names(values: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in values:
        if name in known or name.startswith(("kafka.", "registry.")):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {known[near[0]]}?" if near else f"Options are {', '.join(NAMES)}, kafka.* and registry.*."
        raise OptionError(f"unknown option {name!r}", hint=hint)
    for name in ("kafka.bootstrap.servers", "registry.url"):
        if not values.get(name):
            raise OptionError(f"the option {name} is missing")


def _kafka_settings(values: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings: kafka.* without the prefix. Unknown settings raise OptionError,
    since librdkafka checks them."""
    settings = {name.removeprefix("kafka."): value for name, value in values.items() if name.startswith("kafka.")}
    ours = sorted(_OURS & settings.keys())
    if ours:
        raise OptionError(f"kafka.{ours[0]} is set by the data source and cannot be changed")
    try:
        # Only checks names and values: the consumer does not connect before it is used.
        Consumer({**settings, "bootstrap.servers": "", "group.id": "check"}).close()
    except KafkaException as problem:
        raise OptionError(
            f"kafka.*: {problem.args[0].str()}", hint="Use the property names of librdkafka, with the prefix kafka."
        ) from None
    return settings


def _registry_settings(values: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix("registry."): value for name, value in values.items() if name.startswith("registry.")}


def _limit(values: Mapping[str, str]) -> int | None:
    given = values.get("maxchangespertrigger", "")
    return None if given.lower() == "none" else _count(values, "maxChangesPerTrigger", MAX_CHANGES)


def _count(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or int(text) == 0:
        raise OptionError(f"{name} must be a positive integer, not {text!r}")
    return int(text)


def _seconds(values: Mapping[str, str], name: str, default: float) -> float:
    text = values.get(name.lower())
    try:
        seconds = default if text is None else float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise OptionError(f"{name} must be a positive number of seconds, not {text!r}")
    return seconds


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {text!r}")
    return text == "true"
