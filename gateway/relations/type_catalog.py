"""Queries for the catalog's current facts about types and keys, and the functions that read the
rows of these queries. This module uses no driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.relation import Attribute, Kind, TypeFacts

_NAMED: Final = {
    24: ("regproc", "pg_proc where"),
    2202: ("regprocedure", "pg_proc where"),
    2203: ("regoper", "pg_operator where"),
    2204: ("regoperator", "pg_operator where"),
    2205: ("regclass", "pg_class where"),
    2206: ("regtype", "pg_type where"),
    3734: ("regconfig", "pg_ts_config where"),
    3769: ("regdictionary", "pg_ts_dict where"),
    4089: ("regnamespace", "pg_namespace where nspname <> 'public' and"),
    4096: ("regrole", "pg_roles where rolname like 'pg\\_%' and"),
    4191: ("regcollation", "pg_collation where"),
}
"""Types whose values are oids and whose text is a name. Each type has its name here, and the
catalog and condition for the objects whose names never change. These are the objects that the
server itself created, with oids below 16384; a user's object may have had another name when the row
was written."""

_NAMES: Final = "\n".join(
    f"""\
           when {oid} then array(select o.oid::pg_catalog.int8 || ' ' || o.oid::pg_catalog.{name}::pg_catalog.text
                                from (select oid from pg_catalog.{catalog} oid < 16384 union all select 0) o (oid))"""
    for oid, (name, catalog) in _NAMED.items()
)

TYPES_QUERY: Final = f"""
with recursive needed (oid) as (
    select pg_catalog.unnest($1::pg_catalog.oid[])
    union
    select part.oid
    from needed
    join pg_catalog.pg_type t on t.oid = needed.oid
    cross join lateral (
        select t.typbasetype where t.typtype = 'd'
        union all
        select e.oid from pg_catalog.pg_type e where e.oid = t.typelem and e.typarray = t.oid
        union all
        select r.rngsubtype from pg_catalog.pg_range r where r.rngtypid = t.oid
        union all
        select r.rngtypid from pg_catalog.pg_range r where r.rngmultitypid = t.oid
        union all
        select a.atttypid from pg_catalog.pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
    ) part (oid)
)
select t.oid::pg_catalog.int8,
       n.nspname::pg_catalog.text,
       t.typname::pg_catalog.text,
       case when e.oid is null then t.typtype::pg_catalog.text else 'A' end,
       t.typsend <> 0,
       t.typdelim::pg_catalog.text,
       coalesce(case t.typtype when 'd' then t.typbasetype
                               when 'r' then r.rngsubtype
                               when 'm' then m.rngtypid
                               else e.oid end, 0)::pg_catalog.int8,
       t.typtypmod,
       coalesce((select e.extname::pg_catalog.text
                 from pg_catalog.pg_depend d join pg_catalog.pg_extension e on e.oid = d.refobjid
                 where d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass and d.objid = t.oid and d.deptype = 'e'
                   and d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass limit 1), ''),
       array(select l.enumlabel::pg_catalog.text from pg_catalog.pg_enum l where l.enumtypid = t.oid
             order by l.enumsortorder),
       array(select a.attname::pg_catalog.text from pg_catalog.pg_attribute a where t.typtype = 'c'
             and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       array(select a.atttypid::pg_catalog.int8 from pg_catalog.pg_attribute a where t.typtype = 'c'
             and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       array(select a.atttypmod from pg_catalog.pg_attribute a where t.typtype = 'c'
             and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       case t.oid
           when 790 then (
               select array[most::pg_catalog.text, ('0'::pg_catalog.money - most)::pg_catalog.text,
                            '0'::pg_catalog.money::pg_catalog.text]
               from (select '1'::pg_catalog.money
                            * (9 * 10::pg_catalog.numeric ^ (19 - pg_catalog.length(pg_catalog.regexp_replace(
                                  '0'::pg_catalog.money::pg_catalog.text, '[^0-9]', '', 'g'))))::pg_catalog.int8) of (most))
{_NAMES}
           else '{{}}'::pg_catalog.text[] end
from needed
join pg_catalog.pg_type t on t.oid = needed.oid
join pg_catalog.pg_namespace n on n.oid = t.typnamespace
left join pg_catalog.pg_type e on e.oid = t.typelem and e.typarray = t.oid -- so not int2vector, not point
left join pg_catalog.pg_range r on r.rngtypid = t.oid
left join pg_catalog.pg_range m on m.rngmultitypid = t.oid
"""
"""Return one row for each type in $1 (oids), and for every type of which these types consist, but
none for a dropped type."""

PRIMARY_KEY_QUERY: Final = """
select a.attname::pg_catalog.text
from pg_catalog.pg_index i
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = any (i.indkey[0:i.indnkeyatts - 1])
where i.indrelid = $1::pg_catalog.oid and i.indisprimary and i.indimmediate
order by a.attnum
"""
"""Return the names of the primary key's columns, without those that its index only includes
(INCLUDE). $1 is the oid of the relation.

A deferrable key does not count, as it does not for PostgreSQL: within a statement, two rows may
have the same key.
"""

GENERATED_KEY_QUERY: Final = """
select c.oid::pg_catalog.int8, a.attname::pg_catalog.text
from pg_catalog.pg_class c
join pg_catalog.pg_index i on i.indrelid = c.oid
join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey[0:i.indnkeyatts - 1])
where c.oid = any ($1::pg_catalog.oid[]) and a.attgenerated <> ''
  and case c.relreplident when 'd' then i.indisprimary and i.indimmediate when 'i' then i.indisreplident end
"""
"""Return the relation and the name of each generated column of a replica identity: publications may
omit such a column. $1 has the oids of the relations."""

BUILT_IN_QUERY: Final = """
select oid::pg_catalog.int8 from pg_catalog.pg_type
where typname = any ($1::pg_catalog.text[]) and typnamespace = 'pg_catalog'::pg_catalog.regnamespace
"""
"""Return the oids of the types of pg_catalog with the names $1."""

RELATION_QUERY: Final = "select 1 from pg_catalog.pg_class where oid = $1::pg_catalog.oid"
"""Return one row if the relation with the oid $1 exists, and none if it was dropped."""

_KINDS: Final = {
    "b": Kind.BASE,
    "A": Kind.ARRAY,
    "c": Kind.COMPOSITE,
    "d": Kind.DOMAIN,
    "e": Kind.ENUM,
    "r": Kind.RANGE,
    "m": Kind.MULTIRANGE,
    "p": Kind.PSEUDO,
}


@dataclass(frozen=True, slots=True)
class _TypeRow:
    """A row of TYPES_QUERY, with the values in their order. `part_oid` is the oid of the base type,
    element type, subtype or range type."""

    oid: int
    namespace: str
    name: str
    kind: str
    sends_binary: bool
    delimiter: str
    part_oid: int
    base_typmod: int
    extension: str
    labels: Sequence[str]
    attribute_names: Sequence[str]
    attribute_oids: Sequence[int]
    attribute_typmods: Sequence[int]
    outputs: Sequence[str] = ()


def read_types(rows: Iterable[Sequence[Any]]) -> dict[int, TypeFacts]:
    """Return the facts about the types in rows of TYPES_QUERY, by oid. They include the facts about
    the parts of each type."""
    by_oid = {int(row[0]): _TypeRow(*row) for row in rows}
    known: dict[int, TypeFacts] = {}
    for oid in by_oid:
        _facts(oid, by_oid, known)
    return known


def unknown_type(oid: int, namespace: str = "", name: str = "") -> TypeFacts:
    """Return the facts of a type that the catalog no longer has: its values are sent as
    PostgreSQL's text."""
    return TypeFacts(oid, namespace, name, Kind.UNKNOWN)


def _facts(oid: int, rows: dict[int, _TypeRow], known: dict[int, TypeFacts]) -> TypeFacts:
    if oid in known:
        return known[oid]
    row = rows.get(oid)
    if row is None:  # dropped between two steps of the query
        return unknown_type(oid)
    kind = _KINDS[row.kind]
    part = _facts(row.part_oid, rows, known) if row.part_oid and kind not in (Kind.BASE, Kind.ENUM) else None
    known[oid] = TypeFacts(
        oid=oid,
        namespace=row.namespace,
        name=row.name,
        kind=kind,
        extension=row.extension,
        sends_binary=row.sends_binary,
        delimiter=row.delimiter,
        element=None if kind is Kind.DOMAIN else part,
        base=part if kind is Kind.DOMAIN else None,
        base_typmod=row.base_typmod if kind is Kind.DOMAIN else -1,
        labels=tuple(row.labels),
        attributes=tuple(
            Attribute(name, _facts(type_oid, rows, known), typmod)
            for name, type_oid, typmod in zip(
                row.attribute_names, row.attribute_oids, row.attribute_typmods, strict=True
            )
        ),
        outputs=tuple(row.outputs),
    )
    return known[oid]


COLUMNS_QUERY: Final = """
select a.attname::pg_catalog.text, a.attnotnull,
       coalesce(pg_catalog.pg_get_expr(d.adbin, 0), '')
from pg_catalog.pg_attribute a
left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.attgenerated = ''
where a.attrelid = $1::pg_catalog.oid and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
"""Return the name of each column, whether the column is NOT NULL, and the expression of its
default. $1 is the oid of the relation.

A default uses no columns, so pg_get_expr needs no relation. It would wait for one that another
session has locked.
"""

KEY_QUERY: Final = """
select i.indexrelid::pg_catalog.int8, a.attname::pg_catalog.text
from pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indexrelid
cross join lateral pg_catalog.unnest(i.indkey[0:i.indnkeyatts - 1]) with ordinality k (attnum, place)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = $1::pg_catalog.oid and i.indisunique and i.indimmediate and i.indisvalid
  and i.indpred is null and 0 <> all (i.indkey[0:i.indnkeyatts - 1])
order by not i.indisprimary, c.relname, k.place
"""
"""Return (index, column) for each column of the primary key and then of each unique index. The
indexes are in the order of their names, and the columns in the order of the index. $1 is the oid of
the relation."""


def read_key(rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the columns of the primary key, or else of the first unique index, from rows of
    KEY_QUERY."""
    found = list(rows)
    return [name for index, name in found if index == found[0][0]]
