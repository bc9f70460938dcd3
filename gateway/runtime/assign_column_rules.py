"""Apply the rules of `columns` in the settings to the columns of a relation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gateway.config.columns import ColumnRule, ColumnSettings
from gateway.errors import NextSession, RetrySlowly, StopForOperator, UnwritableRelation
from gateway.pgoutput.relation import Relation
from gateway.relations.attributes import Attribute, are_explained, numbers_by_name
from gateway.startup.facts import PublicationFacts
from gateway.startup.findings import OperatorWarning
from schemas.relation import ColumnDescription, Protect, Protection, RelationDescription
from schemas.schema_metadata import FormerRelation


def protect(description: RelationDescription, settings: ColumnSettings) -> RelationDescription:
    """Return the description with its protections. Raises StopForOperator if a rule without in_key
    matches a column of the key."""
    if not settings.rules:
        return description
    _refuse_in_key(description, description.identity_columns, settings)
    hash_key = settings.hash_key.get_secret_value().encode() if settings.hash_key else b""
    columns = []
    for column in description.columns:
        rule = settings.rule_of(description.namespace, description.name, column.name)
        if rule is not None:
            key = hash_key if rule.action == "hash" else b""
            column = replace(column, protection=Protection(Protect(rule.action), rule.length or 0, key))
        columns.append(column)
    return replace(description, columns=tuple(columns))


def check_key(description: RelationDescription, key: Iterable[int], settings: ColumnSettings) -> None:
    """Check the rules for `key`, the indexes of the columns in the records' key. In Debezium's
    dialect, these columns may differ from those of the replica identity. Raises StopForOperator."""
    _refuse_in_key(description, (description.columns[at] for at in key), settings)


def _refuse_in_key(
    description: RelationDescription, key: Iterable[ColumnDescription], settings: ColumnSettings
) -> None:
    for error in _unfit_for_key(description.namespace, description.name, (column.name for column in key), settings):
        raise error


def _unfit_for_key(
    namespace: str, table: str, key: Iterable[str], settings: ColumnSettings
) -> Iterator[StopForOperator]:
    """Yield an error for each column of the key that a rule without in_key matches."""
    for column in key:
        rule = settings.rule_of(namespace, table, column)
        if rule is None or rule.in_key:
            continue
        if rule.action == "hash":
            hint = "set in_key = true in the rule: the record's key and the fields old_key and before will then contain the hash"
        else:
            hint = (
                "set action = hash and in_key = true in the rule, which keeps keys distinct, or exclude the column from the "
                "rule's pattern"
            )
        yield StopForOperator(
            f"{namespace}.{table}, column {column} is part of the key, so the rule in [[columns]] with the pattern "
            f"{rule.pattern} ({rule.action}) cannot be applied to it",
            hint=hint,
        )


def rules_unfit_for_keys(
    settings: ColumnSettings, publications: Iterable[PublicationFacts]
) -> Iterator[StopForOperator]:
    """Yield an error for each column of a published table's key that a rule without in_key
    matches."""
    keys = {
        (relation.namespace, relation.name): relation.key_columns
        for facts in publications
        for relation in facts.relations
        if {column.name for column in relation.columns}.issuperset(relation.key_columns)
    }
    for (namespace, table), key in keys.items():
        yield from _unfit_for_key(namespace, table, key, settings)


class ColumnsUnknown(RetrySlowly):
    """A transaction that has not committed may have given another name to a column with a rule:
    other sessions do not see the new definition of the table yet."""

    def change(self, next_session: NextSession) -> None:
        next_session.read_whole()


def refuse_unknown(
    relation: Relation,
    in_use: RelationDescription | None,
    settings: ColumnSettings,
    attributes: Sequence[Attribute],
    xid: int,
    *,
    holds_lock: bool,
) -> None:
    """Raise ColumnsUnknown if the transaction `xid`, which was not committed when it sent the
    Relation message, may have changed which columns have a rule. If it `holds_lock`, it may have
    done so even if the names are those of the catalog."""
    if in_use is None and not attributes:
        return  # the transaction has created the table
    columns = [(relation.namespace, relation.name, column.name) for column in relation.columns]
    if in_use is not None:
        columns += [(in_use.namespace, in_use.name, column.name) for column in in_use.columns]
    has_rule = any(settings.rule_of(*column) is not None for column in columns)
    if (holds_lock and has_rule) or not are_explained([each.name for each in relation.columns], attributes, xid):
        raise ColumnsUnknown(
            f"transaction {xid} may have renamed columns of {relation.namespace}.{relation.name}: which of them have a rule in "
            "[[columns]] is known only when it ends",
            hint=f"if the transaction is prepared, end it with COMMIT PREPARED or ROLLBACK PREPARED: SELECT gid FROM "
            f"pg_prepared_xacts WHERE transaction = '{xid}'",
        )


def not_seen(relation: Relation, xid: int) -> ColumnsUnknown:
    """Return the error for a transaction that has committed, and of which the catalog shows nothing
    yet."""
    return ColumnsUnknown(
        f"transaction {xid}, which has locked {relation.namespace}.{relation.name}, has committed, but other sessions do not "
        "see that yet: which columns have a rule in [[columns]] is not known before",
        hint="its COMMIT waits for a synchronous standby: see that one of synchronous_standby_names answers. The gateway itself "
        "must not be one of them",
    )


def refuse_renamed(
    description: RelationDescription,
    former: FormerRelation,
    settings: ColumnSettings,
    field_name: Callable[[str], str],
    *,
    is_in_list: bool = False,
) -> None:
    """Raise UnwritableRelation if a rule matches the former name of a column, but no rule matches
    its present name: its values would be sent as they are. `field_name` returns the name under
    which a schema has a column. `is_in_list`: a publication sends only some columns, so that none
    has a number.

    A column is the same if it has the same attnum. Where numbers are not known, a column is also
    taken for a new unprotected one if its name has disappeared, or for any unprotected one if the
    order of the names shows that it has moved.
    """
    names = {field_name(column.name): column.attnum for column in description.columns}
    known = {field_name(name): number for name, number in former.columns.items() if number is not None}
    kept = numbers_by_name(list(names), known)
    numbers = {column.attnum for column in description.columns} - {None}
    for former_name, number in former.columns.items():
        rule = settings.rule_of(former.namespace, former.name, former_name)
        if rule is None:
            continue
        former_field = field_name(former_name)
        has_moved = not is_in_list and former_field in names and former_field in known and former_field not in kept
        for column in description.columns:
            if number in numbers:
                is_same = column.attnum == number
            elif has_moved:
                is_same = column.attnum is None and field_name(column.name) not in kept
            elif former_field in names:
                is_same = field_name(column.name) == former_field
            else:
                is_known = column.attnum is not None and number is not None
                is_same = not is_known and not {column.name, field_name(column.name)} & former.columns.keys()
            if is_same and column.protection is None:
                raise _renamed(description, column, f"{former.namespace}.{former.name}.{former_name}", rule)


def renamed_later(
    description: RelationDescription,
    former: FormerRelation,
    settings: ColumnSettings,
    attributes: Sequence[Attribute],
    field_name: Callable[[str], str],
) -> dict[str, ColumnDescription]:
    """Return the columns that now have another name in the catalog, by that name, if `former` has
    this name too and a rule matches it. `former` may then be newer than the description."""
    present = {each.number: field_name(each.name) for each in attributes if each.name is not None}
    by_number = {column.attnum: column for column in description.columns}
    return {
        name: by_number[number]
        for name, number in former.columns.items()
        if number is not None
        and number in by_number
        and by_number[number].name != name
        and present.get(number) == field_name(name)
        and settings.rule_of(former.namespace, former.name, name) is not None
    }


def _renamed(
    description: RelationDescription, column: ColumnDescription, former: str, rule: ColumnRule
) -> UnwritableRelation:
    return UnwritableRelation(
        f"{description.qualified_name}: column {column.name} was {former}, which the rule in [[columns]] with the pattern "
        f"{rule.pattern} ({rule.action}) hides, but no rule matches its new name",
        hint=f"extend the pattern, so that it matches {description.qualified_name}.{column.name} too. To send the values as "
        f"they are, change the pattern so that it no longer matches {former}",
    )


def unused_rules(settings: ColumnSettings, publications: Iterable[PublicationFacts]) -> tuple[OperatorWarning, ...]:
    """Warn about patterns that match no column: a mistyped pattern protects nothing."""
    columns = [
        (relation.namespace, relation.name, column.name)
        for facts in publications
        for relation in facts.relations
        for column in relation.columns
    ]
    return tuple(
        OperatorWarning(
            f"the rule in [[columns]] with the pattern {pattern} matches no published column",
            "the rule protects nothing: correct its pattern (a regular expression that must match the whole name "
            "schema.table.column), or remove the rule",
        )
        for pattern in settings.unused(columns)
    )
