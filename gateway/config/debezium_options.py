"""Options of Debezium's format: how values and records are written.

The options are named like Debezium's settings, with underscores, and have Debezium's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DecimalMode = Literal["precise", "double", "string"]
TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]
BinaryMode = Literal["bytes", "base64", "base64-url-safe", "hex"]


@dataclass(frozen=True, slots=True)
class DebeziumOptions:
    """Options for writing values and records."""

    decimal_handling_mode: DecimalMode = "precise"
    time_precision_mode: TimeMode = "adaptive"
    interval_handling_mode: Literal["numeric", "string"] = "numeric"
    hstore_handling_mode: Literal["json", "map"] = "json"
    binary_handling_mode: BinaryMode = "bytes"
    include_unknown_datatypes: bool = False
    unavailable_value_placeholder: str = "__debezium_unavailable_value"
    event_converting_failure_handling_mode: Literal["warn", "fail", "skip"] = "warn"
    tombstones_on_delete: bool = True
    skipped_operations: frozenset[str] = frozenset({"t"})
    provide_transaction_metadata: bool = False
    format: Literal["avro", "json"] = "avro"
    format_schemas_enable: bool = True
    """Whether each JSON record contains its schema."""

    @property
    def adjusts_names(self) -> bool:
        """Whether names of fields and schemas are changed to names that Avro allows."""
        return self.format == "avro"
