"""Which values of synchronous_standby_names make the gateway a synchronous standby, as PostgreSQL's
grammar reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.startup.synchronous_standby import check_synchronous, names_the_gateway
from tests.startup.facts import EXPECTED, SLOT, with_server


@pytest.mark.parametrize(
    ("setting", "is_named"),
    [
        ("", False),
        ("*", True),
        ("walgate", True),
        ("WalGate", True),
        ('"walgate"', True),
        ("s1, s2", False),
        ("s1, *", True),
        ("FIRST 1 (s1, s2)", False),
        ("first 2 (s1, walgate)", True),
        ("ANY 1 (s1, *)", True),
        ("2 (s1, walgate)", True),
        ("any", False),
        ("walgate2, my_walgate", False),
        ('"wal,gate", s1', False),
        ('"wal""gate"', False),
        ('s1, "*"', True),
    ],
)
def test_the_names_that_match_are_those_of_the_server_s_grammar(setting: str, is_named: bool) -> None:
    assert names_the_gateway(setting) is is_named


@pytest.mark.parametrize(
    ("setting", "state", "words"),
    [
        ("s1", "async", None),
        ("*", "sync", "is a synchronous standby (sync_state is sync)"),
        ("ANY 1 (*)", "quorum", "is a synchronous standby (sync_state is quorum)"),
        ("s1, *", "potential", "includes walgate"),
        ("*", None, "includes walgate"),
        ("s1", None, None),
    ],
)
def test_a_warning_says_what_waits_and_the_statement_that_ends_it(
    setting: str, state: str | None, words: str | None
) -> None:
    facts = replace(with_server(synchronous_standby_names=setting), slot=replace(SLOT, sync_state=state))
    findings = list(check_synchronous(facts, EXPECTED))
    assert [words in finding.message for finding in findings if words is not None] == [True] * (words is not None)
    assert all("ALTER SYSTEM SET synchronous_standby_names" in finding.hint for finding in findings)
