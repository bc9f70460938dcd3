"""How values and records are written in Debezium's format, as its settings say.

The names of the options are Debezium's settings with underscores, and their defaults are
Debezium's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DecimalMode = Literal["precise", "double", "string"]
TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]
BinaryMode = Literal["bytes", "base64", "base64-url-safe", "hex"]


@dataclass(frozen=True, slots=True)
class DebeziumOptions:
    """How values and records are written, as Debezium's settings say it."""

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
    """In JSON: each record has its schema with it."""

    @property
    def adjusts_names(self) -> bool:
        """Names of fields and schemas become names that Avro allows."""
        return self.format == "avro"
