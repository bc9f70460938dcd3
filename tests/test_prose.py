"""Docstrings are sentences that end at 100 columns, and sentences of the documentation are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.sentences import too_long

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "schemas", "spark_consumer", "tools")
WIDTH = 100
GENERATED = ("types.md",)
FRAGMENT = re.compile(r"(Of|What|Where|One|None|So|It)\b")
_Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def faults(source: str) -> Iterator[str]:
    """Yield each docstring that is too wide, or begins with a fragment."""
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node, clean=False) if isinstance(node, _Documented) else None
        if text is None:
            continue
        line = node.body[0].lineno  # type: ignore[attr-defined]
        if FRAGMENT.match(text.strip()):
            yield f"line {line}: begins with a fragment: {text.strip()[:40]}"
        opening = " " * node.body[0].col_offset + '"""'  # type: ignore[attr-defined]
        if any(len(written) > WIDTH for written in (opening + text + '"""').splitlines()):
            yield f"line {line}: is wider than {WIDTH} columns"


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_are_sentences_within_100_columns(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): list(faults(path.read_text("utf-8"))) for path in (ROOT / package).rglob("*.py")
    }
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "source", ['"""Of a table."""', 'def f():\n    """What it is."""', f'class A:\n    """{"x" * 100}"""']
)
def test_a_fault_is_seen(source: str) -> None:
    assert len(list(faults(source))) == 1


@pytest.mark.parametrize("part", ["Start", "Understand", "Operate", "Consume"])
def test_pages_have_short_sentences(part: str) -> None:
    """Those of the part Reference are looked up, not read."""
    (navigation,) = [each[part] for each in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"] if part in each]
    pages = [page for page in re.findall(r"[\w-]+\.md", str(navigation)) if page not in GENERATED]
    assert pages
    found = {page: too_long((ROOT / "docs" / page).read_text("utf-8")) for page in pages}
    assert {page: wrong for page, wrong in found.items() if wrong} == {}
