"""The section `debezium` of the settings. Its settings have the names, meanings and defaults of
Debezium's own."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Names, Section

TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]
BinaryMode = Literal["bytes", "base64", "base64-url-safe", "hex"]


class DebeziumSettings(Section):
    """Records in Debezium's dialect (kafka.dialect = debezium): the settings are Debezium's, with
    underscores instead of dots."""

    decimal_handling_mode: Literal["precise", "double", "string"] = Field(
        default="precise", description="numeric and money."
    )
    time_precision_mode: TimeMode = Field(default="adaptive", description="date, time and timestamp.")
    interval_handling_mode: Literal["numeric", "string"] = Field(
        default="numeric", description="numeric: microseconds, with a month of average length."
    )
    hstore_handling_mode: Literal["json", "map"] = Field(default="json", description="hstore.")
    binary_handling_mode: BinaryMode = Field(default="bytes", description="bytea.")
    include_unknown_datatypes: bool = Field(
        default=False,
        description="Send columns whose types Debezium does not support as bytes that contain PostgreSQL's text. If false, "
        "they are omitted, and the log names them.",
    )
    unavailable_value_placeholder: str = Field(
        default="__debezium_unavailable_value",
        description="Placeholder for a TOASTed value that was not sent. After `hex:`, the placeholder's bytes in UTF-8 as "
        "hexadecimal digits.",
    )
    reselect_unavailable_values: bool = Field(
        default=False,
        description="Read a row again if an update of it was sent without a TOASTed value: an `r` event with all "
        "values follows. Needs snapshot.mode = initial or on_command, and SELECT on the tables.",
    )
    event_converting_failure_handling_mode: Literal["warn", "fail", "skip"] = Field(
        default="warn",
        description="What happens to a value that its Kafka Connect type cannot represent (NaN in a decimal). warn: null, "
        "with a warning. fail: the gateway stops. skip: null.",
    )
    tombstones_on_delete: bool = Field(default=True, description="Write a tombstone (a null value) after each delete.")
    skipped_operations: Names = Field(
        default=("t",), description="Operations that are not sent: c, u, d, t. none: send all."
    )
    provide_transaction_metadata: bool = Field(
        default=False,
        description="Write BEGIN and END events to `prefix.transaction`, and add to each record its position in "
        "the transaction.",
    )
    format: Literal["avro", "json"] = Field(
        default="avro",
        description="json: the format of Kafka Connect's JsonConverter. Names of fields are not adjusted. It takes several times "
        "the CPU time of Avro. Set it before the first start: a topic has one format.",
    )
    format_schemas_enable: bool = Field(
        default=True, description="Each JSON record contains its schema, as with schemas.enable."
    )
    compacted_topics: bool = Field(
        default=False,
        description="Create the topics of new tables with cleanup.policy = compact, so that late consumers get the "
        "last row of each key. Every table needs a key.",
    )

    @field_validator("unavailable_value_placeholder")
    @classmethod
    def _placeholder(cls, value: str) -> str:
        if not value.startswith("hex:"):
            return value
        try:
            return bytes.fromhex(value.removeprefix("hex:")).decode()
        except ValueError:
            raise ValueError("after hex: come hexadecimal digits, two for each byte of a text in UTF-8") from None

    @field_validator("skipped_operations")
    @classmethod
    def _operations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = () if value == ("none",) else value
        if not set(found) <= set("cudt"):
            raise ValueError("operations are c, u, d and t, or none")
        return found

    @model_validator(mode="after")
    def _compaction_is_possible(self) -> Self:
        if self.compacted_topics and "t" not in self.skipped_operations:
            raise ValueError(
                "compacted_topics: a truncate has no key, and compacted topics reject records without a key; "
                "include t in skipped_operations"
            )
        if self.compacted_topics and not self.tombstones_on_delete:
            raise ValueError("compacted_topics needs tombstones_on_delete: otherwise deleted rows would remain")
        return self

    @property
    def adjusts_names(self) -> bool:
        """Whether names of fields and schemas are changed to names that Avro allows."""
        return self.format == "avro"
