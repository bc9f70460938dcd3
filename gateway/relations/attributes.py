"""Which attribute of its relation (pg_attribute.attnum) each column of a Relation message is.

The stream sends names, and a name may move to another attribute: RENAME, or DROP and ADD. The
catalog knows the numbers, but as of now: it is read when the message is, which may be after later
ALTER TABLEs.

Mostly the columns of a message are those that there are now, or the first of them. Else it is
older: numbers are given in order and never again, so its columns are the first ones of all that
were not dropped before its transaction. Who dropped or changed an attribute last is in its row of
the catalog (xmin), and later is who has the higher transaction id. So it is too where a name
belongs to another column than in an earlier version of the relation: the message may be from before
or after the DROP and ADD. That is not exact where a transaction had its id before the ALTER TABLE
and wrote to the table after it, or the other way round.

What cannot be explained like this is of an ALTER TABLE whose transaction has not committed: names
that are there have their numbers, new ones none. A relation of which a publication sends some
columns has no numbers: a column may then be new in the stream and old in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

ATTRIBUTES_QUERY: Final = """
select c.oid::pg_catalog.int8,
       a.attnum::pg_catalog.int4,
       case when a.attisdropped then null else a.attname::pg_catalog.text end,
       a.attgenerated <> '',
       a.xmin::pg_catalog.text::pg_catalog.int8,
       pg_catalog.textsend(case
           when a.atthasmissing then
               pg_catalog.array_to_string(a.attmissingval::pg_catalog.text::pg_catalog.text[], ',')
           when c.relkind = 'p' and not a.attisdropped then (
               select case when pg_catalog.count(distinct text) = 1 then pg_catalog.min(text) end
               from (select pg_catalog.array_to_string(l.attmissingval::pg_catalog.text::pg_catalog.text[], ',')
                     from pg_catalog.pg_partition_tree(c.oid) p
                     join pg_catalog.pg_attribute l on l.attrelid = p.relid and l.attname = a.attname
                     where p.isleaf and l.atthasmissing and not l.attisdropped) of_leaf (text))
           end),
       exists (select from pg_catalog.pg_publication_rel r
               where r.prrelid = c.oid and pg_catalog.to_jsonb(r) ->> 'prattrs' is not null)
from pg_catalog.pg_class c
join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where c.oid = any ($1::pg_catalog.oid[])
order by c.oid, a.attnum
"""
"""$1: relation oids. Of each column there ever was: relation, number, name (null: dropped), whether
it is generated, the transaction of its row in pg_attribute, PostgreSQL's text of attmissingval, and
whether a publication sends only some columns of the relation.

attmissingval is an array of one element, which its text form quotes where need be. A partitioned
table has none: its partitions do, all the same if the column was added to all of them at once."""

_LONGEST_LAG: Final = 1 << 27
"""Transactions."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row of ATTRIBUTES_QUERY, without the relation. `name` None: dropped, by `xid`; else `xid`
    has made it or changed it last."""

    number: int
    name: str | None
    is_generated: bool
    xid: int
    missing: bytes | None
    is_in_list: bool


def read_attributes(rows: Iterable[Sequence[Any]]) -> dict[int, list[Attribute]]:
    """Rows of ATTRIBUTES_QUERY, by relation oid."""
    found: dict[int, list[Attribute]] = {}
    for relation_oid, *row in rows:
        found.setdefault(relation_oid, []).append(Attribute(*row))
    return found


def needs_earlier(names: Sequence[str], attributes: Sequence[Attribute], xid: int | None) -> bool:
    """Whether `attribute_numbers` looks at the earlier version."""
    if not attributes:
        return True
    return bool(_dropped_later(attributes, xid)) and _by_place(names, attributes, frozenset()) is not None


def attribute_numbers(
    names: Sequence[str], attributes: Sequence[Attribute], xid: int | None, earlier: Mapping[str, int]
) -> dict[str, int]:
    """Numbers of the columns of a message, by name, as far as they are known. `xid`: its
    transaction, None: it is as of now.

        `earlier`: those of an earlier version of the relation. They are all that is known of a relation
        that was dropped.
    """
    if not attributes:
        return {name: earlier[name] for name in names if name in earlier}
    if any(each.is_in_list for each in attributes):
        return {}
    now = _by_place(names, attributes, frozenset())
    gone = _dropped_later(attributes, xid)
    if now is not None and not any(earlier.get(name) in gone for name in names):
        return now
    for least in (1, 0):  # behind the transaction of the message; or in it, behind the message
        changed = frozenset(each.number for each in attributes if _distance(each, xid) >= least)
        older = _by_place(names, attributes, changed)
        if older is not None:
            return older
    known = {each.name: each.number for each in attributes if each.name is not None}
    found = {name: known[name] for name in names if name in known}
    return found if list(found.values()) == sorted(found.values()) else {}


def _by_place(names: Sequence[str], attributes: Sequence[Attribute], changed: Set[int]) -> dict[str, int] | None:
    """Where the message has the columns that there are, with or without the generated ones, and
    perhaps without the last ones. Those in `changed` had another name, or were not dropped yet."""
    there = [each for each in attributes if each.name is not None or each.number in changed]
    for columns in ([each for each in there if not each.is_generated], there):
        pairs = list(zip(names, columns, strict=False))
        if len(pairs) == len(names) and all(name == each.name or each.number in changed for name, each in pairs):
            return {name: each.number for name, each in pairs}
    return None


def _dropped_later(attributes: Sequence[Attribute], xid: int | None) -> set[int]:
    return {each.number for each in attributes if each.name is None and _distance(each, xid) > 0}


def _distance(attribute: Attribute, xid: int | None) -> int:
    """How many transactions later than `xid` the attribute was changed last; -1: not later. Ids are
    circular numbers, and rows of the catalog keep very old ones, which may look like later ones."""
    distance = -1 if xid is None else (attribute.xid - xid) % (1 << 32)
    return distance if distance < _LONGEST_LAG else -1
