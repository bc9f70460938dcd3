"""Debezium's dialect is one room: without its folder, the gateway starts in its own dialect, and
writes the same records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFUSAL = """
import sys

class NoDebezium:
    def find_spec(self, name, path=None, target=None):
        if name == "gateway.debezium" or name.startswith("gateway.debezium."):
            raise ModuleNotFoundError(f"refused: {name}", name=name)

sys.meta_path.insert(0, NoDebezium())
"""
"""Makes every import of the room fail, as if its folder were not there."""


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", REFUSAL + script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_module_of_the_gateway_is_imported_without_the_room() -> None:
    done = run("""
import importlib, pkgutil
import gateway
for module in pkgutil.walk_packages(gateway.__path__, "gateway.", onerror=lambda name: None):
    if not module.name.startswith("gateway.debezium"):
        importlib.import_module(module.name)
from types import SimpleNamespace
from gateway.runtime.dialect import dialect_of
dialect = dialect_of(SimpleNamespace(writes_debezium=False, kafka=SimpleNamespace(prefix="cdc")))
assert dialect.has_markers
assert not any(name.startswith("gateway.debezium") for name in sys.modules)
print("imported")
""")
    assert (done.stdout, done.returncode) == ("imported\n", 0), done.stderr


def test_recorded_streams_are_written_without_the_room() -> None:
    done = run("""
import pytest
arguments = ["-x", "-q", "-p", "no:cacheprovider", "tests/transactions/test_recorded_streams.py", "tests/test_docs.py"]
sys.exit(pytest.main(arguments))
""")
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def test_the_choice_of_the_dialect_needs_the_room() -> None:
    """If this imported nothing, the other tests would show nothing."""
    done = run("""
from types import SimpleNamespace
from gateway.runtime.dialect import dialect_of
dialect_of(SimpleNamespace(writes_debezium=True))
""")
    assert "refused: gateway.debezium" in done.stderr
