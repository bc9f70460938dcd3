"""Look up what the row filters of publications call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import asyncpg

from gateway.judgement.facts import PublicationFacts
from gateway.judgement.filters import check_filters, filter_calls
from gateway.judgement.findings import OperatorWarning
from gateway.replication.errors import DRIVER_ERRORS, classify_exception

_FAILING: Final = """
SELECT p.oid::int8, p.proname
FROM pg_catalog.pg_proc AS p
WHERE p.oid = ANY ($1::oid[]) AND NOT p.proleakproof AND p.proname <> ALL ($2::text[]) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_operator AS o
    JOIN pg_catalog.pg_amop AS a ON a.amopopr IN (o.oid, o.oprnegate)
    JOIN pg_catalog.pg_am AS m ON m.oid = a.amopmethod AND m.amname IN ('btree', 'hash')
    WHERE o.oprcode = p.oid)
"""
_TYPES: Final = (
    "SELECT t.oid::int8, pg_catalog.format_type(t.oid, NULL) FROM pg_catalog.pg_type AS t WHERE t.oid = ANY ($1::oid[])"
)
_NEVER_FAIL: Final = (
    *("lower", "upper", "initcap", "length", "char_length", "character_length", "octet_length", "bit_length"),
    *("btrim", "ltrim", "rtrim", "starts_with", "reverse", "strpos", "md5", "ascii"),
    *("textlike", "textnlike", "bpcharlike", "bpcharnlike", "namelike", "namenlike", "texticlike", "texticnlike"),
    *("isfinite", "jsonb_exists", "jsonb_contains", "jsonb_contained", "array_length", "cardinality"),
    *("arrayoverlap", "arraycontains", "arraycontained", "bool", "booland_statefunc", "text"),
)
"""Functions that are not marked leakproof, and fail for no value of a row. (A pattern of LIKE is a constant as a rule.)"""


async def filters_that_can_fail(
    sql: asyncpg.Connection, publications: Mapping[str, PublicationFacts]
) -> list[OperatorWarning]:
    """A warning for each such row filter. Asks nothing where there are no filters. Raises classified errors."""
    calls = filter_calls(publications)
    if not calls.functions and not calls.types:
        return []
    try:
        failing = dict(await sql.fetch(_FAILING, sorted(calls.functions), list(_NEVER_FAIL)))
        types = dict(await sql.fetch(_TYPES, sorted(calls.types)))
    except DRIVER_ERRORS as error:
        raise classify_exception(error, "querying the functions of the row filters") from error
    return list(check_filters(publications, failing, types))
