"""Ctrl-C while a program is still importing ends it without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_INTERRUPTED = """
import runpy, sys

class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {last!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt)
runpy.run_module({program!r}, run_name="__main__")
"""


@pytest.mark.parametrize(("program", "last"), [("walgate", "gateway.cli.main"), ("bench", "bench.program")])
def test_an_interrupt_during_the_imports_prints_nothing(program: str, last: str) -> None:
    code = _INTERRUPTED.format(program=program, last=last)
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
