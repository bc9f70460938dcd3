"""tests/defaults.md has every default setting and option, with a test of `make test` that runs it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined
from typer.main import get_command

from gateway.config.settings import Settings
from spark_consumer.jobs.cli import app
from spark_consumer.source.options import NAMES, parse_options

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "defaults.md"
NOT_RUN = "Run by no test"
ONLY_AN_ADDRESS = {"kafka.bootstrap_servers", "registry.url"}
_ROW = re.compile(r"^\| `([^`]+)` \| `([^`]*)` \|$", re.MULTILINE)
_FIELDS = {
    "startingPosition": "starting",
    "endingPosition": "ending",
    "maxChangesPerTrigger": "max_changes",
    "recordsPerTask": "records_per_task",
    "includeMessages": "include_messages",
    "includeMarkers": "include_markers",
}


def listed() -> dict[str, dict[str, str]]:
    """Return what the page says: test -> name of the setting or option -> default."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {section.partition("\n")[0].strip(): dict(_ROW.findall(section)) for section in sections}


def defaults() -> dict[str, str]:
    return {name: _text(value) for name, value in {**_settings(), **_job_options(), **_source_options()}.items()}


def _text(value: Any) -> str:
    if value is None or value in ("", (), [], {}):
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _settings() -> dict[str, Any]:
    found = {}
    for section, field in Settings.model_fields.items():
        for name, info in field.annotation.model_fields.items():  # type: ignore[union-attr]
            default = info.get_default(call_default_factory=True)
            if default is not PydanticUndefined:
                found[f"{section}.{name}"] = default
    return found


def _job_options() -> dict[str, Any]:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    return {
        f"{name} {option.opts[0]}": option.default
        for name, command in commands.items()
        for option in command.params
        if not option.required
    }


def _source_options() -> dict[str, Any]:
    required = {"kafka.bootstrap.servers": "x:1", "registry.url": "http://x"}
    options = parse_options(required, streaming=None)
    found = {
        f"option {name}": getattr(options, _FIELDS.get(name, name), None) for name in NAMES if name not in required
    }
    return {**found, "option noProgressTimeout": options.broker.no_progress_s}


@cache
def long_tests(file: str) -> dict[str, bool]:
    """Return the tests of a file: name -> whether each of its runs is long or skipped."""
    module = ast.parse((ROOT / file).read_text("utf-8"))
    is_whole_long = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and _is_out(node.value)
        for node in module.body
    )
    return {
        node.name: is_whole_long or any(_is_out(decorator) for decorator in node.decorator_list)
        for node in module.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _is_out(marks: ast.expr) -> bool:
    """Return whether marks leave a test out of `make test`; those within parametrize concern some of its runs."""
    if isinstance(marks, ast.Call) and ast.unparse(marks.func).endswith("parametrize"):
        return False
    return re.search(r"mark\.(long|skip)", ast.unparse(marks)) is not None


def test_every_default_is_listed_with_its_value_and_once() -> None:
    rows = Counter(name for section in listed().values() for name in section)
    assert [name for name, count in rows.items() if count > 1] == []
    said = {name: value for section in listed().values() for name, value in section.items()}
    assert said == defaults()


def test_each_default_has_a_test_that_make_test_runs() -> None:
    pages = listed()
    assert set(pages.pop(NOT_RUN)) == ONLY_AN_ADDRESS
    for test in pages:
        file, _, name = test.partition("::")
        assert long_tests(file)[name] is False, test


@pytest.mark.parametrize(
    ("test", "is_long"),
    [
        ("tests/walk/test_leaving.py::test_another_server", True),
        ("tests/spark_consumer/jobs/test_jobs.py::test_a_changelog_in_parquet_has_every_change_once", True),
        ("tests/spark_consumer/jobs/test_jobs.py::test_a_mirror_that_is_killed_equals_the_source_in_the_end", False),
    ],
)
def test_a_long_test_is_seen(test: str, is_long: bool) -> None:
    file, _, name = test.partition("::")
    assert long_tests(file)[name] is is_long
