"""docs/types.md, from the code that decides: `python -m gateway.values.table > docs/types.md`.

built_in_types.tsv is pg_type of a fresh PostgreSQL 18 database, as `relations.catalog.TYPES_QUERY` reads it; a test holds it
to a real one.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Final

from gateway.relations.catalog import read_types
from gateway.values.codec import has_binary_decoder
from schemas.column_type import ColumnType, Form, avro_type, column_type, key_type
from schemas.description import Kind, TypeFacts

_MONEY: Final = 790
_SPECIAL: Final = {
    Form.DECIMAL: "NaN",
    Form.DATE: "infinity, -infinity, BC, years after 9999",
    Form.TIMESTAMP: "infinity, -infinity, BC, years after 9999",
    Form.TIMESTAMPTZ: "infinity, -infinity, BC, years after 9999",
    Form.TIME: "24:00:00",
    Form.UNSIGNED: "2^63 and above",
    Form.ARRAY: "more than one dimension, a lower bound other than 1, an element that is special",
}
_HOW: Final = {
    18: "one byte; above 127 as octal `\\ooo`, which servers before 16 send bare",
    790: "text by the server's `lc_monetary`",
    700: "NaN and the infinities are Avro values", 701: "NaN and the infinities are Avro values",
    114: "text as it was stored", 3802: "text as the server prints it",
    142: "text as the server prints it; only where it was built with libxml",
    1083: "microseconds since midnight", 1114: "wall clock, no zone", 1184: "UTC",
    1186: "ISO 8601 with signs, e.g. `P1Y2M-3DT4H5M6.7S`; PostgreSQL 14 cannot print more than 2^31 hours",
    1266: "e.g. `12:00:00+05:30`",
    1700: "see above",
    1033: "has no binary form; sent as text among binary columns",
}  # fmt: skip

_NAME: Final = (
    "the name of what the server made itself; a row that names an object of a user switches the gateway to text"
)

_HEAD: Final = """# PostgreSQL types in Avro

Written by `python -m gateway.values.table`; do not edit. Every built-in type of PostgreSQL 18 is here, and what
becomes of the types that users make.

* Every column is a union of null and the type below, default null.
* *Special*: values that the Avro type cannot hold. The field is null, and the envelope's map `special` has the field's name
  and the value as PostgreSQL text; a field of the row `before` is named `before.<field>` there. Nothing is rounded or clipped.
* *In a key* there is no `special` beside the value. So a type that has special values is a string of PostgreSQL text in keys,
  for all its values.
* *Binary*: the gateway reads the type's binary form. Where one published column has a type without it, `binary: auto` asks the
  server for text. Both forms give the same Avro bytes. A database whose encoding is not UTF8 is
  read in text: hstore's binary form is broken there, and "char" is not converted. SQL_ASCII is refused.
* *PostgreSQL text* is what the server prints with DateStyle ISO, IntervalStyle iso_8601, TimeZone UTC, extra_float_digits 3,
  bytea_output hex and client_encoding UTF8, whatever database and role are set to. Names (regclass and its kind) have their
  schema, but for those in pg_catalog. Only money follows a setting of the server, `lc_monetary`: its unit is in no value.
* Text that is not UTF-8 is special, and in a key too, as a zero character, `\\x` and its bytes in hexadecimal (docs/topics.md).
* Years 1 to 9999 are Avro dates and timestamps: what every reader can hold (Python's datetime ends there).
"""


def render_table() -> str:
    """The whole page."""
    types = built_in_types()
    sections = [
        _HEAD,
        "## Base types\n",
        _NUMERIC,
        *_rows([facts for facts in types if facts.kind is Kind.BASE]),
        "\n## Ranges and multiranges\n",
        *_rows([facts for facts in types if facts.kind in (Kind.RANGE, Kind.MULTIRANGE)]),
        "\n## Domains of information_schema\n",
        *_rows([facts for facts in types if facts.kind is Kind.DOMAIN]),
        _USER_TYPES,
        "## Arrays\n",
        _ARRAYS.format(special=_SPECIAL[Form.ARRAY]),
        *_array_rows([facts for facts in types if facts.kind is Kind.ARRAY and _is_scalar(facts.element)]),
        "\n## Pseudo-types\n",
        "No column can have one: " + _names(types, Kind.PSEUDO) + ".\n",
        "## Row types of the system catalog\n",
        "Composite types: strings of PostgreSQL text. " + _names(types, Kind.COMPOSITE) + ".\n",
        "Their arrays are arrays of strings: "
        + ", ".join(f"`{facts.name}`" for facts in types if facts.kind is Kind.ARRAY and not _is_scalar(facts.element))
        + ".",
    ]
    return "\n".join(sections) + "\n"


_NUMERIC: Final = """`numeric(p,s)` is `decimal(p,s)` where p <= 38 and 0 <= s <= p. Without p and s, wider, with a negative
scale or with a scale above p it is a string, in which NaN and the infinities are ordinary. In the table: `numeric(12,2)`.
"""
_USER_TYPES: Final = """
## Types that users and extensions make

| type | Avro | binary |
|---|---|---|
| enum | string; the labels are in the schema's `pg.catalog` | yes |
| domain | as its base type, over domains and arrays too | as its base type |
| composite | string, e.g. `(1,"a b",)` | where every attribute's type has it |
| range, multirange | string, e.g. `[1,5)` | where the bound's type has it |
| array of any of these | array of string | where the element's type has it |
| array of a domain over arrays | string | where the element's type has it |
| citext, hstore, ltree, lquery, ltxtquery (extensions of these names) | string | yes |
| vector (pgvector) | string, e.g. `[1,2.5]` | yes |
| any other base type | string of PostgreSQL text | no |
| a type that was dropped before the gateway read its change | string of PostgreSQL text | no |
"""
_ARRAYS: Final = """An array is an Avro array of `["null", element]`; typmods hold for the elements. Special: {special}.
"""


def built_in_types() -> list[TypeFacts]:
    """Of PostgreSQL 18."""
    lines = files("gateway.values").joinpath("built_in_types.tsv").read_text("utf-8").splitlines()[1:]
    rows = []
    for line in lines:
        oid, namespace, name, kind, sends_binary, delimiter, part_oid, base_typmod = line.split("\t")
        rows.append(
            (int(oid), namespace, name, kind, sends_binary == "t", delimiter, int(part_oid), int(base_typmod), "",
             (), (), (), (), _outputs(int(oid), name))
        )  # fmt: skip
    return list(read_types(rows).values())


def _outputs(oid: int, name: str) -> tuple[str, ...]:
    if oid == _MONEY:
        return "$90,000,000,000,000,000.00", "-$90,000,000,000,000,000.00", "$0.00"
    return ("0 -",) if name.startswith("reg") else ()


def _is_scalar(element: TypeFacts | None) -> bool:
    return element is not None and element.kind is not Kind.COMPOSITE


def _names(types: list[TypeFacts], kind: Kind) -> str:
    return ", ".join(f"`{facts.name}`" for facts in types if facts.kind is kind)


def _example(facts: TypeFacts) -> ColumnType:
    """numeric is shown with a precision: without one it is text."""
    return column_type(facts, (12 << 16 | 2) + 4 if facts.name in ("numeric", "_numeric") else -1)


def _rows(types: list[TypeFacts]) -> list[str]:
    rows = ["| type | Avro | in a key | special | binary | |", "|---|---|---|---|---|---|"]
    for facts in types:
        column = _example(facts)
        binary = "yes" if has_binary_decoder(facts) else "no"
        rows.append(
            f"| {facts.name} | {_avro(column)} | {_avro(key_type(column))} | {_SPECIAL.get(column.form, '')} "
            f"| {binary} | {_HOW.get(facts.oid, _NAME if facts.outputs and facts.oid != _MONEY else '')} |"
        )
    return rows


def _array_rows(types: list[TypeFacts]) -> list[str]:
    rows = ["| type | Avro | binary |", "|---|---|---|"]
    rows += [
        f"| {each.name} | {_avro(_example(each))} | {'yes' if has_binary_decoder(each) else 'no'} |" for each in types
    ]
    return rows


def _avro(column: ColumnType) -> str:
    if column.form is Form.ARRAY:
        assert column.element is not None
        return f"array of {_avro(column.element)}"
    if column.form is Form.DECIMAL:
        return f"bytes, decimal({column.precision},{column.scale})"
    avro = avro_type(column)
    return avro if isinstance(avro, str) else f"{avro['type']}, {avro['logicalType']}"


if __name__ == "__main__":
    sys.stdout.write(render_table())
