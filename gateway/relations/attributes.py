"""The attribute number (pg_attribute.attnum) of each column of a Relation message.

The stream contains only the names of columns, and a name may move to another attribute by RENAME,
or by DROP and ADD. The catalog has the numbers, but only in its current state: it is read when the
message arrives, perhaps after later ALTER TABLEs.

Usually the columns of a message are the current columns of the table, or the first of these.
Otherwise the message is older. Numbers are assigned in ascending order and never reused, so the
columns of an older message are the first of all attributes that were not dropped before its
transaction. The catalog row of an attribute shows which transaction changed or dropped it last
(xmin), and a higher transaction id counts as later. The same rule applies if a name belongs to
another column than in an earlier version of the relation. The message may be from before or after
the DROP and ADD. The rule is not exact if a transaction got its id before the ALTER TABLE and wrote
to the table after it, or the reverse.

Columns that these rules do not explain come from an ALTER TABLE whose transaction has not
committed: names that the catalog has get their numbers, and new names get none. If the order of the
names shows that some of them have moved to other attributes, only the names before the first
different one have numbers. If a publication sends only some columns of a relation, the relation has
no numbers: a column may then be new in the stream but old in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
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
               with recursive part (oid) as (
                   select c.oid
                   union all
                   select i.inhrelid
                   from part
                   join pg_catalog.pg_inherits i on i.inhparent = part.oid and not i.inhdetachpending
               )
               select case when pg_catalog.count(distinct text) = 1 then pg_catalog.min(text) end
               from (select pg_catalog.array_to_string(l.attmissingval::pg_catalog.text::pg_catalog.text[], ',')
                     from part
                     join pg_catalog.pg_attribute l on l.attrelid = part.oid and l.attname = a.attname
                     where l.atthasmissing and not l.attisdropped) of_leaf (text))
           end),
       exists (select from pg_catalog.pg_publication_rel r
               where r.prrelid = c.oid and pg_catalog.to_jsonb(r) ->> 'prattrs' is not null),
       a.atttypid::pg_catalog.int8,
       a.atttypmod::pg_catalog.int4
from pg_catalog.pg_class c
join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where c.oid = any ($1::pg_catalog.oid[])
order by c.oid, a.attnum
"""
"""Return one row for each column that ever existed in the relations with the oids $1. Its values:
the relation, the number, the name (null if dropped), whether the column is generated, and the
transaction of its row in pg_attribute. PostgreSQL's text of the missing value follows, whether a
publication sends only some columns of the relation, and the oid and modifier of the column's type.

The missing value is the only element of attmissingval, an array. A partitioned table has no
attmissingval, but its partitions do: they all have the same value if the column was added to all of
them at once. The partitions are read from pg_inherits: pg_partition_tree would wait for each that
another session has locked.
"""

_LONGEST_LAG: Final = 1 << 27
"""The distance in transaction ids from which a change no longer counts as later."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of ATTRIBUTES_QUERY, without the relation. If `name` is None, the transaction `xid`
    dropped the attribute; otherwise it created the attribute or changed it last."""

    number: int
    name: str | None
    is_generated: bool
    xid: int
    missing: bytes | None
    is_in_list: bool
    type_oid: int = 0
    typmod: int = -1


def read_attributes(rows: Iterable[Sequence[Any]]) -> dict[int, list[Attribute]]:
    """Return the rows of ATTRIBUTES_QUERY by relation oid."""
    found: dict[int, list[Attribute]] = {}
    for relation_oid, *row in rows:
        found.setdefault(relation_oid, []).append(Attribute(*row))
    return found


def needs_earlier(names: Sequence[str], attributes: Sequence[Attribute], xid: int | None) -> bool:
    """Return whether `attribute_numbers` uses the numbers of an earlier version (`earlier`)."""
    if not attributes:
        return True
    return bool(_dropped_later(attributes, xid)) and _by_place(names, attributes, frozenset()) is not None


def attribute_numbers(
    names: Sequence[str], attributes: Sequence[Attribute], xid: int | None, earlier: Mapping[str, int]
) -> dict[str, int]:
    """Return the numbers of a message's columns by name, as far as they are known. `xid` is the
    message's transaction, or None if the message is current.

    `earlier` has the numbers of an earlier version of the relation. For a dropped relation, nothing
    else is known.
    """
    if not attributes:
        return numbers_by_name(names, earlier)
    if any(each.is_in_list for each in attributes):
        return {}
    now = _by_place(names, attributes, frozenset())
    gone = _dropped_later(attributes, xid)
    if now is not None and not any(earlier.get(name) in gone for name in names):
        return now
    for least in (1, 0):  # changed after the transaction of the message; or also in it, after the message
        changed = frozenset(each.number for each in attributes if _distance(each, xid) >= least)
        older = _by_place(names, attributes, changed)
        if older is not None:
            return older
    return numbers_by_name(names, {each.name: each.number for each in attributes if each.name is not None})


def are_explained(names: Sequence[str], attributes: Sequence[Attribute], xid: int) -> bool:
    """Return whether the columns of a message are those that the catalog has, apart from later
    changes. If not, the transaction `xid` has changed them, and has not committed."""
    if any(each.is_in_list for each in attributes):
        return True
    numbers = attribute_numbers(names, attributes, xid, {})
    found = set(numbers.values())
    return len(numbers) == len(names) and all(
        each.number in found or each.name is None or each.is_generated or _distance(each, xid) >= 0
        for each in attributes
    )


def numbers_by_name(names: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of the names that are known. New columns come last, so a new name before a
    known one must be that of a renamed column in between. Where there is none, known names have
    moved: return only the numbers of the first columns, up to the first new name."""
    in_order = sorted(known, key=lambda name: known[name])
    place = {name: at for at, name in enumerate(in_order)}
    free = -1
    for name in names:
        free += 1
        if name in place:
            if place[name] < free:
                same = takewhile(lambda pair: pair[0] == pair[1], zip(names, in_order, strict=False))
                return {name: known[name] for name, _ in same}
            free = place[name]
    return {name: known[name] for name in names if name in known}


def _by_place(names: Sequence[str], attributes: Sequence[Attribute], changed: Set[int]) -> dict[str, int] | None:
    """Return the numbers if the message has the existing columns, or the first of them, with or
    without the generated columns; otherwise None. Attributes in `changed` may have had another
    name, or may not have been dropped yet."""
    there = [each for each in attributes if each.name is not None or each.number in changed]
    for columns in ([each for each in there if not each.is_generated], there):
        pairs = list(zip(names, columns, strict=False))
        if len(pairs) == len(names) and all(name == each.name or each.number in changed for name, each in pairs):
            return {name: each.number for name, each in pairs}
    return None


def _dropped_later(attributes: Sequence[Attribute], xid: int | None) -> set[int]:
    return {each.number for each in attributes if each.name is None and _distance(each, xid) > 0}


def _distance(attribute: Attribute, xid: int | None) -> int:
    """Return the distance in transaction ids from `xid` to the last change of the attribute; -1 if
    the attribute was not changed later. Transaction ids are circular, so a very old id in the
    catalog may look like a later one."""
    distance = -1 if xid is None else (attribute.xid - xid) % (1 << 32)
    return distance if distance < _LONGEST_LAG else -1
