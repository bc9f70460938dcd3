"""The compiled build is the same source: the tests of its modules hold for it, byte for byte where
they compare bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tools" / "compile_hot.py")
SUITES = ("tests/debezium", "tests/events", "tests/kafka", "tests/postgres", "tests/values")
"""Those that compare with fastavro, with PostgreSQL's own text and with recordings.
tests/transactions puts doubles into fields that a compiled class checks, so it stays out."""


def version(environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "gateway.cli.main", "version"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def test_the_source_says_that_it_is_plain_python() -> None:
    assert version(os.environ).endswith(", plain Python\n")


def test_without_a_compiler_nothing_is_compiled_and_the_reason_is_said(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--if-possible", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "CC": "no-such-cc"})
    assert done.stdout == ""
    assert "not compiled: there is no C compiler (no-such-cc)" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("variables", "is_pure", "said"),
    [
        ({}, False, "half a minute"),
        ({"WALGATE_COMPILE": "1"}, False, ""),
        ({"WALGATE_COMPILE": "0"}, True, ""),
        ({"CC": "false"}, True, "not compiled: the compiler failed"),
    ],
    ids=["by itself", "1", "0", "broken compiler"],
)
def test_a_wheel_is_compiled_where_that_can_be_done(
    tmp_path: Path, variables: dict[str, str], is_pure: bool, said: str
) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "WALGATE_COMPILE"} | variables
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl") == is_pure
    compiled = [name for name in ZipFile(wheel).namelist() if "row_encoder." in name and not name.endswith(".py")]
    assert len(compiled) == (0 if is_pure else 1)
    assert said in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_compiled_build_passes_the_tests_of_its_modules(tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    made = subprocess.run([sys.executable, SCRIPT, str(folder)], check=True, capture_output=True, text=True)
    assert "row_encoder" in made.stdout
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    assert version(environment).endswith(", compiled\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    suites = [str(ROOT / suite) for suite in SUITES]
    options = ["--rootdir", str(ROOT), "-m", "not integration and not e2e and not long"]
    done = subprocess.run(
        [*command, *options, *suites], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
