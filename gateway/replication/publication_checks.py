"""Checks of the publications: they exist, hold something, and are what they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.operate.errors import DataGap, StopForOperator, WalgateError
from gateway.replication.facts import NEW_START, Caution, Expected, Facts, Finding
from gateway.replication.options import quote_identifier
from gateway.replication.publication import inventory_changes

_LISTED: Final = 10  # so many tables are named in one message


def check_publications(facts: Facts, expected: Expected) -> Iterator[Finding]:
    for name in expected.publications:
        publication = facts.publications.get(name)
        if publication is None:
            yield _missing_publication(name, expected)
        elif not publication.relations:
            # A publication may be made before its tables are; when tables leave a running one, check_inventory speaks.
            yield Caution(
                f"publication {name} holds no table, nothing will be sent",
                f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE ...",
            )
    yield from _identities(facts)
    yield from _column_lists(facts)
    yield from _keys_sent_in_part(facts)


def _missing_publication(name: str, expected: Expected) -> WalgateError:
    create = f"CREATE PUBLICATION {quote_identifier(name)} FOR ALL TABLES"
    if expected.resume_lsn is None:
        return StopForOperator(f"publication {name} does not exist", hint=create)
    return DataGap(
        f"publication {name} does not exist: changes since its DROP are lost to this slot, also when it is made again",
        hint=f"{create}; then {NEW_START}",
    )


def _identities(facts: Facts) -> Iterator[Finding]:
    """Without an identity the *application's* UPDATE and DELETE fail, as long as the table is published."""
    without = sorted(
        {
            f"{quote_identifier(relation.namespace)}.{quote_identifier(relation.name)}"
            for publication in facts.publications.values()
            if publication.actions & {"update", "delete"}
            for relation in publication.relations
            if not relation.has_identity
        }
    )
    if without:
        yield Caution(
            f"tables without a replica identity, whose UPDATE and DELETE fail in PostgreSQL: {_some(without)}",
            f"add a primary key, or ALTER TABLE {without[0]} REPLICA IDENTITY FULL",
        )


def _column_lists(facts: Facts) -> Iterator[Finding]:
    """ "cannot use different column lists for table ... in different publications" ends the stream at its first row."""
    seen: dict[int, tuple[str, frozenset[str]]] = {}
    for publication in facts.publications.values():
        for relation in publication.relations:
            columns = frozenset(column.name for column in relation.columns)
            first, known = seen.setdefault(relation.relation_oid, (publication.name, columns))
            if known != columns:
                yield StopForOperator(
                    f"publications {first} and {publication.name} have different column lists for {relation.full_name}",
                    hint=f"ALTER PUBLICATION {quote_identifier(publication.name)} SET TABLE ... with the same columns",
                )


def _keys_sent_in_part(facts: Facts) -> Iterator[Finding]:
    """PostgreSQL allows it where only INSERT is published, and before 18 for generated columns."""
    for publication in facts.publications.values():
        for relation in publication.relations:
            sent = {column.name for column in relation.columns}
            missing = [name for name in relation.identity_columns if name not in sent]
            if missing and len(missing) < len(relation.identity_columns):
                table = f"{quote_identifier(relation.namespace)}.{quote_identifier(relation.name)}"
                yield StopForOperator(
                    f"publication {publication.name} does not send {', '.join(missing)} of {relation.full_name}, a part of its "
                    "replica identity: rows that differ in it only would have the same key",
                    hint=f"send it too, or ALTER TABLE {table} REPLICA IDENTITY FULL, which leaves the table without a key",
                )


def check_inventory(before: Facts, now: Facts) -> Iterator[Finding]:
    """What has changed in the publications since `before`."""
    for name, old in before.publications.items():
        new = now.publications.get(name)
        if new is None:
            continue  # check_publications says it
        if new.oid != old.oid:
            yield DataGap(
                f"publication {name} was dropped and made again: changes in between are lost to this slot",
                hint=NEW_START,
            )
        elif old.relations and not new.relations and not new.all_tables:
            yield StopForOperator(
                f"publication {name} held {len(old.relations)} tables, now it holds none",
                hint=f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE ...; what was not published meanwhile is lost",
            )
        else:
            for change in inventory_changes(old, new):
                yield Caution(f"publication {change}", "changes that are not published are lost to readers of Kafka")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
