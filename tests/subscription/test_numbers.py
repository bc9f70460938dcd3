"""Each scenario that a module here says it retells has a test, and no test is left out of that
list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODULES = [path for path in sorted(HERE.glob("test_*.py")) if path != Path(__file__)]


def told(docstring: str) -> set[int]:
    """Numbers have three digits; `015 to 021` are seven."""
    ranges = re.findall(r"\b(\d{3})\b(?: to (\d{3})\b)?", docstring)
    return {number for first, last in ranges for number in range(int(first), int(last or first) + 1)}


def numbered(module: ast.Module) -> set[int]:
    names = [node.name for node in module.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {int(found[1]) for name in names if (found := re.match(r"test_(\d{3})_", name))}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_docstring_lists_the_scenarios_that_are_tested(path: Path) -> None:
    module = ast.parse(path.read_text())
    assert told(ast.get_docstring(module) or "") == numbered(module) != set()


def test_a_list_of_scenarios_may_have_ranges() -> None:
    assert told("Scenarios 001, 015 to 017 and 023: with 64 kB and 2048 more.") == {1, 15, 16, 17, 23}
