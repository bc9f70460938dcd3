"""Checks of the publications: whether they exist, whether they publish something, and what has
changed in them.

Changes that a publication leaves out are lost to the slot, but the current catalog does not show
whether any were left out. The server reports the loss when it decodes such changes (see
server_notices.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.errors import RetrySlowly, StopForOperator
from gateway.names import qualified, quote_identifier
from gateway.startup.facts import Expected, Facts, PublicationFacts, PublishedRelation
from gateway.startup.findings import Finding, OperatorWarning

_ACTIONS: Final = ("insert", "update", "delete", "truncate")
_CLAUSES: Final = {"INDEX": "USING INDEX ..."}
_CHUNKS: Final = "_timescaledb_internal._hyper_"
_LISTED: Final = 10
"""Number of tables that one message names."""


def check_publications(facts: Facts, expected: Expected) -> Iterator[Finding]:
    for name in expected.publications:
        publication = facts.publications.get(name)
        if publication is None:
            yield RetrySlowly(
                f"publication {name} does not exist",
                hint=f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE ...; changes made before the publication is created "
                "are not sent. If it was renamed, see docs/tables.md (Use another publication)",
            )
        elif not publication.relations and not publication.sent_as_root:
            yield _without_tables(publication)
    yield from _identities(facts)
    yield from _partitions_of_other_identity(facts)
    if expected.keys_needed:
        yield from _without_keys(facts)
    yield from _column_lists(facts)
    yield from _keys_sent_in_part(facts)
    yield from _detaching(facts)
    yield from _foreign_partitions(facts)
    yield from _inherited(facts)


def _without_tables(publication: PublicationFacts) -> OperatorWarning:
    name = publication.name
    if publication.excluded:
        excluded = sorted(relation.full_name for relation in publication.excluded)
        return OperatorWarning(
            f"source.excluded_tables leaves out all tables of publication {name}: nothing will be sent ({some_names(excluded)})",
            "correct the patterns of source.excluded_tables",
        )
    return OperatorWarning(
        f"publication {name} has no tables: nothing will be sent",
        (
            f"check that source.dsn names the right database: the current one has no tables, and {name} is FOR ALL TABLES"
            if publication.all_tables
            else f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE ..."
        )
        + ". Unlogged tables cannot be sent: ALTER TABLE ... SET LOGGED",
    )


def check_actions(facts: Facts) -> Iterator[Finding]:
    """Warn about actions that are not published. Only `walgate check` does this, since it may be
    intended. For a table in two publications, everything that either of them publishes is sent."""
    published: dict[int, frozenset[str]] = {}
    for publication in facts.publications.values():
        for relation in publication.relations:
            before = published.get(relation.relation_oid, frozenset())
            published[relation.relation_oid] = before | publication.actions
    for publication in facts.publications.values():
        actions = [published[relation.relation_oid] for relation in publication.relations]
        missing = [action for action in _ACTIONS if not all(action in of_table for of_table in actions)]
        if missing:
            yield OperatorWarning(
                f"publication {publication.name} does not publish {', '.join(missing)}: these changes do not reach Kafka",
                "if this is not intended: "
                f"ALTER PUBLICATION {quote_identifier(publication.name)} SET (publish = '{', '.join(_ACTIONS)}')",
            )


def _identities(facts: Facts) -> Iterator[Finding]:
    """Warn about tables without a replica identity: the *application's* UPDATE and DELETE fail as
    long as the table is published."""
    without = sorted(
        {
            qualified(relation.namespace, relation.name)
            for publication in facts.publications.values()
            if publication.actions & {"update", "delete"}
            for relation in (*publication.relations, *publication.excluded, *publication.sent_as_root)
            if not relation.has_identity
        }
    )
    if without:
        yield OperatorWarning(
            f"UPDATE and DELETE fail in PostgreSQL on tables without a replica identity: {some_names(without)}",
            "for each of these tables: make sure that it has a primary key that is not deferrable, and run ALTER TABLE ... "
            "REPLICA IDENTITY DEFAULT; or run ALTER TABLE ... REPLICA IDENTITY FULL (ALTER TABLE "
            f"{without[0]} REPLICA IDENTITY FULL, for example)",
        )
    for publication in facts.publications.values():
        if publication.actions & {"update", "delete"}:
            yield from _identities_left_out(publication, facts.server.version_num)


def _identities_left_out(publication: PublicationFacts, version_num: int) -> Iterator[Finding]:
    """Warn about tables on which PostgreSQL rejects UPDATE and DELETE because the publication does
    not send the replica identity, or filters by other columns. A key that is sent in part is judged
    by `_keys_sent_in_part`."""
    relations = (*publication.relations, *publication.excluded, *publication.sent_as_root)
    unlisted = [each for each in relations if each.has_column_list and _sends_no_identity(each)]
    unsent = [
        each
        for each in relations
        if version_num >= 180000 and each.replica_identity == "FULL" and not each.has_column_list
        if not _sent(each).issuperset(each.generated_identity)
    ]
    filtered = [each for each in relations if each.filter_leaves_identity]
    name = quote_identifier(publication.name)
    for what, found, hint in (
        (
            "with a column list that does not contain the replica identity",
            unlisted,
            (
                f"in one transaction, run ALTER PUBLICATION {name} DROP TABLE ..., then ALTER PUBLICATION {name} ADD TABLE ... "
                "(columns), containing all columns of the replica identity. With REPLICA IDENTITY FULL, a table cannot "
                "have a column list: run ALTER TABLE ... REPLICA IDENTITY DEFAULT first, or publish all columns"
            ),
        ),
        (
            "with REPLICA IDENTITY FULL and generated columns",
            unsent,
            (
                f"ALTER PUBLICATION {name} SET (publish_generated_columns = stored). Virtual generated columns cannot be "
                "published: for tables with such columns, ALTER TABLE ... REPLICA IDENTITY DEFAULT, with a primary key"
            ),
        ),
        (
            "with a row filter that uses columns outside of the replica identity",
            filtered,
            (
                "for each of these tables without a column list, run ALTER TABLE ... REPLICA IDENTITY FULL; or use only columns "
                f"of the replica identity in the row filter: in one transaction, run ALTER PUBLICATION {name} DROP TABLE ..., "
                f"then ALTER PUBLICATION {name} ADD TABLE ... WHERE (...)"
            ),
        ),
    ):
        if found:
            yield OperatorWarning(
                f"UPDATE and DELETE fail in PostgreSQL on tables {what}, as publication {publication.name} publishes them: "
                f"{some_names(sorted(each.full_name for each in found))}",
                hint,
            )


def _sends_no_identity(relation: PublishedRelation) -> bool:
    """Return whether a column list leaves out the replica identity. With REPLICA IDENTITY FULL,
    PostgreSQL accepts no list."""
    identity = relation.identity_columns
    return relation.replica_identity == "FULL" or (bool(identity) and _sent(relation).isdisjoint(identity))


def _sent(relation: PublishedRelation) -> set[str]:
    return {column.name for column in relation.columns}


def _partitions_of_other_identity(facts: Facts) -> Iterator[Finding]:
    """Warn about partitions whose rows are sent as rows of their root, but with old rows that
    depend on the partition's own replica identity."""
    for publication in facts.publications.values():
        for relation in publication.relations:
            identity = relation.replica_identity
            if relation.other_identity:
                yield OperatorWarning(
                    f"{relation.full_name} has REPLICA IDENTITY {identity}, but these partitions have another one: "
                    f"{some_names(relation.other_identity)}. PostgreSQL sends old rows as the partition's replica identity says",
                    "give each partition the replica identity of its table: ALTER TABLE "
                    f"{relation.other_identity[0]} REPLICA IDENTITY {_CLAUSES.get(identity, identity)}, for example. ALTER TABLE "
                    "does not pass it on to partitions, and new partitions have DEFAULT",
                )


def _without_keys(facts: Facts) -> Iterator[Finding]:
    relations = (relation for publication in facts.publications.values() for relation in publication.relations)
    without = sorted({relation.full_name for relation in relations if not relation.key_columns})
    if without:
        yield OperatorWarning(
            f"records of these tables have no key: {some_names(without)}. Their replica identity has no key columns "
            "(with REPLICA IDENTITY FULL: they have no primary key). With debezium.compacted_topics, new topics reject such "
            "records, and the gateway stops",
            "before the first start, give each table a primary key that is not deferrable, and REPLICA IDENTITY DEFAULT; or set "
            "cleanup.policy = delete for their topics in kafka.topics",
        )


def _column_lists(facts: Facts) -> Iterator[Finding]:
    """Refuse column lists that differ between publications: PostgreSQL raises "cannot use different
    column lists for table ... in different publications" at the first row, which ends the
    stream."""
    seen: dict[int, tuple[str, PublishedRelation]] = {}
    for publication in facts.publications.values():
        for relation in publication.relations:
            first, known = seen.setdefault(relation.relation_oid, (publication.name, relation))
            if {column.name for column in known.columns} != {column.name for column in relation.columns}:
                name = quote_identifier(publication.name)
                if not known.has_column_list and not relation.has_column_list:
                    yield _generated_columns(first, publication.name, relation)
                    continue
                yield RetrySlowly(
                    f"publications {first} and {publication.name} have different column lists for {relation.full_name}",
                    hint="give the table the same column list in both publications: in one transaction, run ALTER PUBLICATION "
                    f"{name} DROP TABLE ..., then ALTER PUBLICATION {name} ADD TABLE ... (columns). A publication FOR ALL TABLES "
                    "or FOR TABLES IN SCHEMA cannot have column lists: then publish the table without one in the other one",
                )


def _generated_columns(first: str, second: str, relation: PublishedRelation) -> RetrySlowly:
    return RetrySlowly(
        f"publications {first} and {second} have different values of publish_generated_columns, and "
        f"{relation.full_name} has a generated column",
        hint=f"give both the same value: ALTER PUBLICATION {quote_identifier(second)} SET (publish_generated_columns = ...), "
        f"with the value of {first} (none or stored)",
    )


def _detaching(facts: Facts) -> Iterator[Finding]:
    """Warn about partitions that are being detached: on PostgreSQL 14 to 18, pgoutput crashes (a
    null pointer in get_rel_sync_entry), which ends every session of the server."""
    for publication in facts.publications.values():
        for root, partition in publication.detaching:
            yield OperatorWarning(
                f"partition {partition} of {root} is being detached: with publish_via_partition_root in publication "
                f"{publication.name} (FOR ALL TABLES), PostgreSQL crashes when it is to send a row that was written to the "
                "partition in this state, and crashes again at each attempt",
                "write no rows to the partition until this has run, when the statement that detaches it has ended or failed: "
                f"ALTER TABLE {root} DETACH PARTITION {partition} FINALIZE. Detach partitions without CONCURRENTLY, or set "
                "publish_via_partition_root = false for the publication",
            )


def _foreign_partitions(facts: Facts) -> Iterator[Finding]:
    """Warn about partitions that are foreign tables: PostgreSQL writes no WAL for their rows. They
    are read with a table that is sent as the root of its partitions, and otherwise not at all."""
    for publication in facts.publications.values():
        names = some_names(sorted({partition for _, partition in publication.foreign}))
        if not names:
            continue
        if publication.via_root:
            yield OperatorWarning(
                f"partitions of tables in publication {publication.name} are foreign tables: {names}. A snapshot reads their "
                "rows, but PostgreSQL sends no changes of them",
                "after changes of these rows, take a new snapshot of the partitioned table: walgate snapshot start "
                f"{shlex.quote(publication.foreign[0][0])}, for example",
            )
        else:
            yield OperatorWarning(
                f"partitions of tables in publication {publication.name} are foreign tables: {names}. PostgreSQL does not "
                "publish foreign tables: their rows are neither read nor sent",
                "to send the rows, publish the tables at the foreign server, and read them with a gateway of their own. If "
                "snapshots are enough: ALTER PUBLICATION "
                f"{quote_identifier(publication.name)} SET (publish_via_partition_root = true), after which rows of partitions "
                "go to the topic of their partitioned table",
            )


def _inherited(facts: Facts) -> Iterator[Finding]:
    """Warn about tables that inherit from a published table and are not published. PostgreSQL
    publishes them only if they exist when their parent is added to the publication."""
    for publication in facts.publications.values():
        if publication.inherited:
            name = quote_identifier(publication.name)
            children = [child for _, child in publication.inherited]
            yield OperatorWarning(
                f"tables that inherit from tables in publication {publication.name} are not published, and their rows are not "
                f"sent: {some_names(children)}",
                f"ALTER PUBLICATION {name} ADD TABLE {children[0]}, for example. A publication FOR TABLE gets no child table "
                "that is created later. If children are created again and again, as TimescaleDB's chunks are, publish all tables "
                f"or their schema (PostgreSQL 15 and later: ALTER PUBLICATION {name} ADD TABLES IN SCHEMA ...). If their rows "
                "are not wanted, nothing needs to be done",
            )


def _keys_sent_in_part(facts: Facts) -> Iterator[Finding]:
    """Check identities of which only some columns are sent. PostgreSQL allows this if only INSERT
    is published and, before 18, for generated columns."""
    for publication in facts.publications.values():
        for relation in publication.relations:
            sent = _sent(relation)
            missing = [name for name in relation.identity_columns if name not in sent]
            table = qualified(relation.namespace, relation.name)
            if missing and set(missing) <= set(relation.generated_identity):
                yield _without_key(facts, publication, relation, missing)
            elif missing and len(missing) < len(relation.identity_columns):
                yield StopForOperator(
                    f"the column list of publication {publication.name} leaves out {', '.join(missing)}, part of the replica "
                    f"identity of {relation.full_name}: rows that differ only in that part would have the same key",
                    hint="add these columns to the column list. If (and only if) the publication publishes neither UPDATE nor "
                    f"DELETE, you can instead run ALTER TABLE {table} REPLICA IDENTITY FULL: the table's events then have no "
                    "key, unless its whole primary key is published. Do not run it if the publication publishes UPDATE or "
                    "DELETE: PostgreSQL would then reject every UPDATE or DELETE on the table",
                )


def _without_key(
    facts: Facts, publication: PublicationFacts, relation: PublishedRelation, missing: Sequence[str]
) -> OperatorWarning:
    """Warn about an identity whose generated columns are not sent. PostgreSQL 18 rejects UPDATE and
    DELETE on such a table. Earlier versions do so if it has a column list, and otherwise send them
    without the columns that identify the row."""
    table = qualified(relation.namespace, relation.name)
    said = (
        f"publication {publication.name} does not send generated columns of the table's replica identity: "
        f"{', '.join(missing)}"
    )
    are_rejected = facts.server.version_num >= 180000 or relation.has_column_list
    effect = (
        "PostgreSQL rejects UPDATE and DELETE on the table"
        if are_rejected
        else "UPDATE and DELETE events do not identify the row"
    )
    said = f"events of {relation.full_name} have no key, and {effect}: {said}"
    if facts.server.version_num >= 180000:
        return OperatorWarning(
            said,
            "if the publication has a column list for the table, add these columns to the list (in one transaction, ALTER "
            "PUBLICATION ... DROP TABLE ..., then ADD TABLE ... (columns)). Otherwise: ALTER PUBLICATION "
            f"{quote_identifier(publication.name)} SET (publish_generated_columns = stored)",
        )
    return OperatorWarning(
        said,
        f"if the publication has no column list for the table: ALTER TABLE {table} REPLICA IDENTITY FULL, so that UPDATE and "
        f"DELETE events contain the old row. Otherwise: ALTER TABLE {table} REPLICA IDENTITY USING INDEX ..., with a unique "
        "index whose columns are all in the list",
    )


def excluded_names(facts: Facts) -> list[str]:
    """Return the names of published tables that source.excluded_tables leaves out, sorted."""
    publications = facts.publications.values()
    return sorted({relation.full_name for publication in publications for relation in publication.excluded})


def check_excluded(facts: Facts, _: Expected) -> Iterator[Finding]:
    """Warn about chunks of hypertables that are left out: unlike the internal tables of other
    tools, they may be wanted."""
    chunks = [name for name in excluded_names(facts) if name.startswith(_CHUNKS)]
    if chunks:
        yield OperatorWarning(
            f"chunks of TimescaleDB's hypertables are left out, and with them all rows of hypertables: {some_names(chunks)}",
            "to send the chunks, each as a table of its own, set source.excluded_tables to a list without "
            "_timescaledb_internal.*, and publish FOR ALL TABLES or FOR TABLES IN SCHEMA _timescaledb_internal, since a "
            "publication FOR TABLE gets no new chunks; otherwise, nothing needs to be done",
        )


def check_inventory(before: Facts, now: Facts) -> Iterator[Finding]:
    """Warn about what is no longer sent, or is sent differently, since `before`. A change that
    affects several tables or publications, such as the partitions of a table, is one warning."""
    told: dict[str, list[str]] = {}
    for name, old in before.publications.items():
        new = now.publications.get(name)
        if new is None:
            continue  # reported by check_publications
        if new.oid != old.oid:
            yield OperatorWarning(
                f"publication {name} was dropped and recreated",
                "if rows of its tables were changed while the publication did not exist, the server cannot send these changes: "
                "the gateway then stops, and the hint of its error says what to do. Otherwise, nothing needs to be done",
            )
        for change in _changes(old, new):
            told.setdefault(change, []).append(name)
    for change, names in told.items():
        yield OperatorWarning(
            f"publication{'s' * (len(names) > 1)} {', '.join(names)}: {change}",
            "if this was not intended, undo it (ALTER PUBLICATION, ALTER TABLE); changes that are not published do not reach "
            "Kafka, and changes to a renamed table go to a different topic",
        )


def added_tables(before: Facts, now: Facts) -> list[PublishedRelation]:
    """Return the tables that are published now but were not at `before`, sorted by name."""
    known, current = _by_oid(before), _by_oid(now)
    return _by_name(current[oid] for oid in current.keys() - known.keys())


def removed_tables(before: Facts, now: Facts) -> list[PublishedRelation]:
    """Return the tables that are no longer published or no longer exist, sorted by name. There are
    none while a publication is missing, which is reported separately."""
    if before.publications.keys() - now.publications.keys():
        return []
    known, current = _by_oid(before), _by_oid(now)
    return _by_name(known[oid] for oid in known.keys() - current.keys())


def _by_oid(facts: Facts) -> dict[int, PublishedRelation]:
    return {
        relation.relation_oid: relation
        for publication in facts.publications.values()
        for relation in publication.relations
    }


def _by_name(relations: Iterable[PublishedRelation]) -> list[PublishedRelation]:
    return sorted(relations, key=lambda relation: relation.full_name)


def rows_not_sent(tables: Sequence[str]) -> OperatorWarning:
    """Return the warning that the rows that `tables` had before they were published are not
    read."""
    return OperatorWarning(
        f"existing rows of tables that were added to a publication are not sent: {some_names(tables)}",
        "to read these rows, run walgate snapshot start schema.table (not possible with snapshot.mode = never)",
    )


def _changes(before: PublicationFacts, after: PublicationFacts) -> Iterator[str]:
    """Yield the changes of the publication, and of the names, row filters and columns of its
    tables. Columns that were added are not among them: they arrive in the stream."""
    if before.all_tables != after.all_tables:
        yield f"{'now' if after.all_tables else 'no longer'} for all tables"
    if before.via_root != after.via_root:
        yield f"publish_via_partition_root is now {str(after.via_root).lower()}"
    for action in sorted(before.actions ^ after.actions):
        yield f"{'now publishes' if action in after.actions else 'no longer publishes'} {action}"
    old = {relation.relation_oid: relation for relation in before.relations}
    new = {relation.relation_oid: relation for relation in after.relations}
    removed = sorted(old[oid].full_name for oid in old.keys() - new.keys())
    if removed:
        yield f"no longer contains {some_names(removed)}"
    dropped: dict[str, list[str]] = {}
    filtered: list[str] = []
    for oid in sorted(old.keys() & new.keys()):
        if old[oid].full_name != new[oid].full_name:
            yield f"{old[oid].full_name} is now named {new[oid].full_name} and has another topic"
        if old[oid].row_filter != new[oid].row_filter:
            filtered.append(new[oid].full_name)
        columns = {column.name for column in old[oid].columns} - {column.name for column in new[oid].columns}
        if columns:
            dropped.setdefault(", ".join(sorted(columns)), []).append(new[oid].full_name)
    if filtered:
        yield f"the row filter of {some_names(sorted(filtered))} has changed"
    for column_names, tables in dropped.items():
        yield f"{some_names(sorted(tables))} no longer send{'s' * (len(tables) == 1)} {column_names}"


def some_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
