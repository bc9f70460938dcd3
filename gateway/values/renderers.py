"""Binary form -> the server's own text, for each type whose text can be written exactly from its binary form.

A type that is not here has no binary decoder, and why: money (its text needs the server's lc_monetary), reg* (names need
the catalog and the search path), tsquery (its text needs the operators' priorities), int2vector and its kin, and
whatever an extension brings that is not named below.
"""

from __future__ import annotations

from typing import Final

from gateway.values import dates, floats, integers, numeric, text
from gateway.values.reader import Render
from schemas.description import Kind, TypeFacts

_BUILT_IN: Final[dict[int, Render]] = {
    16: integers.render_bool,
    17: text.render_bytea,
    18: text.render_char,
    19: text.render_same,  # name
    20: integers.render_int8,
    21: integers.render_int2,
    23: integers.render_int4,
    25: text.render_same,  # text
    26: integers.render_uint4,  # oid
    28: integers.render_uint4,  # xid
    29: integers.render_uint4,  # cid
    114: text.render_same,  # json
    142: text.render_same,  # xml
    700: floats.render_float4,
    701: floats.render_float8,
    1042: text.render_same,  # bpchar
    1043: text.render_same,  # varchar
    1082: dates.render_date,
    1083: dates.render_time,
    1114: dates.render_timestamp,
    1184: dates.render_timestamptz,
    1266: dates.render_timetz,
    1700: numeric.render_numeric,
    1790: text.render_same,  # refcursor
    2950: text.render_uuid,
    3802: text.render_versioned,  # jsonb
    4072: text.render_versioned,  # jsonpath
    5069: integers.render_uint8,  # xid8
}
_EXTENSION: Final[dict[tuple[str, str], Render]] = {
    ("citext", "citext"): text.render_same,
    ("ltree", "ltree"): text.render_versioned,
    ("ltree", "lquery"): text.render_versioned,
    ("ltree", "ltxtquery"): text.render_versioned,
}


def renderer(facts: TypeFacts, typmod: int) -> Render | None:
    """None where the text can not be written from the binary form."""
    if not facts.sends_binary:
        return None
    if facts.kind is Kind.DOMAIN and facts.base is not None:
        return renderer(facts.base, facts.base_typmod)
    if facts.kind is Kind.ENUM:
        return text.render_same
    if facts.kind is Kind.BASE:
        known = _BUILT_IN.get(facts.oid)
        return known if known is not None else _EXTENSION.get((facts.extension, facts.name))
    return None
