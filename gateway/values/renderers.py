"""Render values from their binary form as the server's own text, for each type whose text can be
derived exactly.

A type that is not listed here has no binary decoder. This concerns the types of extensions that are
not named below, and the types of the server's own statistics (pg_mcv_list and similar).
"""

from __future__ import annotations

from typing import Final

from gateway.values import dates, floats, geometric, integers, network, numeric, system, text
from gateway.values.arrays import array_renderer
from gateway.values.column_readers import Render
from gateway.values.composites import composite_renderer
from gateway.values.dates import render_interval
from gateway.values.extensions import render_hstore, render_vector
from gateway.values.numeric import money_renderer
from gateway.values.ranges import multirange_renderer, range_renderer
from gateway.values.system import names_renderer
from gateway.values.text import render_bits
from gateway.values.text_search import render_tsquery, render_tsvector
from schemas.relation import Kind, TypeFacts

_BUILT_IN: Final[dict[int, Render]] = {
    16: integers.render_bool,
    17: text.render_bytea,
    18: text.render_char,
    19: text.render_same,  # name
    20: integers.render_int8,
    21: integers.render_int2,
    22: system.render_int2vector,
    23: integers.render_int4,
    25: text.render_same,  # text
    26: integers.render_uint4,  # oid
    27: system.render_tid,
    28: integers.render_uint4,  # xid
    29: integers.render_uint4,  # cid
    30: system.render_oidvector,
    114: text.render_same,  # json
    142: text.render_same,  # xml
    600: geometric.render_points,  # point
    601: geometric.render_lseg,
    602: geometric.render_path,
    603: geometric.render_points,  # box
    604: geometric.render_polygon,
    628: geometric.render_line,
    650: network.render_inet,  # cidr
    700: floats.render_float4,
    701: floats.render_float8,
    718: geometric.render_circle,
    774: network.render_macaddr,  # macaddr8
    829: network.render_macaddr,
    869: network.render_inet,
    1042: text.render_same,  # bpchar
    1043: text.render_same,  # varchar
    1082: dates.render_date,
    1083: dates.render_time,
    1114: dates.render_timestamp,
    1184: dates.render_timestamptz,
    1186: render_interval,
    1266: dates.render_timetz,
    1560: render_bits,  # bit
    1562: render_bits,  # varbit
    1700: numeric.render_numeric,
    1790: text.render_same,  # refcursor
    2950: text.render_uuid,
    2970: system.render_snapshot,  # txid_snapshot
    3220: system.render_pg_lsn,
    3614: render_tsvector,
    3615: render_tsquery,
    3802: text.render_versioned,  # jsonb
    4072: text.render_versioned,  # jsonpath
    5038: system.render_snapshot,  # pg_snapshot
    5069: integers.render_uint8,  # xid8
}
_MONEY: Final = 790
_EXTENSION: Final[dict[tuple[str, str], Render]] = {
    ("citext", "citext"): text.render_same,
    ("hstore", "hstore"): render_hstore,
    ("ltree", "ltree"): text.render_versioned,
    ("ltree", "lquery"): text.render_versioned,
    ("ltree", "ltxtquery"): text.render_versioned,
    ("vector", "vector"): render_vector,
}


def renderer(facts: TypeFacts) -> Render | None:
    """Return the renderer of a type; None if its text cannot be written from the binary form."""
    if not facts.sends_binary:
        return None
    if facts.kind is Kind.BASE:
        if facts.outputs:
            return money_renderer(facts.outputs) if facts.oid == _MONEY else names_renderer(facts.outputs)
        known = _BUILT_IN.get(facts.oid)
        return known if known is not None else _EXTENSION.get((facts.extension, facts.name))
    if facts.kind is Kind.ENUM:
        return text.render_same
    if facts.kind is Kind.DOMAIN and facts.base is not None:
        return renderer(facts.base)
    if facts.kind is Kind.COMPOSITE:
        return _composite(facts)
    if facts.element is None:
        return None
    part = renderer(facts.element)
    if part is None:
        return None
    if facts.kind is Kind.ARRAY:
        return array_renderer(part, facts.element.oid, facts.delimiter)
    return range_renderer(part) if facts.kind is Kind.RANGE else multirange_renderer(part)


def _composite(facts: TypeFacts) -> Render | None:
    attributes = []
    for attribute in facts.attributes:
        render = renderer(attribute.facts)
        if render is None:
            return None
        attributes.append((attribute.facts.oid, render))
    return composite_renderer(attributes)
