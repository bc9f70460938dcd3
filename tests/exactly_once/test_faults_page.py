"""docs/faults.md: every fault of the catalogue has its line, and every test that a line names
exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"
CATALOGUE = {"G": 14, "K": 17, "R": 8, "P": 33, "T": 35}


def lines() -> list[list[str]]:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [GKRPT]\d+ ", line)]
    return [[field.strip() for field in row.strip("|").split("|")] for row in rows]


def test_every_fault_of_the_catalogue_has_one_line() -> None:
    assert [line[0] for line in lines()] == [
        f"{room}{n}" for room, count in CATALOGUE.items() for n in range(1, count + 1)
    ]


def test_every_named_test_exists() -> None:
    for fault, _, _, _, state, named in lines():
        assert state in ("tested", "not applicable", "open"), fault
        assert (state == "tested") == bool(named), fault
        for test in filter(None, named.split(", ")):
            file, _, name = test.partition("::")
            assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.M), f"{fault}: {test}"


def test_each_fault_says_how_the_gateway_recovers() -> None:
    for fault, _, _, recovery, state, _ in lines():
        assert (recovery == "-") == (state == "not applicable"), fault
        assert recovery == "-" or re.match("(automatic|after repair|78|consumer stops)(;|$| )", recovery), fault


def test_at_least_sixty_faults_are_tested() -> None:
    states = Counter(line[4] for line in lines())
    print(dict(states))
    assert states["tested"] >= 60
