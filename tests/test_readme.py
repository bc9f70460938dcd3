"""README.md is short enough to be read, and shows what the program really writes.

Its commands are run by tests/walk/test_readme.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.sentences import prose, too_long

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
LINES = 120
TITLES = [
    "Why not Debezium?",
    "Limits",
    "Try it",
    "Your own database",
    "Read it",
    "Guarantees",
    "Numbers",
]


def nested_parentheses(text: str) -> list[str]:
    return re.findall(r"\([^()\n]*\([^()]*\)[^()]*\)", prose(text))


def test_it_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= LINES
    assert too_long(README) == []
    assert nested_parentheses(README) == []


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("word " * 31 + ".", (1, 0)),
        ("* " + "word " * 31, (1, 0)),
        ("| a | " + "word " * 31 + " |", (1, 0)),
        ("word " * 30 + ". And more.", (0, 0)),
        ("A (sentence (with an aside) in it).", (0, 1)),
        ("A [link](docs/x.md) (with an aside).", (0, 0)),
    ],
)
def test_a_page_that_is_hard_to_read_is_noticed(text: str, complaints: tuple[int, int]) -> None:
    assert (len(too_long(text)), len(nested_parentheses(text))) == complaints


def test_it_has_its_parts_in_the_order_of_a_readers_questions() -> None:
    assert re.findall(r"^## (.+)$", README, re.M) == TITLES


def test_its_event_is_one_that_the_gateway_writes() -> None:
    """tests/test_docs.py compares those of docs/topics.md with a recorded transaction."""
    (event,) = re.findall(r"```json\n(.*?)```", README, re.S)
    topics = re.findall(r"```json\n(.*?)```", (ROOT / "docs/topics.md").read_text("utf-8"), re.S)
    assert json.loads(event) in [json.loads(block) for block in topics]


def test_its_figures_are_those_of_the_page_with_the_measurements() -> None:
    measured = (ROOT / "docs/performance.md").read_text("utf-8")
    figures = set(re.findall(r"\b\d{1,3}(?:,\d{3})+\b", README)) - {"1,000,000"}
    assert figures and [figure for figure in figures if figure not in measured] == []
