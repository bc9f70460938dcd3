"""The account of what a relation's published rows depend on: its name, publications, types, files
and partitions.

PostgreSQL decodes each change with the catalog as it was at that change. A relation that was
removed from its publication for a moment looks the same as before; only the versions of its catalog
rows (oid and xmin) differ. If the account has changed in a way that causes no event, the relation's
rows may differ from the rows that consumers have. If the catalog alone does not show whether they
differ, it is assumed that they do.

A new file counts as a rewrite unless one of two facts shows otherwise. A row from before the last
check shows that the file is a copy. VACUUM FULL and CLUSTER copy rows, which keep their xmin,
whereas ALTER TABLE gives every row a new xmin, and TRUNCATE leaves no rows. The same TOAST table
shows, except for partitions, that ALTER TABLE did not rewrite the table, which would have given it
another one. The table was then at most truncated, which matters only if DELETE is published and
TRUNCATE is not.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FILE_UNKNOWN: Final = -1
"""The `filenode` of a partition that is known only from a Relation message: no check of the catalog
has seen it yet."""


@dataclass(frozen=True, slots=True)
class LeafContent:
    """A table with files, or a foreign table, which has none (`filenode` is 0). `columns` changes
    with every ALTER TABLE that may rewrite the table. `is_attached`: the table was attached as a
    partition after its creation. `attachment`: the versions of the pg_inherits rows that make it a
    partition of the relation. `toast`: the oid of its TOAST table, or 0."""

    oid: int
    filenode: int
    columns: str
    is_attached: bool = False
    attachment: str = ""
    toast: int = 0


@dataclass(frozen=True, slots=True)
class Membership:
    """A relation's membership in a publication. `listing`: the oids and versions of the catalog
    rows that make it a member. `actions`: the published ones of insert, update, delete and
    truncate, as their first letters. `is_whole`: there is no row filter and no column list."""

    publication_oid: int
    version: str
    name: str
    actions: str
    listing: str
    is_whole: bool
    via_root: bool = False

    @property
    def sends_everything(self) -> bool:
        return self.is_whole and len(self.actions) == len("iudt")


@dataclass(frozen=True, slots=True)
class TypeVersion:
    """An enum label or a composite type in the text of the relation's values. `version` changes if
    the text of stored values changes."""

    oid: int
    version: str


@dataclass(frozen=True, slots=True)
class Account:
    """The catalog entries that the rows of a relation depend on, apart from its files.

    `made`: the transaction that created the relation in this catalog; pg_upgrade creates it again,
    with the same oid. `moved` changes with the relation's schema, `named` with its name and its
    owner. `generated`: the numbers of its generated and dropped columns, separated by commas.
    `removals`: the number of entries that were deleted from the database's publications, as the
    server counts them. It is None if no further entry could change what is sent of the relation.
    The server counts from 0 again after a crash or a promotion, so 0 shows no removal.
    """

    made: str
    moved: str
    named: str
    owner: int
    memberships: tuple[Membership, ...]
    types: tuple[TypeVersion, ...]
    is_partition: bool = False
    generated: str = ""
    removals: int | None = None

    @property
    def actions(self) -> frozenset[str]:
        return frozenset(letter for membership in self.memberships for letter in membership.actions)


@dataclass(frozen=True, slots=True)
class PublishedContent:
    """A relation as of one check of the catalog. `account` is None in records of gateways that kept
    no account. `horizon`: every transaction with a lower 64-bit id had ended at the check."""

    schema: str
    name: str
    is_partitioned: bool
    leaves: tuple[LeafContent, ...]
    account: Account | None = None
    horizon: int = field(default=0, compare=False)

    def is_published_as(self, other: PublishedContent) -> bool:
        """Return whether nothing that decides which changes are sent has changed in between."""
        return self.account is not None and self.account == other.account


def new_files(before: PublishedContent, now: PublishedContent) -> list[LeafContent]:
    """Return the leaves of `now` that had another file before."""
    filenodes = {leaf.oid: leaf.filenode for leaf in before.leaves if leaf.filenode != FILE_UNKNOWN}
    return [leaf for leaf in now.leaves if filenodes.get(leaf.oid, leaf.filenode) != leaf.filenode]


def unsent(before: PublishedContent, now: PublishedContent, copied: Container[int] = frozenset()) -> str:
    """Return the reason why rows may have been added, removed or changed without an event, as a
    clause, or "" if nothing indicates that they have. `copied` has the oids of leaves whose new
    files have rows from before the horizon of `before`."""
    if (before.schema, before.name) != (now.schema, now.name):
        return f"it was renamed from {before.schema}.{before.name}"
    if before.account is None or now.account is None:
        return _changed_leaves(before, now) or _rewritten_by_columns(before, now)
    if before.account.made != now.account.made:
        return _changed_leaves(before, now)
    return (
        _changed_account(before.account, now.account, is_partitioned=now.is_partitioned)
        or _changed_leaves(before, now)
        or _rewritten(before, now, before.account.actions & now.account.actions, copied)
    )


def _changed_account(before: Account, now: Account, *, is_partitioned: bool) -> str:
    if before.moved != now.moved:
        return "it was in another schema for a time"
    if before.named != now.named and before.owner == now.owner:
        return "it had another name for a time"
    changed = _changed_publication(before, now, is_partitioned=is_partitioned)
    if changed:
        return changed
    versions = {entry.oid: entry.version for entry in before.types}
    if any(versions.get(entry.oid, entry.version) != entry.version for entry in now.types):
        return "a label of an enum was renamed, or an attribute of a composite type was added or dropped"
    if not set(filter(None, before.generated.split(","))) <= set(now.generated.split(",")):
        return "a column is no longer generated"
    if before.removals is not None and now.removals not in (None, 0, before.removals):
        return "a publication may have sent more of it for a time"
    return ""


def _changed_publication(before: Account, now: Account, *, is_partitioned: bool) -> str:
    """Return a clause about publications that have changed, or "". If a membership that publishes
    everything is unchanged, changes of other memberships make no difference, unless these may have
    sent the rows of a partition as rows of its root."""
    old, new = set(before.memberships), set(now.memberships)
    if old == new:
        return ""
    has_unchanged = any(m.sends_everything and (m.via_root or not is_partitioned) for m in old & new)
    if has_unchanged and not (now.is_partition and _may_have_sent_root(old ^ new)):
        return ""
    for membership in sorted(old ^ new, key=lambda membership: membership.name):
        former = next((m for m in old if m.publication_oid == membership.publication_oid), None)
        latter = next((m for m in new if m.publication_oid == membership.publication_oid), None)
        if former is not None and latter is not None and former.version == latter.version:
            return f"publication {membership.name} did not contain it for a time, or has changed its row filter or column list"
    names = sorted({membership.name for membership in old ^ new})
    return f"{'publications' if len(names) > 1 else 'publication'} {', '.join(names)} changed what is published of it"


def _may_have_sent_root(changed: Iterable[Membership]) -> bool:
    """Return whether one of these memberships publishes roots, or its publication was altered."""
    versions: dict[int, str] = {}
    return any(m.via_root or versions.setdefault(m.publication_oid, m.version) != m.version for m in changed)


def _changed_leaves(before: PublishedContent, now: PublishedContent) -> str:
    then = {leaf.oid: leaf for leaf in before.leaves}
    if not now.is_partitioned:
        return ""
    is_of_one_catalog = (
        before.account is not None and now.account is not None and before.account.made == now.account.made
    )
    if not then.keys() <= {leaf.oid for leaf in now.leaves}:
        return "a partition was detached or dropped"
    for leaf in now.leaves:
        former = then.get(leaf.oid)
        if former is not None and former.filenode == FILE_UNKNOWN:
            former = None
        if former is None and leaf.filenode != 0 and leaf.is_attached:
            return "a partition was attached"
        if former is None and leaf.filenode == 0 and before.account is not None:
            return "a foreign table was attached as a partition"
        if former is not None and is_of_one_catalog and former.attachment != leaf.attachment:
            return "a partition was detached for a time"
    return ""


def _rewritten_by_columns(before: PublishedContent, now: PublishedContent) -> str:
    """Return the reason why rows may have been rewritten, as a clause, or "". A record without an
    account is compared only by files and columns. A new file counts if `columns` changed too, as
    with every ALTER TABLE that rewrites a table. In a partitioned table, a new file always
    counts."""
    columns = {leaf.oid: leaf.columns for leaf in before.leaves}
    files = new_files(before, now)
    if now.is_partitioned:
        return "a partition was rewritten or truncated" if files else ""
    return "ALTER TABLE has rewritten it" if any(columns[leaf.oid] != leaf.columns for leaf in files) else ""


def _rewritten(before: PublishedContent, now: PublishedContent, actions: frozenset[str], copied: Container[int]) -> str:
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
        if "t" not in actions and "d" in actions:  # if neither is published, rows are meant to be kept
            return "it was truncated, and no publication of it publishes truncate"
    return ""


def read_contents(rows: Iterable[Mapping[str, Any]], horizon: int) -> dict[int, PublishedContent]:
    """Return the relations in rows of `content_query`, by oid. `horizon` was queried in the same
    PostgreSQL snapshot."""
    return {row["oid"]: _content(row, horizon) for row in rows}


def _content(row: Mapping[str, Any], horizon: int) -> PublishedContent:
    leaves = (LeafContent(*leaf) for leaf in json.loads(row["leaves"] or "[]"))
    made, moved, named, owner, memberships, types, is_partition, generated = json.loads(row["account"])
    account = Account(
        made or "",
        moved or "",
        named or "",
        owner,
        tuple(Membership(*membership) for membership in memberships or ()),
        tuple(TypeVersion(*entry) for entry in types or ()),
        is_partition,
        generated or "",
        row["removals"],
    )
    return PublishedContent(row["nspname"], row["relname"], row["is_partitioned"], tuple(leaves), account, horizon)
