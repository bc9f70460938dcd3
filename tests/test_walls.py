"""Pure packages do no I/O: they use no event loop, socket, thread, clock, settings or metrics. Each
package says what comes in, what goes out, and what it must not know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE_ROOMS = (
    "gateway/pgoutput",
    "gateway/relations",
    "gateway/values",
    "gateway/events",
    "gateway/transactions",
    "gateway/startup",
    "gateway/snapshot/rules",
    "schemas",
)
CLIENTS = {ROOT / "schemas" / name for name in ("registry_client.py", "compatibility_levels.py")}
FORBIDDEN = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "threading", "time"),
    *("ftplib", "http", "select", "selectors", "smtplib", "socket", "socketserver", "ssl", "subprocess", "urllib"),
    *("aiokafka", "asyncpg", "confluent_kafka", "requests", "uvloop"),
}
SURROUNDINGS = ("gateway.config.settings", "gateway.observe", "gateway.failpoints")
CLOCKS = {"now", "utcnow", "today"}


def _pure_files() -> list[Path]:
    return sorted(path for room in PURE_ROOMS for path in (ROOT / room).rglob("*.py") if path not in CLIENTS)


def breaches(source: str) -> Iterator[str]:
    """Yield each violation of the rules for pure packages, with its line."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names = [node.module]
            if node.module == "gateway":
                names = [f"gateway.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            yield f"line {node.lineno}: reads the clock by {node.attr}"
        elif isinstance(node, (ast.AsyncFunctionDef, ast.Await)):
            yield f"line {node.lineno}: waits"
        for name in names:
            if name.startswith(SURROUNDINGS) or name.partition(".")[0] in FORBIDDEN:
                yield f"line {getattr(node, 'lineno', 0)}: imports {name}"


@pytest.mark.parametrize("path", _pure_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_room_knows_no_loop_no_socket_and_no_clock(path: Path) -> None:
    assert list(breaches(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "from time import monotonic",
        "import datetime\ndatetime.datetime.now()",
        "def f():\n    import socket",
        "async def f(): ...",
        "import urllib.request",
        "from gateway.config.settings import Settings",
        "from gateway.observe import metrics",
    ],
)
def test_a_breach_is_seen(source: str) -> None:
    assert len(list(breaches(source))) == 1


DELTA_ROOM = ROOT / "spark_consumer/mirror/delta"
DELTA_TEXTS = re.compile(
    r"^delta$|(^|[`'\s])delta\.[a-z`{]|databricks|\.delta\.|_delta_log|USING delta|delta_scan|txn(AppId|Version)"
)
SAYS_DELTA = {"spark_consumer/jobs/cli.py": {"delta"}}
"""Where a text is no name for Spark: the option --format of `walgate consume`."""


def texts_of_delta(source: str) -> Iterator[str]:
    """Yield each text of the code, docstrings aside, that only Delta understands."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
        if isinstance(text, str) and DELTA_TEXTS.search(text):
            yield text


def test_what_knows_delta_stands_in_one_room() -> None:
    """Who may import the room is a contract of import-linter."""
    files = [path for path in (ROOT / "spark_consumer").rglob("*.py") if DELTA_ROOM not in path.parents]
    found = {str(path.relative_to(ROOT)): set(texts_of_delta(path.read_text())) for path in files}
    assert {name: texts for name, texts in found.items() if texts} == SAYS_DELTA
    assert all(list(texts_of_delta((DELTA_ROOM / name).read_text())) for name in ("delta_write.py", "log_entries.py"))


PACKAGES = sorted(
    path for room in ("gateway", "schemas", "spark_consumer") for path in (ROOT / room).rglob("__init__.py")
)
MOST_LINES = 10


def boundary(docstring: str) -> list[str]:
    """Return the lines of the paragraph about what comes in, what goes out, and what is not known."""
    paragraphs = re.split(r"\n\s*\n", docstring)
    found = [text for text in paragraphs if re.match(r"In: .*\bOut:\s.*\bmust not\b", text.strip(), re.DOTALL)]
    return found[0].strip().splitlines() if len(found) == 1 else []


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_package_says_what_comes_in_and_out_and_what_it_must_not_know(path: Path) -> None:
    lines = boundary(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
    assert 0 < len(lines) <= MOST_LINES


@pytest.mark.parametrize("text", ["In: rows. Out: records.", "The rows.\n\nOut: records. It must not know Kafka.", ""])
def test_a_package_without_its_boundary_is_seen(text: str) -> None:
    assert boundary(text) == []
