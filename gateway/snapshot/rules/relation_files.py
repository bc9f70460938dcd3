"""The account of what a relation's published rows depend on: its name, its publications, its types,
its files, its partitions.

PostgreSQL sends a change as its catalog is at that change. A relation that was away from its
publication for a moment, and is back, looks as before: only the versions of its catalog rows (oid
and xmin) tell. Where the account has changed in a way that no event tells of, the relation's rows
are not what readers have. Where the catalog alone cannot tell, they are taken for changed.

A new file is no proof by itself. VACUUM FULL and CLUSTER copy rows, which keep their xmin; ALTER
TABLE gives every row a new one, and TRUNCATE leaves none. A row from before the last look says that
the file is a copy. All but TRUNCATE give the table another TOAST table, if it has one.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LeafContent:
    """A table with files. `columns` changes with every ALTER TABLE that may rewrite. `is_attached`:
    it was a table before it was a partition. `attachment`: the versions of the rows that make it a
    partition of the relation. `toast`: the oid of its TOAST table."""

    oid: int
    filenode: int
    columns: str
    is_attached: bool = False
    attachment: str = ""
    toast: int = 0


@dataclass(frozen=True, slots=True)
class Membership:
    """How a publication sends a relation. `listing`: the oids and versions of the rows of the
    catalog by which it does. `actions`: the letters of those of insert, update, delete, truncate
    that it publishes. `is_whole`: without a row filter and without a column list."""

    publication_oid: int
    version: str
    name: str
    actions: str
    listing: str
    is_whole: bool

    @property
    def sends_everything(self) -> bool:
        return self.is_whole and len(self.actions) == len("iudt")


@dataclass(frozen=True, slots=True)
class TypeVersion:
    """An enum label or a composite type that values of the relation are printed with. `version`
    changes where the text of stored values does."""

    oid: int
    version: str


@dataclass(frozen=True, slots=True)
class Account:
    """`made`: the transaction that made the relation in this catalog; pg_upgrade makes it anew,
    with the same oid. `moved` and `named` change with its schema and with its name, `named` also
    with its owner."""

    made: str
    moved: str
    named: str
    owner: int
    memberships: tuple[Membership, ...]
    types: tuple[TypeVersion, ...]

    @property
    def actions(self) -> frozenset[str]:
        return frozenset(letter for membership in self.memberships for letter in membership.actions)


@dataclass(frozen=True, slots=True)
class RelationFiles:
    """`account` is None in records of gateways that kept none. `horizon`: every transaction with a
    lower 64-bit id had ended when this was read."""

    schema: str
    name: str
    is_partitioned: bool
    leaves: tuple[LeafContent, ...]
    account: Account | None = None
    horizon: int = field(default=0, compare=False)


def new_files(before: RelationFiles, now: RelationFiles) -> list[LeafContent]:
    """The leaves of `now` that were there before, with another file."""
    filenodes = {leaf.oid: leaf.filenode for leaf in before.leaves}
    return [leaf for leaf in now.leaves if filenodes.get(leaf.oid, leaf.filenode) != leaf.filenode]


def unsent(before: RelationFiles, now: RelationFiles, copied: Container[int] = frozenset()) -> str:
    """Why rows have come, gone or changed without an event, as a clause; "" where nothing says so.
    `copied`: oids of leaves whose new files have rows from before the horizon of `before`."""
    if (before.schema, before.name) != (now.schema, now.name):
        return f"it was renamed from {before.schema}.{before.name}"
    if before.account is None or now.account is None:
        return _changed_leaves(before, now) or _rewritten_by_columns(before, now)
    if before.account.made != now.account.made:
        return _changed_leaves(before, now)
    return (
        _changed_account(before.account, now.account)
        or _changed_leaves(before, now)
        or _rewritten(before, now, before.account.actions & now.account.actions, copied)
    )


def _changed_account(before: Account, now: Account) -> str:
    if before.moved != now.moved:
        return "it was in another schema for a time"
    if before.named != now.named and before.owner == now.owner:
        return "it had another name for a time"
    changed = _changed_publication(before, now)
    if changed:
        return changed
    versions = {entry.oid: entry.version for entry in before.types}
    if any(versions.get(entry.oid, entry.version) != entry.version for entry in now.types):
        return "a label of an enum was renamed, or an attribute of a composite type was added or dropped"
    return ""


def _changed_publication(before: Account, now: Account) -> str:
    """A membership that sends everything, and is what it was, leaves nothing to the others."""
    old, new = set(before.memberships), set(now.memberships)
    if old == new or any(membership.sends_everything for membership in old & new):
        return ""
    for membership in sorted(old ^ new, key=lambda membership: membership.name):
        former = next((m for m in old if m.publication_oid == membership.publication_oid), None)
        latter = next((m for m in new if m.publication_oid == membership.publication_oid), None)
        if former is not None and latter is not None and former.version == latter.version:
            return f"publication {membership.name} did not contain it for a time, or has changed its row filter or column list"
    names = sorted({membership.name for membership in old ^ new})
    return f"{'publications' if len(names) > 1 else 'publication'} {', '.join(names)} changed what is published of it"


def _changed_leaves(before: RelationFiles, now: RelationFiles) -> str:
    then = {leaf.oid: leaf for leaf in before.leaves}
    if not now.is_partitioned:
        return ""
    if not then.keys() <= {leaf.oid for leaf in now.leaves}:
        return "a partition was detached or dropped"
    for leaf in now.leaves:
        former = then.get(leaf.oid)
        if former is None and leaf.is_attached:
            return "a partition was attached"
        is_of_one_catalog = (
            before.account is not None and now.account is not None and before.account.made == now.account.made
        )
        if former is not None and is_of_one_catalog and former.attachment != leaf.attachment:
            return "a partition was detached for a time"
    return ""


def _rewritten_by_columns(before: RelationFiles, now: RelationFiles) -> str:
    """By all that an older record has: what ALTER TABLE rewrites has new columns, too."""
    columns = {leaf.oid: leaf.columns for leaf in before.leaves}
    files = new_files(before, now)
    if now.is_partitioned:
        return "a partition was rewritten or truncated" if files else ""
    return "ALTER TABLE has rewritten it" if any(columns[leaf.oid] != leaf.columns for leaf in files) else ""


def _rewritten(before: RelationFiles, now: RelationFiles, actions: frozenset[str], copied: Container[int]) -> str:
    then = {leaf.oid: leaf for leaf in before.leaves}
    for leaf in new_files(before, now):
        former = then[leaf.oid]
        if leaf.oid in copied:
            continue
        if now.is_partitioned:
            return "a partition was rewritten or truncated"
        if not former.toast == leaf.toast != 0:
            is_altered = former.columns != leaf.columns
            return "ALTER TABLE has rewritten it" if is_altered else "it was rewritten or truncated"
        if "t" not in actions and "d" in actions:  # who publishes neither keeps rows on purpose
            return "it was truncated, and no publication of it publishes truncate"
    return ""


def read_contents(rows: Iterable[Mapping[str, Any]], horizon: int) -> dict[int, RelationFiles]:
    """Rows of sql.content_query, by relation oid, as of a snapshot with this horizon."""
    return {row["oid"]: _content(row, horizon) for row in rows}


def _content(row: Mapping[str, Any], horizon: int) -> RelationFiles:
    leaves = (LeafContent(*leaf) for leaf in json.loads(row["leaves"] or "[]"))
    made, moved, named, owner, memberships, types = json.loads(row["account"])
    account = Account(
        made or "",
        moved or "",
        named or "",
        owner,
        tuple(Membership(*membership) for membership in memberships or ()),
        tuple(TypeVersion(*entry) for entry in types or ()),
    )
    return RelationFiles(row["nspname"], row["relname"], row["is_partitioned"], tuple(leaves), account, horizon)
