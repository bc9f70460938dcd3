"""Check patterns of the settings against the names of published tables, for `walgate check`.

A pattern that matches nothing may be meant for a table that is still to be created. A pattern that
would match if case were ignored is a mistake: PostgreSQL folds unquoted names to lower case, and
keeps quoted names as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import translate

from gateway.config.settings import Settings
from gateway.names import in_any_schema
from gateway.runtime.assign_column_rules import rules_unfit_for_keys, unused_rules
from gateway.startup.facts import Facts
from gateway.startup.findings import Finding, OperatorWarning
from gateway.startup.publication_checks import some_names
from schemas.topic_names import format_relation, message_topic, topic_names, transaction_topic


def check_patterns(settings: Settings, facts: Facts) -> Iterator[Finding]:
    """Warn about patterns that match published names only if case is ignored, or only the end of a
    name, and about rules for columns that match no column. Refuse rules that match a column of a
    key and may not."""
    relations = [
        relation
        for publication in facts.publications.values()
        for relation in (*publication.relations, *publication.excluded)
    ]
    tables = sorted({relation.full_name for relation in relations})
    quoted = sorted({format_relation(relation.namespace, relation.name) for relation in relations})
    prefix = settings.kafka.prefix
    own = {transaction_topic(prefix), message_topic(prefix), *settings.kafka.topic_names.values()}
    topics = sorted(own | {topic_names(prefix, r.namespace, r.name)[0] for r in relations})
    excluded = {pattern: translate(in_any_schema(pattern)) for pattern in settings.source.excluded_tables}
    yield from _misses("source.excluded_tables", excluded.items(), tables)
    rules = [rule.pattern for rule in settings.errors.tables]
    yield from _misses("errors.tables", zip(rules, rules, strict=True), tables)
    overrides = [override.pattern for override in settings.kafka.topics]
    yield from _misses("kafka.topics", zip(overrides, overrides, strict=True), topics)
    named = {table: re.escape(table) for table in settings.kafka.topic_names}
    yield from _misses("kafka.topic_names", named.items(), quoted)
    if relations:
        yield from unused_rules(settings.columns, facts.publications.values())
    yield from rules_unfit_for_keys(settings.columns, facts.publications.values())


def _misses(setting: str, expressions: Iterable[tuple[str, str]], names: list[str]) -> Iterator[OperatorWarning]:
    """Warn about patterns that match names only if case is ignored, or only what follows a dot.
    `expressions` has each pattern as it is written, and as a regular expression."""
    for pattern, expression in expressions:
        if any(re.fullmatch(expression, name) for name in names):
            continue
        near = [name for name in names if re.fullmatch(expression, name, re.IGNORECASE)]
        if near:
            yield OperatorWarning(
                f"{setting}: {pattern} matches nothing that is published; it differs only in upper and lower case from "
                f"{some_names(near)}",
                "write the name as PostgreSQL stores it: names without double quotes are stored in lower case",
            )
        ends = [name for name in names if any(re.fullmatch(expression, end) for end in _ends(name))]
        if ends:
            yield OperatorWarning(
                f"{setting}: {pattern} matches nothing that is published; it matches only the end of {some_names(ends)}",
                "write an expression that matches the whole name",
            )


def _ends(name: str) -> Iterator[str]:
    """Yield what follows each dot of a name."""
    while name := name.partition(".")[2]:
        yield name
