"""The compiled build is the same source: the tests of its modules hold for it, byte for byte where they compare bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = ("tests/events", "tests/kafka", "tests/replication", "tests/values")
"""Those that compare with fastavro, with PostgreSQL's own text and with recordings. tests/transactions puts doubles into
fields that a compiled class checks, so it stays out."""


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_compiled_build_passes_the_tests_of_its_modules(tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    made = subprocess.run(
        [sys.executable, str(ROOT / "compile_hot.py"), str(folder)], check=True, capture_output=True, text=True
    )
    assert "row_encoder" in made.stdout
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    loaded = subprocess.run(
        [sys.executable, "-c", "import gateway.events.row_encoder as module; print(module.__file__)"],
        check=True, capture_output=True, text=True, env=environment,
    ).stdout  # fmt: skip
    assert Path(loaded.strip()).suffix in (".so", ".pyd")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    suites = [str(ROOT / suite) for suite in SUITES]
    options = ["--rootdir", str(ROOT), "-m", "not integration and not e2e and not long"]
    done = subprocess.run(
        [*command, *options, *suites], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
