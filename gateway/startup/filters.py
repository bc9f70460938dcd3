"""Row filters that can fail. If a filter fails for a row, pgoutput ends the stream at that row, at
every attempt (repeated_failure.py).

PostgreSQL does not record which functions can raise an error. Leakproof functions, which it does
record, cannot; nor can operators that order or compare values for an index. Any other function that
a filter calls is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.names import quote_identifier
from gateway.startup.facts import PublicationFacts
from gateway.startup.findings import OperatorWarning

_FUNCTIONS: Final = re.compile(r":(?:opfuncid|funcid) (\d+)")
_CASTS: Final = re.compile(r"\{COERCEVIAIO .*?:resulttype (\d+)", re.S)
TEXT_TYPES: Final = frozenset({19, 25, 1042, 1043})
"""name, text, bpchar, varchar: a cast from text to these types never fails."""


def filter_calls(publications: Mapping[str, PublicationFacts]) -> tuple[set[int], set[int]]:
    """Return the OIDs of the functions that the row filters of the publications call, and of the
    types to which they cast text."""
    filters = [text for _, _, text in _filtered(publications)]
    functions = {int(oid) for text in filters for oid in _FUNCTIONS.findall(text)}
    types = {int(oid) for text in filters for oid in _CASTS.findall(text)} - TEXT_TYPES
    return functions, types


def check_filters(
    publications: Mapping[str, PublicationFacts], failing: Mapping[int, str], types: Mapping[int, str]
) -> Iterator[OperatorWarning]:
    """Warn about row filters that can fail. `failing` maps the oids of functions that can raise an
    error to their names, `types` the oids of types to their names."""
    for publication, table, text in _filtered(publications):
        calls = [failing[oid] for oid in map(int, _FUNCTIONS.findall(text)) if oid in failing]
        calls += [f"the cast to {types[oid]}" for oid in map(int, _CASTS.findall(text)) if oid in types]
        if calls:
            yield OperatorWarning(
                f"the row filter of {table} in publication {publication} can fail for a row: it uses "
                f"{', '.join(dict.fromkeys(calls))}. If it does, the server cannot send any change from that row on",
                "if a value of a row can make the filter fail (a division by zero, a text that is not a number), change the "
                f"filter (ALTER PUBLICATION {quote_identifier(publication)} SET TABLE ... WHERE ..., which replaces the whole "
                "list of tables): for example, test the value first in CASE WHEN ... THEN ... END",
            )


def _filtered(publications: Mapping[str, PublicationFacts]) -> list[tuple[str, str, str]]:
    """Return (publication, table, row filter) for each table that has a row filter."""
    return [
        (publication.name, relation.full_name, relation.row_filter)
        for publication in publications.values()
        for relation in publication.relations
        if relation.row_filter
    ]
