"""The gateway has a reaction to every SQLSTATE and every answer of the registry, and
docs/server-errors.md matches the code."""

from __future__ import annotations

import re

import pytest

from gateway.startup.reaction_by_sqlstate import TABLE
from tests.server_errors import CODES, PLACE, ROOT, STATUSES, outcome_of_answer, outcomes, page, sqlstates

SHOWN = (ROOT / "docs" / "server-errors.md").read_text("utf-8")
STOPS = {"08P01", "42601", "22023", "22008", "22021", "22P05", "54000"}
OWN_FAULT = {"0B", "24", "25", "2D", "34", "3B", "42"}


def test_the_page_is_that_of_the_code() -> None:
    assert page() == SHOWN, "python -m tests.server_errors > docs/server-errors.md"


def test_the_page_says_what_happens_after_every_sqlstate() -> None:
    rows = {
        code: (login, query, stream)
        for code, login, query, stream in re.findall(
            r"^\| (\w{5}|\w\w)(?:\.\.\.)? \| (.*) \| (.*) \| (.*) \|$", SHOWN, re.M
        )
    }
    assert len(sqlstates()) > 240 and {"25P04", "P0001", "XX002"} <= set(sqlstates())
    assert {code: rows.get(code) or rows[code[:2]] for code in sqlstates()} == {
        code: outcomes(code) for code in sqlstates()
    }


def test_only_a_statement_of_the_gateway_that_is_wrong_is_unexpected() -> None:
    assert {code[:2] for code in sqlstates() if "bug" in outcomes(code)} <= OWN_FAULT
    for code in sqlstates():
        login, _, stream = outcomes(code)
        assert login in ("retries", "waits") or code in STOPS, code
        assert stream in ("retries", "waits", PLACE) or code in STOPS, code
    assert not [code for code in TABLE if len(code) == 5 and code not in sqlstates()]


@pytest.mark.parametrize("status", STATUSES)
def test_no_status_speaks_about_the_schema(status: int) -> None:
    assert outcome_of_answer(status) in ("retries", "waits")


def test_three_codes_of_the_registry_speak_about_the_schema() -> None:
    stops = {code for code in CODES if outcome_of_answer(code if code < 1000 else code // 100, code) == "78"}
    assert stops - {40401, 40402, 40403, 40408} == {409, 42201, 42202}
