"""The section `debezium` of the settings: what Debezium's settings of these names say, with Debezium's defaults."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from gateway.operate.section import Names, Section
from schemas.connect_type import DebeziumOptions


class DebeziumSettings(Section):
    """Records in Debezium's dialect (kafka.dialect = debezium): Debezium's settings, with underscores for its dots."""

    decimal_handling_mode: Literal["precise", "double", "string"] = Field(
        default="precise", description="numeric and money."
    )
    time_precision_mode: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = Field(default="adaptive", description="date, time and timestamp.")
    interval_handling_mode: Literal["numeric", "string"] = Field(
        default="numeric", description="numeric: microseconds, by the average month."
    )
    hstore_handling_mode: Literal["json", "map"] = Field(default="json", description="hstore.")
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        default="bytes", description="bytea."
    )
    include_unknown_datatypes: bool = Field(
        default=False,
        description="Columns of types that Debezium does not know, as PostgreSQL's text in bytes. Else the log names them and "
        "they are left out.",
    )
    unavailable_value_placeholder: str = Field(
        default="__debezium_unavailable_value", description="Stands for a TOASTed value that was not sent."
    )
    event_converting_failure_handling_mode: Literal["warn", "fail", "skip"] = Field(
        default="warn",
        description="A value that its Connect type cannot hold (NaN in a decimal): null with a warning, a stop, or null.",
    )
    tombstones_on_delete: bool = Field(default=True, description="A null value follows each delete.")
    skipped_operations: Names = Field(default=("t",), description="Of c, u, d, t; none: every one is sent.")
    provide_transaction_metadata: bool = Field(
        default=False, description="BEGIN and END in `prefix.transaction`, and each row's place in its transaction."
    )
    compacted_topics: bool = Field(
        default=False,
        description="New topics of tables are made with cleanup.policy = compact: whoever comes late reads the last row of each "
        "key. Every table needs a key.",
    )

    @field_validator("skipped_operations")
    @classmethod
    def _operations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = () if value == ("none",) else value
        if not set(found) <= set("cudt"):
            raise ValueError("operations are c, u, d and t; or none")
        return found

    @model_validator(mode="after")
    def _compaction_is_possible(self) -> Self:
        if self.compacted_topics and "t" not in self.skipped_operations:
            raise ValueError(
                "compacted_topics: a truncate has no key, which such a topic refuses; skipped_operations needs t"
            )
        if self.compacted_topics and not self.tombstones_on_delete:
            raise ValueError("compacted_topics needs tombstones_on_delete: deleted rows would stay")
        return self

    def options(self) -> DebeziumOptions:
        return DebeziumOptions(
            **{
                **self.model_dump(exclude={"compacted_topics"}),
                "skipped_operations": frozenset(self.skipped_operations),
            }
        )
