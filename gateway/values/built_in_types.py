"""The built-in types of PostgreSQL 18.

`built_in_types.tsv` is pg_type of a new database, as `relations.type_catalog.TYPES_QUERY` reads it;
a test compares the file with a real server.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from gateway.relations.type_catalog import read_types
from schemas.relation import TypeFacts

_MONEY: Final = 790


def built_in_types() -> list[TypeFacts]:
    """Return the facts of each built-in type, as a PostgreSQL 18 server would report them."""
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
