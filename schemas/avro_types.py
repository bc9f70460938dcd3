"""The mapping of PostgreSQL types to Avro types, which schemas, encoders and docs/types.md share.

Rules (docs/types.md lists every type):

* An Avro type is used only where it represents the type's values exactly. Values outside its range
  (infinity, BC dates, NaN in a decimal) are written as PostgreSQL text in the envelope's `special`.
  A PostgreSQL type without a corresponding Avro type is written as text.
* A key has no `special`. A key column whose Avro type cannot hold every value is therefore a string
  of PostgreSQL text, for *all* its values. The form depends on the type alone, and two keys are
  never confused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas.relation import ColumnDescription, Kind, TypeFacts


class Form(enum.Enum):
    """The form in which a column's values are written in Avro."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    UNSIGNED = "unsigned"
    """xid8: a long, with values beyond its range in `special`."""
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BYTES = "bytes"
    STRING = "string"
    UUID = "uuid"
    DATE = "date"
    TIME = "time-micros"
    TIMESTAMP = "local-timestamp-micros"
    TIMESTAMPTZ = "timestamp-micros"
    ARRAY = "array"


SOMETIMES_SPECIAL: Final = frozenset(
    {Form.UNSIGNED, Form.DECIMAL, Form.DATE, Form.TIME, Form.TIMESTAMP, Form.TIMESTAMPTZ, Form.ARRAY}
)
"""Forms that cannot hold every value of their PostgreSQL types."""

MAX_DECIMAL_PRECISION: Final = 38
"""The limit of Spark, Arrow and Parquet; wider numerics are strings."""

# From pg_type.dat: the oids of built-in types never change.
_BUILT_IN: Final = {
    16: Form.BOOLEAN,  # bool
    17: Form.BYTES,  # bytea
    20: Form.LONG,  # int8
    21: Form.INT,  # int2
    23: Form.INT,  # int4
    26: Form.LONG,  # oid
    28: Form.LONG,  # xid
    700: Form.FLOAT,  # float4
    701: Form.DOUBLE,  # float8
    1082: Form.DATE,
    1083: Form.TIME,
    1114: Form.TIMESTAMP,
    1184: Form.TIMESTAMPTZ,
    1700: Form.DECIMAL,  # numeric
    2950: Form.UUID,
    5069: Form.UNSIGNED,  # xid8
}
_NUMERIC_HEADER: Final = 4  # VARHDRSZ, added to every numeric typmod


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A PostgreSQL type and its form. For a domain, `facts` and `typmod` are those of its base
    type."""

    form: Form
    facts: TypeFacts
    typmod: int = -1
    precision: int = 0
    scale: int = 0
    element: ColumnType | None = None

    @property
    def is_sometimes_special(self) -> bool:
        return self.form in SOMETIMES_SPECIAL


def column_type(facts: TypeFacts, typmod: int) -> ColumnType:
    """Return the type of a value column; domains are resolved to their base types."""
    while facts.kind is Kind.DOMAIN and facts.base is not None:
        facts, typmod = facts.base, facts.base_typmod
    if facts.kind is Kind.ARRAY and facts.element is not None:
        element = column_type(facts.element, typmod)
        # Avro's array of arrays does not express an array of a domain over arrays.
        if element.facts.kind is not Kind.ARRAY:
            return ColumnType(Form.ARRAY, facts, typmod, element=element)
    elif facts.kind is Kind.BASE:
        form = _BUILT_IN.get(facts.oid, Form.STRING)
        if form is not Form.DECIMAL:
            return ColumnType(form, facts, typmod)
        if typmod >= _NUMERIC_HEADER:
            precision, scale = numeric_precision_and_scale(typmod)
            if precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
                return ColumnType(form, facts, typmod, precision, scale)
    return ColumnType(Form.STRING, facts, typmod)


def value_type(column: ColumnDescription) -> ColumnType:
    """Return the type of a column's values in its records: text where a protection rule replaces
    them."""
    of_column = column_type(column.facts, column.typmod)
    if column.protection is None or column.protection.is_hidden:
        return of_column
    return ColumnType(Form.STRING, of_column.facts, of_column.typmod)


def key_type(value_type: ColumnType) -> ColumnType:
    """Return the type of the same column in the key: text where the value form cannot hold every
    value."""
    return replace(value_type, form=Form.STRING, element=None) if value_type.is_sometimes_special else value_type


def is_numeric(facts: TypeFacts) -> bool:
    """Return whether the type is numeric or numeric[], whose form depends on the typmod."""
    base = facts.element if facts.kind is Kind.ARRAY and facts.element is not None else facts
    return _BUILT_IN.get(base.oid) is Form.DECIMAL


def numeric_precision_and_scale(typmod: int) -> tuple[int, int]:
    """Decode a typmod as `numeric.c` does: precision in the upper 16 bits, scale as an 11-bit
    signed number (never negative before PostgreSQL 15)."""
    packed = typmod - _NUMERIC_HEADER
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def avro_type(column: ColumnType) -> Any:
    """Return the Avro schema of a value of this type, without its union with null."""
    form = column.form
    if form is Form.ARRAY:
        assert column.element is not None
        return {"type": "array", "items": ["null", avro_type(column.element)]}
    if form is Form.DECIMAL:
        return {"type": "bytes", "logicalType": "decimal", "precision": column.precision, "scale": column.scale}
    if form is Form.UNSIGNED:
        return "long"
    physical = _LOGICAL.get(form)
    return form.value if physical is None else {"type": physical, "logicalType": form.value}


_LOGICAL: Final = {
    Form.UUID: "string",
    Form.DATE: "int",
    Form.TIME: "long",
    Form.TIMESTAMP: "long",
    Form.TIMESTAMPTZ: "long",
}
